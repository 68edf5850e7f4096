"""Boolean formulas over hashable atoms, as values: True, False, an atom, or one of the classes here.

Build them with the functions, which keep one form for what is equal at a glance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self, TypeVar
from weakref import ref

T = TypeVar("T")
Formula = Any  # bool | And | Or | One | Not | an atom


class _Compound:
    """Equal formulas of one kind are one object, so that they are compared and hashed by identity.

    `parts` are in the order in which they first came together: an order of hashes would differ from process to process.
    """

    __slots__ = ("__weakref__", "parts", "together")
    parts: tuple[Formula, ...]
    together: frozenset[Formula]
    # By hash, and without a hold on the parts: these know their schema, which knows its formulas, so whatever held the
    # parts here would never go.
    _known: ClassVar[dict[int, tuple[_Reference, ...]]] = {}

    def __new__(cls, parts: tuple[Formula, ...]) -> Self:
        together = frozenset(parts)
        known, number = _Compound._known, hash((cls, together))
        for reference in known.get(number, ()):
            found = reference()
            if type(found) is cls and found.together == together:
                return found
        made = object.__new__(cls)
        made.parts, made.together = parts, together
        known[number] = (*known.get(number, ()), _Reference(made, number))
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.parts}"


class _Reference(ref["_Compound"]):
    """To a formula, by its hash."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, formula: _Compound, number: int) -> Self:
        made = super().__new__(cls, formula, _forget)
        made.number = number
        return made


def _forget(reference: ref[_Compound]) -> None:
    assert isinstance(reference, _Reference)
    known = _Compound._known
    left = tuple(other for other in known.get(reference.number, ()) if other is not reference)
    if left:
        known[reference.number] = left
    else:
        known.pop(reference.number, None)


class And(_Compound):
    __slots__ = ()


class Or(_Compound):
    __slots__ = ()


class ExactlyOne(_Compound):
    """Exactly one of the parts."""

    __slots__ = ()


class Not(_Compound):
    """Of an atom or a One, which is its only part."""

    __slots__ = ()

    @property
    def part(self) -> Formula:
        (part,) = self.parts
        return part


def conj(parts: Iterable[Formula]) -> Formula:
    kept: dict[Formula, None] = {}
    for part in parts:
        if part is False:
            return False
        if part is True:
            continue
        if isinstance(part, And):
            kept.update(dict.fromkeys(part.parts))
        else:
            kept[part] = None
    if len(kept) > 1 and any(isinstance(part, Not) and part.part in kept for part in kept):
        return False
    return _joined(And, kept, True)


def disj(parts: Iterable[Formula]) -> Formula:
    kept: dict[Formula, None] = {}
    for part in parts:
        if part is True:
            return True
        if part is False:
            continue
        if isinstance(part, Or):
            kept.update(dict.fromkeys(part.parts))
        else:
            kept[part] = None
    if len(kept) > 1 and any(isinstance(part, Not) and part.part in kept for part in kept):
        return True
    return _joined(Or, kept, False)


def _joined(kind: type[And] | type[Or], kept: dict[Formula, None], empty: bool) -> Formula:
    if not kept:
        return empty
    return next(iter(kept)) if len(kept) == 1 else kind(tuple(kept))


def one(parts: Iterable[Formula]) -> Formula:
    """Exactly one is true."""
    counts: dict[Formula, int] = {}
    num_true = 0
    for part in parts:
        if part is True:
            num_true += 1
        elif part is not False:
            counts[part] = counts.get(part, 0) + 1
    if num_true > 1:
        return False
    if num_true:
        return conj(neg(part) for part in counts)
    single = [part for part, count in counts.items() if count == 1]
    double = [neg(part) for part, count in counts.items() if count > 1]
    if not single:
        return False
    return conj([*double, single[0] if len(single) == 1 else ExactlyOne(tuple(single))])


def neg(part: Formula) -> Formula:
    if part is True or part is False:
        return not part
    if isinstance(part, Not):
        return part.part
    if isinstance(part, And):
        return disj(neg(inner) for inner in part.parts)
    if isinstance(part, Or):
        return conj(neg(inner) for inner in part.parts)
    return Not((part,))


def substitute(formula: Formula, value: Callable[[Any], Formula]) -> Formula:
    """With another formula in place of each atom."""
    if formula is True or formula is False:
        return formula
    if isinstance(formula, And):
        return conj(substitute(part, value) for part in formula.parts)
    if isinstance(formula, Or):
        return disj(substitute(part, value) for part in formula.parts)
    if isinstance(formula, ExactlyOne):
        return one(substitute(part, value) for part in formula.parts)
    if isinstance(formula, Not):
        return neg(substitute(formula.part, value))
    return value(formula)


def evaluate(formula: Formula, value: Callable[[Any], bool | None]) -> bool | None:
    """In Kleene's logic: None is a truth that is not known yet."""
    if formula is True or formula is False:
        return bool(formula)
    if isinstance(formula, And | Or):
        ends = isinstance(formula, Or)  # the truth of one part that settles it
        unknown = False
        for part in formula.parts:
            inner = evaluate(part, value)
            if inner is ends:
                return ends
            unknown |= inner is None
        return None if unknown else not ends
    if isinstance(formula, ExactlyOne):
        known = [evaluate(part, value) for part in formula.parts]
        if known.count(True) > 1:
            return False
        return None if None in known else known.count(True) == 1
    if isinstance(formula, Not):
        inner = evaluate(formula.part, value)
        return None if inner is None else not inner
    return value(formula)


def optimistic(formula: Formula, value: Callable[[Any], Formula], settled: Callable[[Any], bool]) -> Formula:
    """What must hold now so that the formula may still come true, when an atom stays possible only if `value` of it
    holds, and may fail later unless it is `settled`."""
    if formula is True or formula is False:
        return formula
    if isinstance(formula, And):
        return conj(optimistic(part, value, settled) for part in formula.parts)
    if isinstance(formula, Or | ExactlyOne):
        return disj(optimistic(part, value, settled) for part in formula.parts)
    if isinstance(formula, Not):
        inner = formula.part
        if isinstance(inner, ExactlyOne) or not settled(inner):
            return True
        return neg(value(inner))
    return value(formula)


def forced(formula: Formula, value: Callable[[Any], bool | None], wanted: bool = True) -> Iterator[tuple[Any, bool]]:
    """Atoms of which the truth is not known yet, but which must have this one so that the formula has the wanted one.
    Some of them: those that follow step by step (unit propagation)."""
    if isinstance(formula, Not):
        yield from forced(formula.part, value, not wanted)
    elif isinstance(formula, And | Or):
        if isinstance(formula, And) is wanted:
            for part in formula.parts:
                yield from forced(part, value, wanted)
        else:
            left = [part for part in formula.parts if evaluate(part, value) is not (not wanted)]
            if len(left) == 1:
                yield from forced(left[0], value, wanted)
    elif isinstance(formula, ExactlyOne):
        known = {part: evaluate(part, value) for part in formula.parts} if wanted else {}
        num_true, unknown = list(known.values()).count(True), [part for part, truth in known.items() if truth is None]
        if num_true or len(unknown) == 1:
            for part in unknown:
                yield from forced(part, value, not num_true)
    elif formula is not True and formula is not False and value(formula) is None:
        yield formula, wanted


def atoms(formula: Formula) -> list[Any]:
    """All different ones."""
    found: dict[Any, None] = {}
    todo = [formula]
    while todo:
        part = todo.pop()
        if isinstance(part, And | Or | ExactlyOne):
            todo.extend(part.parts)
        elif isinstance(part, Not):
            todo.append(part.part)
        elif part is not True and part is not False:
            found[part] = None
    return list(found)


def has_negation(formula: Formula) -> bool:
    if isinstance(formula, And | Or):
        return any(has_negation(part) for part in formula.parts)
    return isinstance(formula, ExactlyOne | Not)


def candidates(formula: Formula, listed: Callable[[Formula], frozenset[T] | None]) -> frozenset[T] | None:
    """The only values that can make it true; None when they are not listed. `listed` says it of an atom."""
    if formula is False:
        return frozenset()
    if isinstance(formula, And):
        known = [found for part in formula.parts if (found := candidates(part, listed)) is not None]
        return min(known, key=len, default=None)
    if isinstance(formula, Or | ExactlyOne):
        together: set[T] = set()
        for part in formula.parts:
            values = candidates(part, listed)
            if values is None:
                return None
            together |= values
        return frozenset(together)
    return listed(formula)
