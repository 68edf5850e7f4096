"""Boolean formulas over hashable atoms: True, False, an atom, or a compound (`And`, `Or`, `ExactlyOne`, `Not`).

Build compounds with `conj`, `disj`, `one` and `neg`, which simplify and intern them. A formula that grows too large
raises GrammarError, so that every function here takes a bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Self, TypeVar
from weakref import ref

from ..budget import INTERPRETED, charge
from ..errors import GrammarError

T = TypeVar("T")
Formula = Any  # bool | And | Or | ExactlyOne | Not | atom
Truths = tuple[bool, ...]  # of several formulas, in their order
MAX_SIZE = 200_000  # atoms and connectives of one formula, those that it shares counted at every place
FEW_RESULTS = 8  # of one value, for which a frame makes room at first


class _Compound:
    """An interned formula: equal ones are the same object, so comparing and hashing is by identity.

    `parts` keep the order in which they were first combined, because an order by hash would differ between processes.
    `part_set` is the same as a set; it decides equality. `size` is the number of atoms and connectives.
    """

    __slots__ = ("__weakref__", "part_set", "parts", "size")
    parts: tuple[Formula, ...]
    part_set: frozenset[Formula]
    size: int
    # Weak references by hash. Atoms refer to their compiler, which refers to its formulas, so strong references here
    # would keep every compiler alive.
    _interned: ClassVar[dict[int, tuple[_InternedReference, ...]]] = {}

    def __new__(cls, parts: tuple[Formula, ...]) -> Self:
        charge(INTERPRETED * len(parts))
        part_set = frozenset(parts)
        known, number = _Compound._interned, hash((cls, part_set))
        for reference in known.get(number, ()):
            found = reference()
            if type(found) is cls and found.part_set == part_set:
                return found
        size = 1 + sum(size_of(part) for part in parts)
        if size > MAX_SIZE:
            raise GrammarError(f"alternatives and conditions of one value have more than {MAX_SIZE:,} combinations")
        made = object.__new__(cls)
        made.parts, made.part_set, made.size = parts, part_set, size
        known[number] = (*known.get(number, ()), _InternedReference(made, number))
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.parts}"


class _InternedReference(ref["_Compound"]):
    """Weak reference to an interned formula, with its hash `number`."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, formula: _Compound, number: int) -> Self:
        made = super().__new__(cls, formula, _forget)
        made.number = number
        return made


def _forget(reference: Any, known: dict[int, tuple[_InternedReference, ...]] = _Compound._interned) -> None:
    # `known` is a default, since at the interpreter's exit the module's names are gone before its formulas.
    left = tuple(other for other in known.get(reference.number, ()) if other is not reference)
    if left:
        known[reference.number] = left
    else:
        known.pop(reference.number, None)


class And(_Compound):
    """Conjunction."""

    __slots__ = ()


class Or(_Compound):
    """Disjunction."""

    __slots__ = ()


class ExactlyOne(_Compound):
    """Formula that is true if exactly one of its parts is."""

    __slots__ = ()


class Not(_Compound):
    """Negation of an atom or of an `ExactlyOne`."""

    __slots__ = ()

    @property
    def part(self) -> Formula:
        (part,) = self.parts
        return part


_NO_ATOMS = frozenset((bool, And, Or, ExactlyOne, Not))  # types


def conj(parts: Iterable[Formula]) -> Formula:
    """Return the conjunction of formulas."""
    kept: dict[Formula, None] = {}
    for part in parts:
        if part is False:
            return False
        if part is True:
            continue
        if type(part) is And:
            kept.update(dict.fromkeys(part.parts))
        else:
            kept[part] = None
    if len(kept) > 1 and _has_contradiction(kept):
        return False
    return _joined(And, kept, True)


def disj(parts: Iterable[Formula]) -> Formula:
    """Return the disjunction of formulas."""
    kept: dict[Formula, None] = {}
    for part in parts:
        if part is True:
            return True
        if part is False:
            continue
        if type(part) is Or:
            kept.update(dict.fromkeys(part.parts))
        else:
            kept[part] = None
    if len(kept) > 1 and _has_contradiction(kept):
        return True
    return _joined(Or, kept, False)


def _has_contradiction(kept: dict[Formula, None]) -> bool:
    """Return True if some part is the negation of another."""
    return not kept.keys().isdisjoint([part.parts[0] for part in kept if type(part) is Not])


def _joined(kind: type[And] | type[Or], kept: dict[Formula, None], empty: bool) -> Formula:
    if not kept:
        return empty
    return next(iter(kept)) if len(kept) == 1 else kind(tuple(kept))


def one(parts: Iterable[Formula]) -> Formula:
    """Return the formula that is true if exactly one part is."""
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
    """Return the negation of a formula, pushed down to atoms and `ExactlyOne`s."""
    if part is True or part is False:
        return not part
    if isinstance(part, Not):
        return part.part
    if isinstance(part, And):
        return disj(neg(inner) for inner in part.parts)
    if isinstance(part, Or):
        return conj(neg(inner) for inner in part.parts)
    return Not((part,))


def size_of(formula: Formula) -> int:
    """Return the number of atoms and connectives of a formula."""
    return formula.size if isinstance(formula, _Compound) else 1


def substitute(formula: Formula, value: Callable[[Any], Formula]) -> Formula:
    """Replace each atom by `value(atom)` and simplify."""
    charge(INTERPRETED * size_of(formula))
    return _substituted(formula, value)


def _substituted(formula: Formula, value: Callable[[Any], Formula]) -> Formula:
    if type(formula) not in _NO_ATOMS:
        return value(formula)
    if formula is True or formula is False:
        return formula
    if isinstance(formula, And):
        return conj(_substituted(part, value) for part in formula.parts)
    if isinstance(formula, Or):
        return disj(_substituted(part, value) for part in formula.parts)
    if isinstance(formula, ExactlyOne):
        return one(_substituted(part, value) for part in formula.parts)
    return neg(_substituted(formula.part, value))


def evaluate(formula: Formula, value: Callable[[Any], bool | None]) -> bool | None:
    """Evaluate a formula in Kleene's three-valued logic, in which None means unknown."""
    kind = type(formula)
    if kind is bool:
        return bool(formula)
    if kind is And or kind is Or:
        decisive = kind is Or  # a part with this truth decides
        unknown = False
        for part in formula.parts:
            inner = evaluate(part, value) if type(part) in _NO_ATOMS else value(part)
            if inner is decisive:
                return decisive
            unknown |= inner is None
        return None if unknown else not decisive
    if kind is ExactlyOne:
        found = unknown = False
        for part in formula.parts:
            inner = evaluate(part, value) if type(part) in _NO_ATOMS else value(part)
            if inner and found:
                return False
            found |= inner is True
            unknown |= inner is None
        return None if unknown else found
    if kind is Not:
        inner = evaluate(formula.part, value)
        return None if inner is None else not inner
    return value(formula)


def reader(formulas: Sequence[Formula], parts: Sequence[Any]) -> Callable[[Truths], Truths]:
    """Return the function from the truths of parts to those of formulas over them."""
    index = {part: number for number, part in enumerate(parts)}
    count = len(index)
    # Atoms and constants are read at once, as are conjunctions and disjunctions of atoms; the others are evaluated.
    columns = [count + (f is True) if isinstance(f, bool) else index.get(f, count) for f in formulas]
    flat: list[tuple[int, Callable[[Truths], bool], Callable[[Truths], Truths]]] = []
    compounds: list[int] = []
    for number, f in enumerate(formulas):
        if isinstance(f, And | Or) and all(part in index for part in f.parts):
            flat.append((number, any if isinstance(f, Or) else all, itemgetter(*(index[part] for part in f.parts))))
        elif isinstance(f, _Compound):
            compounds.append(number)

    def read(truths: Truths) -> Truths:
        padded = (*truths[:count], False, True)
        found = [padded[column] for column in columns]
        for number, join, some in flat:
            found[number] = join(some(truths))
        for number in compounds:
            found[number] = bool(evaluate(formulas[number], lambda part: truths[index[part]]))
        return tuple(found)

    return read


def bits_reader(formulas: Sequence[Formula], parts: Sequence[Any]) -> Callable[[int], int]:
    """Return the function from the truths of parts, as bits, to those of formulas over them.

    Formulas that are parts in the order of the parts are read at once, alternatives of parts by one comparison.
    """
    bit_of = {part: 1 << number for number, part in enumerate(parts)}
    constant = 0
    at_distance: dict[int, int] = {}  # bits of the formulas that are parts, by how far the parts' bits are above
    alternatives: list[
        tuple[int, int, bool]
    ] = []  # bits of formulas, and of their parts; exactly one must hold, or any
    others: list[tuple[int, Formula]] = []
    for number, formula in enumerate(formulas):
        bit = 1 << number
        if isinstance(formula, bool):
            constant |= bit if formula else 0
        elif formula in bit_of:
            distance = bit_of[formula].bit_length() - bit.bit_length()
            at_distance[distance] = at_distance.get(distance, 0) | bit
        elif isinstance(formula, Or | ExactlyOne) and all(part in bit_of for part in formula.parts):
            some = sum(bit_of[part] for part in formula.parts)
            alternatives.append((bit, some, isinstance(formula, ExactlyOne)))
        else:
            others.append((bit, formula))

    def read(truths: int) -> int:
        found = constant
        for distance, bits in at_distance.items():
            found |= bits & (truths >> distance if distance >= 0 else truths << -distance)
        for bit, some, exactly_one in alternatives:
            held = truths & some
            if held and not (exactly_one and held & held - 1):
                found |= bit
        for bit, formula in others:
            if evaluate(formula, lambda part: bool(truths & bit_of[part])):
                found |= bit
        return found

    return read


def optimistic(formula: Formula, value: Callable[[Any], Formula], settled: Callable[[Any], bool]) -> Formula:
    """Return a necessary condition, now, for the formula to become true at the end.

    An atom can end up true only if `value(atom)` holds now. It can still become false later unless `settled(atom)`.
    """
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
    """Yield unknown atoms with the truths that they must have for the formula to be `wanted`, by unit propagation."""
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


def implied(formula: Formula, value: Callable[[Any], bool | None]) -> dict[Any, bool] | None:
    """Return the truths that unknown atoms must have for the formula to hold, by unit propagation; None if it cannot.

    Truths that follow from each other are found as long as there are any.
    """
    found: dict[Any, bool] = {}

    def known(atom: Any) -> bool | None:
        return found[atom] if atom in found else value(atom)

    num_before = -1
    while num_before < len(found):
        num_before = len(found)
        if evaluate(formula, known) is False:
            return None
        for atom, truth in forced(formula, known):
            if found.setdefault(atom, truth) is not truth:
                return None
    return found


def atoms(formula: Formula) -> list[Any]:
    """Return the distinct atoms of a formula."""
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
    """Return True if the formula is not monotone: it holds a `Not` or an `ExactlyOne`."""
    if isinstance(formula, And | Or):
        return any(has_negation(part) for part in formula.parts)
    return isinstance(formula, ExactlyOne | Not)


def candidates(formula: Formula, listed: Callable[[Formula], frozenset[T] | None]) -> frozenset[T] | None:
    """Return the only values that can make a formula true, or None if they are not finite.

    `listed(atom)` gives the values of an atom, or None.
    """
    if formula is False:
        return frozenset()
    if isinstance(formula, And):
        known = [found for part in formula.parts if (found := candidates(part, listed)) is not None]
        return min(known, key=len, default=None)
    if isinstance(formula, Or | ExactlyOne):
        values_of_parts: set[T] = set()
        for part in formula.parts:
            found = candidates(part, listed)
            if found is None:
                return None
            values_of_parts |= found
        return frozenset(values_of_parts)
    return listed(formula)


# Truths of many formulas, of which most fail.


_DIGITS = b"01" + bytes(254)  # of truths


def bits_of(truths: Truths) -> int:
    """Return truths as bits, bit n for the n-th formula."""
    return int(bytes(truths).translate(_DIGITS)[::-1] or b"0", 2)


def truths_of(bits: int, number: int) -> Truths:
    """Return so many truths that are given as bits."""
    return tuple(digit == "1" for digit in reversed(f"{bits:0{number}b}")) if number else ()


class ResultCodes:
    """Numbers for the truths of tracked goals. A value's last state pops with such a number.

    Truths are kept as bits, because many goals may be tracked and most of them fail. `likely` is the number of results
    for which a frame makes room at first.
    """

    def __init__(self, num_tracked: int) -> None:
        self.num_tracked = num_tracked
        self.likely: int = min(1 << num_tracked, FEW_RESULTS)
        self._truths: list[int] = []
        self._numbers: dict[int, int] = {}

    def __call__(self, truths: Truths) -> int:
        """Return the number of a combination."""
        return self.of_bits(bits_of(truths))

    def of_bits(self, truths: int) -> int:
        """Return the number of a combination that is given as bits."""
        number = self._numbers.get(truths)
        if number is None:
            number = self._numbers[truths] = len(self._truths)
            self._truths.append(truths)
        return number

    def truths(self, number: int) -> Truths:
        """Return the combination with this number."""
        return truths_of(self._truths[number], self.num_tracked)
