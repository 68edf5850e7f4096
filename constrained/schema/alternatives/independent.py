"""Search for the end of an object whose constraints fall apart: into groups that share no names of members.

Each group is searched by itself. So the work grows with the largest group, not with all constraints together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from ..end_search import ValueGoal
from ..formula import And, Formula, atoms, conj
from ..objects.name_states import NameClass, NameKind
from ..objects.object_context import ObjectContext, OpenGoals
from ..structure_parts import ObjectPart
from .object_search import ObjectEndSearch, ObjectMembers


@dataclass
class NameGroup:
    """Constraints, and the names on which they depend, as bits."""

    clauses: list[Formula]
    names: int


def object_search(context: ObjectContext) -> ObjectEndSearch:
    """Return the search for the end of an object, by groups of constraints if there are several."""
    groups = _groups(context)
    return ObjectEndSearch(context) if len(groups) < 2 else IndependentSearches(context, groups)


def _groups(context: ObjectContext) -> list[NameGroup]:
    """Return groups of constraints that share no names. What one part alone says of each name is in all groups."""
    formula = context.formulas[0]
    if context.plain or context.in_order or not isinstance(formula, And):
        return []
    everywhere: list[Formula] = []
    apart: list[NameGroup] = []
    for clause in formula.parts:
        if isinstance(clause, ObjectPart) and not clause.least and clause.most is None:
            everywhere.append(clause)
            apart += [NameGroup([], name | others) for name, others in context.requires[context.index[clause]]]
            continue
        names = 0
        for part in atoms(clause):
            constrained = context.constrained_names(context.index[part])
            if constrained is None:
                return []  # it depends on all names
            names |= constrained
        apart.append(NameGroup([clause], names))
    group_of: dict[int, NameGroup] = {}  # by the bit of a name
    unnamed: list[NameGroup] = []
    for new in apart:
        bits = list(_single_bits(new.names))
        together = list({id(group): group for bit in bits if (group := group_of.get(bit)) is not None}.values())
        merged = max(together, key=lambda group: len(group.clauses), default=NameGroup([], 0))
        for group in together:
            if group is not merged:
                merged.clauses += group.clauses
                merged.names |= group.names
                group_of |= dict.fromkeys(_single_bits(group.names), merged)
        merged.clauses += new.clauses
        merged.names |= new.names
        group_of |= dict.fromkeys(bits, merged)
        if not bits:
            unnamed.append(merged)
    groups = [*{id(group): group for group in group_of.values()}.values(), *unnamed]
    taken = sum(group_of)
    rest = NameGroup([], ((1 << len(context.names.names)) - 1) & ~taken)
    return [NameGroup([*everywhere, *group.clauses], group.names) for group in (rest, *groups)]


def _single_bits(bits: int) -> Iterator[int]:
    while bits:
        bit = bits & -bits
        bits ^= bit
        yield bit


class GroupSearch(ObjectEndSearch):
    """Searches among the members of one group, as if there were no others."""

    def __init__(self, context: ObjectContext, group: NameGroup, has_other_names: bool) -> None:
        super().__init__(context, conj(group.clauses), group.names)
        self._has_other_names = has_other_names
        self._next: dict[Hashable, tuple[int, frozenset[NameKind]]] = {}

    def _key(self, state: ObjectMembers) -> Hashable:
        return state.alive & self.parts, state.seen & self.names

    def _is_complete(self, state: ObjectMembers) -> bool:
        return self.holds(state)

    def _open_goals(self, state: ObjectMembers, name: NameClass) -> tuple[int, OpenGoals]:
        bit = self.context.names.bit(name)
        return self.context.alive_goals(state.alive_after(name, bit, state.alive & self.parts), name)

    def _candidates(self, state: ObjectMembers, wanted: int) -> Iterable[NameClass]:
        named = self.context.names.named
        left = self.names & ~state.seen
        for bits in (left & wanted, left & ~wanted):
            yield from (named[bit.bit_length() - 1] for bit in _single_bits(bits))
        if self._has_other_names:
            yield from (self.context.names.other(kind) for kind in self.context.names.kinds)

    def next_names(self, state: ObjectMembers) -> tuple[int, frozenset[NameKind]]:
        """Return the names of this group that may come next, and the kinds of other names."""
        key = self._key(state)
        found = self._next.get(key)
        if found is None:
            names = [name for name in self._candidates(state, 0) if self.may_come(state, name)]
            kinds = frozenset(name.matched for name in names if name.number is None)
            found = sum(self.context.names.bit(name) for name in names), kinds
            if self.context.compiler.is_idle:
                self._next[key] = found
        return found


class IndependentSearches(ObjectEndSearch):
    """The searches of all groups of one object."""

    def __init__(self, context: ObjectContext, groups: list[NameGroup]) -> None:
        super().__init__(context)
        self._searches = [GroupSearch(context, group, number == 0) for number, group in enumerate(groups)]
        self.num_together = max(search.num_together for search in self._searches)
        self._number_of: dict[int, GroupSearch] = {}
        for search in self._searches[1:]:
            self._number_of |= dict.fromkeys(_single_bits(search.names), search)

    def can_end(self, state: ObjectMembers) -> bool:
        return all(search.can_end(state) for search in self._searches)

    def can_end_after(self, state: ObjectMembers, step: ObjectMembers) -> bool:
        return self.can_end(step)

    def _search_of(self, name: NameClass) -> GroupSearch:
        return self._number_of.get(self.context.names.bit(name), self._searches[0])

    def next_names(self, state: ObjectMembers) -> tuple[int, frozenset[NameKind]]:
        found = [search.next_names(state) for search in self._searches]
        return sum(names for names, _ in found), found[0][1]

    def may_come(self, state: ObjectMembers, name: NameClass) -> bool:
        return self._search_of(name).may_come(state, name)

    def value(self, state: ObjectMembers, name: NameClass) -> ValueGoal:
        return self._search_of(name).value(state, name)
