"""Boolean formulas over hashable atoms: True, False, an atom, or a compound (`And`, `Or`, `ExactlyOne`, `Not`).

Build compounds with `conj`, `disj`, `one` and `neg`, which simplify and intern them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar
from weakref import ref

T = TypeVar("T")
V = TypeVar("V", bound=Hashable)
Formula = Any  # bool | And | Or | ExactlyOne | Not | atom
Truths = tuple[bool, ...]  # of several formulas, in their order
FEW_RESULTS = 8  # of one value, for which a frame makes room at first


class _Compound:
    """An interned formula: equal ones are the same object, so comparing and hashing is by identity.

    `parts` keep the order in which they were first combined, because an order by hash would differ between processes.
    `part_set` is the same as a set; it decides equality.
    """

    __slots__ = ("__weakref__", "part_set", "parts")
    parts: tuple[Formula, ...]
    part_set: frozenset[Formula]
    # Weak references by hash. Atoms refer to their compiler, which refers to its formulas, so strong references here
    # would keep every compiler alive.
    _interned: ClassVar[dict[int, tuple[_InternedReference, ...]]] = {}

    def __new__(cls, parts: tuple[Formula, ...]) -> Self:
        part_set = frozenset(parts)
        known, number = _Compound._interned, hash((cls, part_set))
        for reference in known.get(number, ()):
            found = reference()
            if type(found) is cls and found.part_set == part_set:
                return found
        made = object.__new__(cls)
        made.parts, made.part_set = parts, part_set
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


def _forget(reference: ref[_Compound]) -> None:
    assert isinstance(reference, _InternedReference)
    known = _Compound._interned
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
        if isinstance(part, And):
            kept.update(dict.fromkeys(part.parts))
        else:
            kept[part] = None
    if len(kept) > 1 and any(isinstance(part, Not) and part.part in kept for part in kept):
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


def substitute(formula: Formula, value: Callable[[Any], Formula]) -> Formula:
    """Replace each atom by `value(atom)` and simplify."""
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
    # Atoms and constants are read at once; compounds of them are evaluated.
    columns = [count + (f is True) if isinstance(f, bool) else index.get(f, count) for f in formulas]
    compounds = [number for number, f in enumerate(formulas) if isinstance(f, _Compound)]

    def read(truths: Truths) -> Truths:
        padded = (*truths[:count], False, True)
        found = [padded[column] for column in columns]
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


def bits_of(truths: Truths) -> int:
    """Return truths as bits, bit n for the n-th formula."""
    return sum(1 << number for number, truth in enumerate(truths) if truth)


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
