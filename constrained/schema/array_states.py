"""States of an array's text, and the search for a way to its end."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal
from weakref import proxy

from ..automaton.automaton import Automaton, ControlState, Counting, Frame, TransitionRow
from ..budget import cached_property
from .end_search import EndSearch, ValueGoal
from .formula import And, Formula, Or, ResultCodes, Truths, atoms, conj, evaluate, has_negation, neg, optimistic
from .interface import SchemaCompiler
from .joint_truths import JointTruths, joint_truths, literals, restricted
from .listed.finite_values import Canonical, canonical, finite_values, may_have_more_values, needed_exclusions, value_of
from .strings.string_states import result_code
from .structure_parts import MORE_THAN_ANY, ArrayPart, CountRanges
from .value_states import SPACES, ValueStart, result_codes

CLOSE_ARRAY, COMMA = 0x5D, 0x2C
_FORGOTTEN = [bytes([byte]) for byte in b'"-0123456789']  # first bytes of items that states may forget
MAX_STRUCTURES = 32  # earlier objects and arrays that the goal of the next item excludes, if a state does not
MAX_ITEM_GOALS = 32  # whose truths are followed from item to item: the work grows with the fourth power of their number


@dataclass(frozen=True)
class FreshValue:
    """Placeholder for a value unlike the `number` values before it, of a goal that many values satisfy."""

    number: int
    goal: Formula


@dataclass(frozen=True)
class ItemDemands:
    """Goals of one item: of each part, and of each part's `contains`. `repeated` is that of being an earlier item."""

    goals: tuple[Formula, ...]
    contained: tuple[tuple[Formula, ...], ...]
    repeated: Formula = False


@dataclass(frozen=True)
class ItemGoal:
    """Goal `need` of one item, and the goals that are tracked of it. `known` are certain truths.

    `unlike` are the objects and arrays that it must not equal, unless the goal says so.
    """

    need: Formula
    tracked: tuple[Formula, ...]
    demands: ItemDemands
    known: Mapping[Formula, bool] = field(default_factory=dict, compare=False)
    unlike: frozenset[Canonical] = frozenset()


def is_plain_array(compiler: SchemaCompiler, formula: Formula) -> bool:
    """Return True if one part, or one of several, is all that is needed, and no keyword of a part obstructs another."""
    parts = formula.parts if isinstance(formula, Or) else [formula]
    return all(
        isinstance(part, bool) or (isinstance(part, ArrayPart) and not part.contains and not _runs_out(compiler, part))
        for part in parts
    )


def _runs_out(compiler: SchemaCompiler, part: ArrayPart) -> bool:
    """Return True if there may be too few distinct values for the minimum length."""
    if not part.unique or part.least <= 1:
        return False
    # Before the item at an index of its own, as many values may be used up; before the others, all but the last.
    used = [*range(min(part.least, part.num_item_goals - 1)), part.least - 1][: part.least]
    return not all(may_have_more_values(compiler, part.goal(n), number) for n, number in enumerate(used))


def has_too_few_values(compiler: SchemaCompiler, part: ArrayPart) -> bool:
    """Return True if items must differ and no goal of an item has enough values together with the others."""
    if not part.unique or part.num_item_goals > 1:
        return False
    return part.least > 1 and not may_have_more_values(compiler, part.goal(0), part.least - 1)


class ArrayContext:
    """Formulas of an array: the first must hold, and the truths of the others are its result. Compared by identity.

    - `exact`: truths are tracked or negated, so a part that may hold must also be able to fail.
    - `plain`: every item brings the array nearer to its end. Otherwise a way to the end is searched for.
    - `excludes`: no item may repeat another. So the states of an object or array are given those that came before.
    - `forgets`: plain and excludes. States keep only those items that must be excluded so that no text is a dead end;
      frames find all others in the text before.
    - `simple`: plain, with at most one part, nothing tracked, and items that need not differ.
    """

    def __init__(self, compiler: SchemaCompiler, formulas: tuple[Formula, ...], result: ResultCodes) -> None:
        self.compiler, self.formulas, self.result = compiler, formulas, result
        found: dict[ArrayPart, None] = {}
        for formula in formulas:
            for part in atoms(formula):
                assert isinstance(part, ArrayPart)
                found[part] = None
        self.parts = tuple(found)
        self.index = {part: number for number, part in enumerate(self.parts)}
        self.unique = any(part.unique for part in self.parts)
        self.exact = len(formulas) > 1 or has_negation(formulas[0])
        self.plain = is_plain_array(compiler, formulas[0])
        self.simple = self.plain and not self.exact and len(self.parts) <= 1 and not self.unique
        all_unique = self.unique and all(part.unique for part in self.parts)
        self.excludes = all_unique and evaluate(formulas[0], lambda _: False) is False
        self.forgets = self.plain and self.excludes
        self.ranges = CountRanges(self._changes(), self._margin)
        self.search = ArrayEndSearch(self)

    def _changes(self) -> set[int]:
        """Return the numbers of items from which on goals or limits of the length differ from those before."""
        return {count for part in self.parts for count in part.changes}

    @property
    def _margin(self) -> int:
        """More than the number of items that can change `alive` or `counts`, one after the other.

        If items must differ, each changes the state, so that every count has a state of its own.
        """
        if self.unique:
            return MORE_THAN_ANY
        if self.plain:
            return 1
        counted = sum(least if most is None else most + 1 for part in self.parts for _, least, most in part.contains)
        return 1 + len(self.parts) + counted

    @cached_property
    def item_goals(self) -> list[Formula]:
        """The goals that items may have, of each part."""
        goals = {part.goal(number): None for part in self.parts for number in range(part.num_item_goals)}
        return [goal for goal in goals if goal is not False]

    def with_used(self, used: frozenset[Any], value: Any) -> frozenset[Any]:
        """Return the earlier items that a state keeps after one more, of which `value` is the canonical form."""
        if not self.forgets or value[0] == "structure":
            return used | {value}
        alike = {form for form in used if form[0] == value[0] == "number"}
        kept = needed_exclusions(self.compiler, self.item_goals, [*alike, value])
        return used if kept == [value] and value in used else used - alike | frozenset(kept)

    def start(self) -> ArrayState:
        """Return the state after the opening bracket."""
        return ArrayState(
            self, (1 << len(self.parts)) - 1, 0, tuple(tuple(0 for _ in part.contains) for part in self.parts)
        )


@dataclass(frozen=True)
class ArrayState(Counting):
    """State after `[` ("open") or after an item ("after").

    `alive` is the bit set of the parts that may still hold, `index` the range of the number of items so far. `counts`
    are the numbers of items that each part's `contains` has found; `used` are the items, if they must differ and are
    not forgotten.
    """

    context: ArrayContext
    alive: int
    index: int
    counts: tuple[tuple[int, ...], ...]
    used: frozenset[Any] = frozenset()
    phase: Literal["open", "after"] = "open"

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.context.ranges.limit(self.index)

    def at_limit(self) -> ArrayState | None:
        """Return the state behind a long range. Ranges of one count are left item by item."""
        end = self.context.ranges.end(self.index)
        return None if end is None else replace(self, index=end)

    def expand(self, automaton: Automaton) -> TransitionRow:
        context, compiler = self.context, self.context.compiler
        edges: dict[int, int] = {}
        item = self.item()
        if item is not None:
            is_tracked = item.tracked or context.unique
            then: ControlState | Frame | None = ItemFrame(self, item) if is_tracked else self.after(item, (), None)
            if then is not None and self.phase == "after":
                start = ValueStart(compiler, item.need, item.tracked, compiler.spaces, item.unlike)
                edges[COMMA] = automaton.push(start, then)
            elif then is not None:
                start = ValueStart(compiler, item.need, item.tracked, 0, item.unlike)
                code = automaton.push_before(start, then)
                edges = dict.fromkeys(automaton.edges_of(automaton.number(start)), code)
        if (result := self.closing_result()) is not None:
            edges[CLOSE_ARRAY] = automaton.pop(result)
        if compiler.spaces == 2:
            return TransitionRow(edges, rest=automaton.stay_on(SPACES))
        return TransitionRow(edges)

    def closing_result(self) -> int | None:
        """Return the result code if the array may end here, else None."""
        context = self.context
        holds = {part: self._holds(number) for number, part in enumerate(context.parts)}
        result = result_code(context.formulas, holds.__getitem__, context.result)
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

    def demands(self) -> ItemDemands:
        """Return the goals of the next item."""
        goals: list[Formula] = []
        contained: list[tuple[Formula, ...]] = []
        for number, part in enumerate(self.context.parts):
            full = part.most is not None and self.index >= part.most
            goal: Formula = part.goal(self.index) if self.alive >> number & 1 and not full else False
            goals.append(goal)
            found: list[Formula] = []
            for count, (condition, least, most) in zip(self.counts[number], part.contains, strict=True):
                matters = goal is not False and (count < least or most is not None)
                found.append(condition if matters else False)
            contained.append(tuple(found))
        matters = any(part.unique and goal is not False for part, goal in zip(self.context.parts, goals, strict=True))
        listed = self._listed_items(goals) if matters else []
        repeated = self.context.compiler.goal_of({"enum": listed}) if listed else False
        return ItemDemands(tuple(goals), tuple(contained), repeated)

    def item(self) -> ItemGoal | None:
        """Return the goal of the next item, or None if none may come."""
        context, demands = self.context, self.demands()
        if not context.plain:
            return self._searched_item(demands)
        goals = [
            conj([goal, neg(demands.repeated)]) if part.unique and goal is not False else goal
            for part, goal in zip(context.parts, demands.goals, strict=True)
        ]
        need = optimistic(context.formulas[0], lambda part: goals[context.index[part]], lambda _: False)
        unlike = self.unlike(demands)
        if not context.compiler.satisfiable_unlike(need, unlike):
            return None
        all_goals = [*demands.goals, *(goal for found in demands.contained for goal in found)]
        different = tuple(dict.fromkeys(goal for goal in all_goals if goal is not True and goal is not False))
        is_certain = context.simple or all(implies(need, goal) for goal in different)
        known = dict.fromkeys(different, True) if is_certain else {}
        return ItemGoal(need, () if is_certain else different, demands, known, unlike)

    def unlike(self, demands: ItemDemands) -> frozenset[Canonical]:
        """Return the earlier objects and arrays that the next item must not equal, unless its goal says so."""
        if not self.context.excludes or not any(goal is not False for goal in demands.goals):
            return frozenset()
        return frozenset(form for form in self.used if form[0] == "structure")

    def _searched_item(self, demands: ItemDemands) -> ItemGoal | None:
        value, unlike = self.context.search.value(self), self.unlike(demands)
        if value is None:
            return None
        if value.truths is not None:
            return ItemGoal(value.need, (), demands, dict(zip(value.goals, value.truths, strict=True)), unlike)
        is_need = value.goals == (value.need,)
        tracked = () if is_need else value.goals
        return ItemGoal(value.need, tracked, demands, {value.need: True} if is_need else {}, unlike)

    def _listed_items(self, goals: list[Formula]) -> list[Any]:
        """Return the earlier items that the goal of the next one excludes, if these are the goals of the parts."""
        forms = [form for form in self.used if isinstance(form, tuple)]
        if self.context.excludes:
            forms = needed_exclusions(self.context.compiler, goals, forms)
            return [value_of(form) for form in sorted(forms, key=repr)]
        if sum(kind == "structure" for kind, _ in forms) > MAX_STRUCTURES:
            forms = [form for form in forms if form[0] != "structure"]
        return [value_of(form) for form in sorted(forms, key=repr)]

    def after(self, item: ItemGoal, truths: Truths, value: Any) -> ArrayState | None:
        """Return the state after an item whose tracked goals have these truths."""
        context = self.context
        known = {**item.known, **dict(zip(item.tracked, truths, strict=True))}
        state = self.with_item(item.demands, known, value)
        return state if context.simple or state.is_possible() else None

    def with_item(self, demands: ItemDemands, known: Mapping[Formula, bool], value: Any) -> ArrayState:
        """Return the state after an item with these truths of goals. `value` is its canonical form, if items differ."""
        context = self.context
        alive, counts = 0, []
        for number, (part, goal) in enumerate(zip(context.parts, demands.goals, strict=True)):
            holds = goal is True or (goal is not False and known.get(goal, False))
            if holds and not (part.unique and value in self.used):
                alive |= 1 << number
            here = []
            for count, found, (_, least, most) in zip(
                self.counts[number], demands.contained[number], part.contains, strict=True
            ):
                found_now = found is True or (found is not False and known.get(found, False))
                here.append(min(count + found_now, least if most is None else most + 1))
            counts.append(tuple(here))
        used = context.with_used(self.used, value) if context.unique else self.used
        index = context.ranges.after(self.index)
        return ArrayState(context, alive, index, tuple(counts), used, "after")

    def truth(self) -> bool | None:
        """Return the truth of the first formula, or None if it depends on further items."""
        truths = {part: None if self.alive >> n & 1 else False for n, part in enumerate(self.context.parts)}
        return evaluate(self.context.formulas[0], truths.__getitem__)

    def is_possible(self) -> bool:
        """Return False only if the array cannot end."""
        if not self.context.plain:
            return self.context.search.can_end(self)
        return self.truth() is not False and (self.closing_result() is not None or self.item() is not None)


def implies(need: Formula, goal: Formula) -> bool:
    """Return True if a goal is plainly a part of what is needed, so that every value has it."""
    parts = need.part_set if isinstance(need, And) else {need}
    return goal in parts or (isinstance(goal, And) and goal.part_set <= parts)


def repeats_item(text: bytes, before: bytes) -> bool:
    """Return True if an item is a string or number that `before`, the text of its array so far, holds already."""
    item = text.strip(SPACES)
    if item[:1] not in _FORGOTTEN or (item[:1] == b'"' and b"\\" not in item + before and item not in before):
        return False
    return canonical(json.loads(item)) in _items_of(before)


@lru_cache(maxsize=8)
def _items_of(before: bytes) -> frozenset[Canonical]:
    """Return the canonical forms of an array's items, of which this is the text up to a comma or after the bracket."""
    text = before.strip(SPACES)
    return frozenset(map(canonical, json.loads(text[:-1] + b"]"))) if text.endswith(b",") else frozenset()


@dataclass(frozen=True)
class ItemFrame(Frame):
    """Stack frame below an item that is tracked."""

    state: ArrayState
    item: ItemGoal

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return result_codes(self.state.context.compiler, self.item.tracked).likely

    @property
    def guarded(self) -> bool:  # type: ignore[override]
        return self.state.context.unique

    @property
    def limit(self) -> int:  # type: ignore[override]
        context = self.state.context
        return context.ranges.limit(context.ranges.after(self.state.index))

    def repeats(self, result: int, text: bytes, before: bytes) -> bool:
        return self.state.context.forgets and repeats_item(text, before)

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        tracked = self.item.tracked
        truths = result_codes(self.state.context.compiler, tracked).truths(result) if tracked else ()
        value = canonical(json.loads(text)) if self.guarded else None
        return self.state.after(self.item, truths, value)


class ArrayEndSearch(EndSearch[ArrayState]):
    """Searches from the states of one array.

    What is still needed (a number of items, those that `contains` finds, parts that must fail) depends on the truths of
    the goals of the items to come. If items must differ, the values of goals that have only a few are taken one by one;
    of other goals there is always a fresh value.
    """

    def __init__(self, context: ArrayContext) -> None:
        super().__init__(context.compiler, context.parts)
        self.context: ArrayContext = proxy(context)  # which holds the search

    def _key(self, state: ArrayState) -> Hashable:
        return state.alive, state.index, state.counts, state.used if self.context.unique else None

    def _steps(self, state: ArrayState) -> Iterator[ArrayState]:
        demands = state.demands()
        joint = self._joint_truths(demands)
        if self._exceeds_limit(joint):
            return
        for truths in sorted(joint.candidates(), key=lambda truths: self._rank(demands, joint, truths)):
            for step in self._with_values(state, demands, joint, truths):
                differs = (step.alive, step.index, step.counts) != (state.alive, state.index, state.counts)
                if not differs and (end := self.context.ranges.end(state.index)) is not None:
                    step, differs = replace(step, index=end), True
                differs |= self.context.unique and not state.used
                if differs and step.truth() is not False and joint.possible(truths):
                    yield step

    def _rank(self, demands: ItemDemands, joint: JointTruths, truths: Truths) -> int:
        """Return a sort key: the more `contains` goals hold, the smaller."""
        known = dict(zip(joint.goals, truths, strict=True))
        return -sum(goal is True or known.get(goal, False) for goals in demands.contained for goal in goals)

    def _with_values(
        self, state: ArrayState, demands: ItemDemands, joint: JointTruths, truths: Truths
    ) -> Iterator[ArrayState]:
        """Yield the states after an item with these truths, for the values that matter if items must differ."""
        known = dict(zip(joint.goals, truths, strict=True))
        if not self.context.unique:
            yield state.with_item(demands, known, None)
            return
        if demands.repeated is not False and known[demands.repeated]:
            yield state.with_item(demands, known, next(iter(state.used)))
            return
        goal = literals(joint.goals, truths)
        values = finite_values(self._compiler, goal)
        if values is None:
            yield state.with_item(demands, known, FreshValue(len(state.used), goal))
        for value in values or ():
            yield state.with_item(demands, known, value)
        for value in state.used:
            # An earlier fresh value may satisfy this goal too: nothing else is known of it.
            if (
                isinstance(value, FreshValue)
                and self.context.exact
                and self._compiler.satisfiable(conj([value.goal, goal]))
            ):
                yield state.with_item(demands, known, value)
                return

    def _exceeds_limit(self, joint: JointTruths) -> bool:
        if len(joint.goals) <= MAX_ITEM_GOALS:
            return False
        self._refuse(f"more than {MAX_ITEM_GOALS} constraints apply to the items of one array together")
        return True

    def _joint_truths(self, demands: ItemDemands) -> JointTruths:
        found = dict.fromkeys(demands.goals)
        for goals in demands.contained:
            found |= dict.fromkeys(goals)
        found[demands.repeated] = None
        if self.context.unique:
            found |= self._scarce_goals
        return joint_truths(self._compiler, tuple(goal for goal in found if goal is not True and goal is not False))

    @cached_property
    def _scarce_goals(self) -> dict[Formula, None]:
        """Goals that only a few values satisfy, of which each item leaves one less."""
        goals = {part.goal(n): None for part in self.context.parts if part.unique for n in range(part.num_item_goals)}
        return {goal: None for goal in goals if finite_values(self._compiler, goal) is not None}

    def value(self, state: ArrayState) -> ValueGoal | None:
        """Return the goal of the next item's value, or None if none may come."""
        context, demands = self.context, state.demands()
        joint = self._joint_truths(demands)
        if self._exceeds_limit(joint):
            return None
        need = self._need(demands.goals)
        if joint.unchecked is None:
            found = self._compiler.satisfiable_unlike(need, state.unlike(demands))
            return ValueGoal(need, joint.goals, None) if found else None
        marked = self._need(tuple(goal if isinstance(goal, bool) else (goal,) for goal in demands.goals))
        good: set[Truths] = set()
        bad: set[Truths] = set()
        unlike = state.unlike(demands)
        for truths in (*joint.known, *joint.unchecked):
            known = dict(zip(joint.goals, truths, strict=True))
            if evaluate(marked, lambda mark: known[mark[0]]):  # noqa: B023
                steps = self._with_values(state, demands, joint, truths)
                fits = any(step.truth() is not False and self.can_end(step) for step in steps)
                if fits and unlike:
                    fits = self._compiler.satisfiable_unlike(literals(joint.goals, truths), unlike)
                (good if fits else bad).add(truths)
        if not any(joint.possible(truths) for truths in good):
            return None
        need = conj([need, restricted(joint.goals, good, bad)])
        assert context.parts, "an array without parts is plain"
        return ValueGoal(need, joint.goals, next(iter(good)) if len(good) == 1 else None)

    def _need(self, goals: tuple[Formula, ...]) -> Formula:
        index = self.context.index
        return optimistic(self.context.formulas[0], lambda part: goals[index[part]], lambda _: False)
