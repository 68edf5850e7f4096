"""Decides whether given values satisfy goals, on the values themselves, without any automaton.

Truths are three-valued: None where a format is known in part only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, TypeVar

from ..formula import Formula, Or, atoms, evaluate
from ..interface import SchemaCompiler
from ..number_parts import NumberPart
from ..strings.string_dfas import pattern_chars
from ..strings.string_parts import StringPart
from ..structure_parts import ArrayPart, ObjectPart
from .values import GivenValue, ListedPart, given_value

V = TypeVar("V", bound=Hashable)


def satisfies(compiler: SchemaCompiler, goal: Formula, value: GivenValue) -> bool | None:
    """Return True if a value satisfies a goal, None if that is unknown."""
    if goal is True or goal is False:
        return bool(goal)
    return part_truth(compiler, compiler.over_parts(goal, value.kind), value)


def part_truth(compiler: SchemaCompiler, formula: Formula, value: GivenValue) -> bool | None:
    """Return the truth of a formula over parts of the value's type."""
    match formula:
        case True | False:
            return formula
        case ListedPart():
            return value in formula.values
        case StringPart():
            return True if formula.holds(value.content) else None if formula.is_undecided(value.content) else False
        case NumberPart():
            return formula.holds(value.content)
        case ObjectPart():
            return _object_truth(compiler, formula, dict(value.content))
        case ArrayPart():
            return _array_truth(compiler, formula, value.content)
        case _:
            return evaluate(formula, lambda part: part_truth(compiler, part, value))


def _object_truth(compiler: SchemaCompiler, part: ObjectPart, members: dict[str, GivenValue]) -> bool | None:
    if len(members) < part.least or (part.most is not None and len(members) > part.most):
        return False
    if not all(name in members for name in part.required):
        return False
    for keywords in part.keywords:
        if any(name in members and not members.keys() >= {*others} for name, others in keywords.requires.items()):
            return False
    found: bool | None = True
    for name, value in members.items():
        matched = frozenset(pattern for pattern in part.patterns if pattern_chars(pattern).accepts(name))
        for goal, subject in (
            *((goal, given_value(compiler, name)) for goal in part.name_goals),
            (part.goal(name, matched), value),
        ):
            truth = satisfies(compiler, goal, subject)
            if truth is False:
                return False
            found = found and truth
    return found


def _array_truth(compiler: SchemaCompiler, part: ArrayPart, items: tuple[GivenValue, ...]) -> bool | None:
    if len(items) < part.least or (part.most is not None and len(items) > part.most):
        return False
    if part.unique and len({*items}) < len(items):
        return False
    found: bool | None = True
    for index, item in enumerate(items):
        truth = satisfies(compiler, part.goal(index), item)
        if truth is False:
            return False
        found = found and truth
    for condition, least, most in part.contains:
        truths = [satisfies(compiler, condition, item) for item in items]
        surely, perhaps = truths.count(True), len(truths) - truths.count(False)
        if perhaps < least or (most is not None and surely > most):
            return False
        if surely < least or (most is not None and perhaps > most):
            found = None
    return found


class SparseTruths(Generic[V]):
    """Truths of several formulas for single values, in time that does not grow with the atoms that list other values.

    `listed(atom)` are the values of an atom, or None for an atom that is open; `holds(atom, value)` is the truth of an
    open atom.
    """

    def __init__(
        self,
        formulas: Sequence[Formula],
        listed: Callable[[Any], Collection[V] | None],
        holds: Callable[[Any, V], bool | None],
    ) -> None:
        self._formulas, self._holds = formulas, holds
        self._atoms_of: dict[V, set[Any]] = {}
        self._alone: dict[Any, int] = {}  # bits of the formulas that a listed atom makes true by itself
        self._users: dict[Any, list[int]] = {}  # numbers of other formulas that have only listed atoms, this one too
        self._open: list[int] = []  # numbers of the other formulas
        self._base = 0
        for number, formula in enumerate(formulas):
            found = atoms(formula)
            if any(listed(atom) is None for atom in found):
                self._open.append(number)
                continue
            decisive = set(formula.parts) if isinstance(formula, Or) else {formula}
            for atom in found:
                if atom in decisive:
                    self._alone[atom] = self._alone.get(atom, 0) | 1 << number
                else:
                    self._users.setdefault(atom, []).append(number)
            if evaluate(formula, lambda _: False):
                self._base |= 1 << number
        for atom in dict.fromkeys(atom for formula in formulas for atom in atoms(formula)):
            for value in listed(atom) or ():
                self._atoms_of.setdefault(value, set()).add(atom)
        self._is_open = {atom: listed(atom) is None for number in self._open for atom in atoms(formulas[number])}

    @property
    def values(self) -> Collection[V]:
        """The values that some atom lists."""
        return self._atoms_of.keys()

    def bits(self, value: V) -> int:
        """Return the truths of the formulas for a value. Unknown ones count as False."""
        mine = self._atoms_of.get(value, set())
        return self._with(mine, lambda atom: self._holds(atom, value) if self._is_open[atom] else atom in mine)

    def bits_elsewhere(self, truth: Callable[[Any], bool | None]) -> int:
        """Return the truths for a value that no atom lists, given the truths of the open atoms."""
        return self._with(set(), lambda atom: truth(atom) if self._is_open[atom] else False)

    def _with(self, mine: set[Any], truth: Callable[[Any], bool | None]) -> int:
        alone = 0
        for atom in mine:
            alone |= self._alone.get(atom, 0)
        bits = self._base | alone
        for number in {number for atom in mine for number in self._users.get(atom, ())}:
            if not alone >> number & 1:
                bits &= ~(1 << number)
                if evaluate(self._formulas[number], mine.__contains__):
                    bits |= 1 << number
        for number in self._open:
            if evaluate(self._formulas[number], truth):
                bits |= 1 << number
        return bits
