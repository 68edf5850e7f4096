"""The states of an array's text: how many items have come, and which parts of what is asked still hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from .automaton import Automaton, Frame, Row, State
from .formula import Formula, atoms, conj, evaluate, has_negation, neg, optimistic
from .schema_parts import ArrayPart
from .schema_values import SPACES, Results, ValueStart, results_of
from .schema_world import World

CLOSE, COMMA = 0x5D, 0x2C
MAX_LISTED = 256  # values that are left out of what may come next, where items are unique


@dataclass(frozen=True)
class Item:
    """What is asked of one item: what it must satisfy, what is tracked, the goal of each part, and of each part's
    `contains` what is looked for."""

    need: Formula
    tracked: tuple[Formula, ...]
    goals: tuple[Formula, ...]
    wanted: tuple[tuple[Formula, ...], ...]
    possible: bool


class ArrayContext:
    """What is asked of an array: a formula over parts, and others whose truth is its result. Compared by identity."""

    def __init__(self, world: World, formulas: tuple[Formula, ...], result: Results) -> None:
        self.world, self.formulas, self.result = world, formulas, result
        found: dict[ArrayPart, None] = {}
        for formula in formulas:
            for part in atoms(formula):
                assert isinstance(part, ArrayPart)
                found[part] = None
        self.parts = tuple(found)
        self.index = {part: number for number, part in enumerate(self.parts)}
        self.num_alike = max((part.num_alike for part in self.parts), default=0)
        self.unique = any(part.unique for part in self.parts)
        self.exact = len(formulas) > 1 or has_negation(formulas[0])
        self.simple = (
            not self.exact and len(self.parts) <= 1 and not self.unique and not any(p.contains for p in self.parts)
        )

    def start(self) -> ArrayState:
        return ArrayState(
            self, (1 << len(self.parts)) - 1, 0, tuple(tuple(0 for _ in part.contains) for part in self.parts)
        )


@dataclass(frozen=True)
class ArrayState:
    """After `[` ("open") or after an item ("after").

    `alive`: the parts that may still hold. `index` of the next item, as far as it matters. `counts` of items that each
    part's `contains` has found. `used`: the items that have come, where they must differ.
    """

    context: ArrayContext
    alive: int
    index: int
    counts: tuple[tuple[int, ...], ...]
    used: frozenset[Any] = frozenset()
    phase: Literal["open", "after"] = "open"

    def expand(self, automaton: Automaton) -> Row:
        context, world = self.context, self.context.world
        edges: dict[int, int] = {}
        item = self.item()
        if item is not None:
            is_followed = item.tracked or context.unique
            then: State | Frame | None = ItemFrame(self, item) if is_followed else self.after(item, (), None)
            if then is not None and self.phase == "after":
                edges[COMMA] = automaton.push(ValueStart(world, item.need, item.tracked, world.spaces), then)
            elif then is not None:
                start = ValueStart(world, item.need, item.tracked)
                code = automaton.push_before(start, then)
                edges = dict.fromkeys(automaton.edges_of(automaton.number(start)), code)
        if (result := self.closing_result()) is not None:
            edges[CLOSE] = automaton.pop(result)
        if world.spaces == 2:
            return Row(edges, rest=automaton.stay_on(SPACES))
        return Row(edges)

    def closing_result(self) -> int | None:
        """None when the array may not end here."""
        context = self.context
        holds = {part: self._holds(number) for number, part in enumerate(context.parts)}
        truths = [bool(evaluate(formula, holds.__getitem__)) for formula in context.formulas]
        if not truths[0]:
            return None
        result = context.result(tuple(truths[1:]))
        return result if result >= 0 else None

    def _holds(self, number: int) -> bool:
        part = self.context.parts[number]
        return (
            bool(self.alive >> number & 1)
            and self.index >= part.least
            and all(
                least <= count and (most is None or count <= most)
                for count, (_, least, most) in zip(self.counts[number], part.contains, strict=True)
            )
        )

    def item(self) -> Item | None:
        """Of the next item; None when none may come."""
        context, world = self.context, self.context.world
        goals: list[Formula] = []
        hopes: list[Formula] = []
        wanted: list[tuple[Formula, ...]] = []
        for number, part in enumerate(context.parts):
            full = part.most is not None and self.index >= part.most
            goal: Formula = part.goal(self.index) if self.alive >> number & 1 and not full else False
            found: list[Formula] = []
            hope: list[Formula] = [goal]
            for count, (looked_for, least, most) in zip(self.counts[number], part.contains, strict=True):
                matters = goal is not False and (count < least or most is not None)
                found.append(looked_for if matters else False)
                if matters and most is not None and count >= most:
                    hope.append(neg(looked_for))
                elif matters and part.most is not None and part.most - self.index <= least - count:
                    hope.append(looked_for)
            if part.unique and goal is not False and self.used and (listed := self._listed()):
                hope.append(neg(world.given({"enum": listed})))
            goals.append(goal)
            hopes.append(conj(hope))
            wanted.append(tuple(found))
        need = optimistic(context.formulas[0], lambda part: hopes[context.index[part]], lambda _: False)
        if not world.satisfiable(need):
            return None
        different = dict.fromkeys(goal for goal in goals if goal is not True and goal is not False)
        different |= dict.fromkeys(goal for found in wanted for goal in found if goal is not True and goal is not False)
        tracked = () if not different or tuple(different) == (need,) else tuple(different)
        if context.simple:
            tracked = ()
        return Item(need, tracked, tuple(goals), tuple(wanted), True)

    def _listed(self) -> list[Any]:
        """The items so far, if they are few and simple: they are left out of what may come next."""
        listed = [value for kind, value in self.used if kind != "structure"]
        return sorted(listed, key=repr) if len(listed) <= MAX_LISTED else []

    def after(self, item: Item, truths: tuple[bool, ...], value: Any) -> ArrayState | None:
        context = self.context
        known = dict(zip(item.tracked, truths, strict=True))
        alive, counts = 0, []
        for number, (part, goal) in enumerate(zip(context.parts, item.goals, strict=True)):
            holds = goal is True or (goal is not False and (known.get(goal, not item.tracked)))
            if part.unique and value in self.used:
                holds = False
            if holds:
                alive |= 1 << number
            here = []
            for count, found, (_, least, most) in zip(
                self.counts[number], item.wanted[number], part.contains, strict=True
            ):
                found_now = found is True or (found is not False and known.get(found, not item.tracked))
                here.append(min(count + found_now, least if most is None else most + 1))
            counts.append(tuple(here))
        used = self.used | {value} if context.unique else self.used
        index = min(self.index + 1, context.num_alike)
        state = ArrayState(context, alive, index, tuple(counts), used, "after")
        return state if context.simple or state.is_possible() else None

    def is_possible(self) -> bool:
        """Whether it may end well: False only when it cannot."""
        context = self.context
        hopes = {part: None if self.alive >> n & 1 else False for n, part in enumerate(context.parts)}
        if evaluate(context.formulas[0], hopes.__getitem__) is False:
            return False
        return self.closing_result() is not None or self.item() is not None


@dataclass(frozen=True)
class ItemFrame(Frame):
    """Below an item of which something is tracked."""

    state: ArrayState
    item: Item

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return results_of(self.state.context.world, self.item.tracked).size

    @property
    def guarded(self) -> bool:  # type: ignore[override]
        return self.state.context.unique

    def after(self, automaton: Automaton, result: int, text: bytes) -> State | None:
        truths = results_of(self.state.context.world, self.item.tracked).truths[result] if self.item.tracked else ()
        value = canonical(json.loads(text)) if self.guarded else None
        return self.state.after(self.item, truths, value)


def canonical(value: Any) -> tuple[str, Any]:
    """Equal for values that JSON Schema calls equal: 1 and 1.0, objects in any order."""
    match value:
        case dict():
            return "structure", frozenset((name, canonical(inner)) for name, inner in value.items())
        case list():
            return "structure", tuple(canonical(inner) for inner in value)
        case bool() | None | str():
            return type(value).__name__, value
        case _:
            return "number", int(value) if value == int(value) else value
