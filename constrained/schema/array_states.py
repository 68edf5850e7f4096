"""The states of an array's text: how many items have come, and which parts of what is asked still hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..automaton.automaton import Automaton, ControlState, Frame, TransitionRow
from .array_end_search import ArrayEndSearch
from .finite_values import canonical, distinct_values, value_of
from .formula import Formula, Or, atoms, conj, evaluate, has_negation, neg, optimistic
from .goals import SchemaCompiler
from .structure_parts import ArrayPart
from .value_states import SPACES, ResultCodes, ValueStart, result_codes

CLOSE, COMMA = 0x5D, 0x2C
MAX_LISTED = 256  # values that are left out of what may come next, where items are unique
MAX_STRUCTURES = 32  # objects and arrays among them


@dataclass(frozen=True)
class ItemDemands:
    """The goal of each part of one item, of each part's `contains` what is looked for, and what is satisfied by the
    items that have come and are listed, where they matter."""

    goals: tuple[Formula, ...]
    wanted: tuple[tuple[Formula, ...], ...]
    repeated: Formula = False


@dataclass(frozen=True)
class ItemGoal:
    """What one item must satisfy, what is tracked, what is asked, and those goals of which it is certain whether they
    hold."""

    need: Formula
    tracked: tuple[Formula, ...]
    asked: ItemDemands
    known: Mapping[Formula, bool] = field(default_factory=dict, compare=False)


def is_plain_array(world: SchemaCompiler, formula: Formula) -> bool:
    """Whether one part, or one of several, is all that is asked for, and nothing in a part is in another's way."""
    parts = formula.parts if isinstance(formula, Or) else [formula]
    return all(
        isinstance(part, bool) or (isinstance(part, ArrayPart) and not part.contains and not _runs_out(world, part))
        for part in parts
    )


def _runs_out(world: SchemaCompiler, part: ArrayPart) -> bool:
    """Whether there may not be enough different items."""
    indices = range(min(part.least, part.num_kinds))
    return part.unique and part.least > 1 and any(distinct_values(world, part.goal(n)) is not None for n in indices)


class ArrayContext:
    """What is asked of an array: a formula over parts, and others whose truth is its result. Compared by identity."""

    def __init__(self, world: SchemaCompiler, formulas: tuple[Formula, ...], result: ResultCodes) -> None:
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
        # Where it is plain, every item brings an array nearer to its end. Else a way to the end is looked for.
        self.plain = is_plain_array(world, formulas[0])
        self.simple = self.plain and not self.exact and len(self.parts) <= 1 and not self.unique
        self.completion = ArrayEndSearch(self)

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

    def expand(self, automaton: Automaton) -> TransitionRow:
        context, world = self.context, self.context.world
        edges: dict[int, int] = {}
        item = self.item()
        if item is not None:
            is_followed = item.tracked or context.unique
            then: ControlState | Frame | None = ItemFrame(self, item) if is_followed else self.after(item, (), None)
            if then is not None and self.phase == "after":
                edges[COMMA] = automaton.push(ValueStart(world, item.need, item.tracked, world.spaces), then)
            elif then is not None:
                start = ValueStart(world, item.need, item.tracked)
                code = automaton.push_before(start, then)
                edges = dict.fromkeys(automaton.edges_of(automaton.number(start)), code)
        if (result := self.closing_result()) is not None:
            edges[CLOSE] = automaton.pop(result)
        if world.spaces == 2:
            return TransitionRow(edges, rest=automaton.stay_on(SPACES))
        return TransitionRow(edges)

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

    def asked(self) -> ItemDemands:
        """Of the next item."""
        goals: list[Formula] = []
        wanted: list[tuple[Formula, ...]] = []
        for number, part in enumerate(self.context.parts):
            full = part.most is not None and self.index >= part.most
            goal: Formula = part.goal(self.index) if self.alive >> number & 1 and not full else False
            goals.append(goal)
            found: list[Formula] = []
            for count, (looked_for, least, most) in zip(self.counts[number], part.contains, strict=True):
                matters = goal is not False and (count < least or most is not None)
                found.append(looked_for if matters else False)
            wanted.append(tuple(found))
        matters = any(part.unique and goal is not False for part, goal in zip(self.context.parts, goals, strict=True))
        listed = self._listed() if matters else []
        return ItemDemands(tuple(goals), tuple(wanted), self.context.world.given({"enum": listed}) if listed else False)

    def item(self) -> ItemGoal | None:
        """The next; None when none may come."""
        context, asked = self.context, self.asked()
        if not context.plain:
            return self._item(asked)
        hopes = [
            conj([goal, neg(asked.repeated)]) if part.unique and goal is not False else goal
            for part, goal in zip(context.parts, asked.goals, strict=True)
        ]
        need = optimistic(context.formulas[0], lambda part: hopes[context.index[part]], lambda _: False)
        if not context.world.satisfiable(need):
            return None
        all_goals = [*asked.goals, *(goal for found in asked.wanted for goal in found)]
        different = tuple(dict.fromkeys(goal for goal in all_goals if goal is not True and goal is not False))
        tracked = () if context.simple or different == (need,) else different
        return ItemGoal(need, tracked, asked, {} if tracked else dict.fromkeys(different, True))

    def _item(self, asked: ItemDemands) -> ItemGoal | None:
        value = self.context.completion.value(self)
        if value is None:
            return None
        if value.truths is not None:
            return ItemGoal(value.need, (), asked, dict(zip(value.goals, value.truths, strict=True)))
        is_need = value.goals == (value.need,)
        return ItemGoal(value.need, () if is_need else value.goals, asked, {value.need: True} if is_need else {})

    def _listed(self) -> list[Any]:
        """The items so far, if they are few: they are left out of what may come next."""
        forms = [form for form in self.used if isinstance(form, tuple)]
        if len(forms) > MAX_LISTED or sum(kind == "structure" for kind, _ in forms) > MAX_STRUCTURES:
            forms = [form for form in forms if form[0] != "structure"][:MAX_LISTED]
        return [value_of(form) for form in sorted(forms, key=repr)]

    def after(self, item: ItemGoal, truths: tuple[bool, ...], value: Any) -> ArrayState | None:
        """After an item whose value has these truths of what is tracked."""
        context = self.context
        known = {**item.known, **dict(zip(item.tracked, truths, strict=True))}
        state = self.with_item(item.asked, known, value)
        return state if context.simple or state.is_possible() else None

    def with_item(self, asked: ItemDemands, known: Mapping[Formula, bool], value: Any) -> ArrayState:
        """After an item for whose value these goals hold; `value` is its form, where items are unique."""
        context = self.context
        alive, counts = 0, []
        for number, (part, goal) in enumerate(zip(context.parts, asked.goals, strict=True)):
            holds = goal is True or (goal is not False and known.get(goal, False))
            if holds and not (part.unique and value in self.used):
                alive |= 1 << number
            here = []
            for count, found, (_, least, most) in zip(
                self.counts[number], asked.wanted[number], part.contains, strict=True
            ):
                found_now = found is True or (found is not False and known.get(found, False))
                here.append(min(count + found_now, least if most is None else most + 1))
            counts.append(tuple(here))
        used = self.used | {value} if context.unique else self.used
        index = min(self.index + 1, context.num_alike)
        return ArrayState(context, alive, index, tuple(counts), used, "after")

    def truth(self) -> bool | None:
        """Of what is asked for, as far as it is known whatever comes."""
        hopes = {part: None if self.alive >> n & 1 else False for n, part in enumerate(self.context.parts)}
        return evaluate(self.context.formulas[0], hopes.__getitem__)

    def is_possible(self) -> bool:
        """Whether it may end well: False only when it cannot."""
        if not self.context.plain:
            return self.context.completion.can_end(self)
        return self.truth() is not False and (self.closing_result() is not None or self.item() is not None)


@dataclass(frozen=True)
class ItemFrame(Frame):
    """Below an item of which something is tracked."""

    state: ArrayState
    item: ItemGoal

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return result_codes(self.state.context.world, self.item.tracked).size

    @property
    def guarded(self) -> bool:  # type: ignore[override]
        return self.state.context.unique

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        truths = result_codes(self.state.context.world, self.item.tracked).truths[result] if self.item.tracked else ()
        value = canonical(json.loads(text)) if self.guarded else None
        return self.state.after(self.item, truths, value)
