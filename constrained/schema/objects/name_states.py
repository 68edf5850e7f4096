"""Classes of the names of an object's members, and the states that read a name between its quotes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...automaton.actions import QUOTE
from ...automaton.automaton import Automaton
from ...automaton.blocks import Block
from ...automaton.literals import literal_states, without_text
from ...budget import CompileBudget
from ...errors import GrammarError
from ...record import record
from ...regex.counted_chars import NEVER
from ...regex.dfa import DEAD, START, Dfa
from ..formula import Formula, Truths, atoms, evaluate, has_negation
from ..interface import SchemaCompiler
from ..strings.string_dfas import (
    any_string,
    combinations,
    labelled_product,
    live_states,
    looping_states,
    pattern_chars,
    pattern_dfa,
    plain_states,
    string_content_dfa,
)
from ..strings.string_parts import (
    StringPart,
    char_product,
    chars_of,
    few_texts,
    labelled_strings,
    part_combinations,
    spellings,
    string_dfa,
)
from ..strings.string_states import counted_block, is_undecided
from ..structure_parts import ObjectPart


@dataclass(frozen=True)
class UndecidedFormat:
    """Test for names of which it is unknown whether a part holds, because of its n-th format."""

    part: StringPart
    number: int


NameKind = frozenset[str | StringPart | UndecidedFormat]  # the patterns and other tests that a name passes
MAX_NAME_KINDS = 1024  # of names that are not listed
MAX_LISTED_NAMES = 64  # names of a kind that are listed
MAX_NEEDED_NAMES = 1024  # names of a kind that are listed because a minimum number of members may need them


@record(eq=False)
class NameClass:
    """A listed name by its number, or all other names of a kind (`number` None). Compared by identity."""

    number: int | None
    matched: NameKind = frozenset()


class MemberNames:
    """Classes of the names of an object's members, and the states that read a name.

    Names that the parts mention are classes of their own; all others are classed by the tests that they pass. Sets of
    listed names are bit sets by their index in `names`.
    """

    def __init__(self, compiler: SchemaCompiler, parts: tuple[ObjectPart, ...], list_names: bool) -> None:
        """Class the names of parts. `list_names`: kinds of few names are listed as if they were mentioned.

        These are more if so many members are needed that the names may run out.
        """
        num_needed = 2 * max((part.least for part in parts), default=0)
        self._most_listed = min(max(MAX_LISTED_NAMES, num_needed), MAX_NEEDED_NAMES)
        self.compiler = compiler
        self.names = list(dict.fromkeys(name for part in parts for name in part.names))
        self.num_mentioned = len(self.names)
        # The parts of `propertyNames` are tests of names, as patterns are.
        found: dict[str | StringPart | UndecidedFormat, None] = {}
        for part in parts:
            found |= dict.fromkeys(part.patterns)
            for goal in part.name_goals:
                for atom in atoms(compiler.typed(goal, "string")):
                    assert isinstance(atom, StringPart)
                    found[atom] = None
                    if has_negation(compiler.typed(goal, "string")):
                        found |= {UndecidedFormat(atom, number): None for number in range(len(atom.undecided()))}
        self._tests = tuple(found)
        # The tests as parts, by which characters are counted; None if states stand for all that is to be known.
        self._parts: tuple[StringPart, ...] | None = None
        if any(isinstance(test, StringPart) and (test.least or test.most is not None) for test in self._tests):
            self._parts = self._as_parts()
        self.refused: GrammarError | None = None  # why names that are not listed are left out
        self._listed: set[NameKind] = set()
        if list_names and self._tests:
            self._list_names()
        self._number_of = {name: number for number, name in enumerate(self.names)}
        self.named = [NameClass(number) for number in range(len(self.names))]
        self.classes: list[NameClass] = [NameClass(None), *self.named]
        self.kinds: list[NameKind] = [frozenset()] if not self._tests else []
        self._class_of_kind: dict[NameKind, int] = {frozenset(): 0}
        self._few: dict[NameKind, list[str] | None] = {}
        self._goals: dict[tuple[ObjectPart, NameClass], Formula] = {}
        compiler.caches.append(self._goals)
        # Listed names with several spellings are tested for as texts, if other names may come.
        self._spellings = {name: spellings(name) for name in self.names}
        self._tested_names = [name for name in self.names if len(self._spellings[name]) != 1 or "/" in name]
        self._tested_bits = self.bits(self._tested_names)
        if self._tests and self.refused is None:
            self._find_kinds()
        self.num_classes = len(self.classes)

    def _as_parts(self) -> tuple[StringPart, ...] | None:
        """Return the tests as parts of strings, or None if some are of formats that are known in part."""
        parts: list[StringPart] = []
        for test in self._tests:
            if isinstance(test, UndecidedFormat):
                return None
            parts.append(StringPart(patterns=frozenset([test])) if isinstance(test, str) else test)
        return tuple(parts)

    def _list_names(self) -> None:
        tests = [test for test in self._tests if not isinstance(test, UndecidedFormat)]
        budget = CompileBudget()
        try:
            chars = [pattern_chars(test) if isinstance(test, str) else chars_of(test) for test in tests]
            found = char_product(chars, budget)
        except GrammarError as error:
            self._refuse(error)
            return
        for passed in found.truths:
            texts = few_texts(found.chars(passed), self._most_listed)
            if texts is not None:
                self._listed.add(frozenset(test for test, accepted in zip(tests, passed, strict=True) if accepted))
                self.names = list(dict.fromkeys((*self.names, *texts)))

    def can_be_spelled(self, number: int) -> bool:
        """Return False for a name that JSON cannot spell."""
        return bool(self._spellings[self.names[number]])

    def bits(self, names: Iterable[str]) -> int:
        """Return the bit set of listed names."""
        return sum(1 << self._number_of[name] for name in dict.fromkeys(names))

    def bit(self, name_class: NameClass) -> int:
        """Return the bit of a listed name, 0 for other names."""
        return 0 if name_class.number is None else 1 << name_class.number

    def other(self, kind: NameKind) -> NameClass:
        """Return the class of the names of a kind that are not listed."""
        return self.classes[self._class_of_kind[kind]]

    def goal(self, part: ObjectPart, name_class: NameClass) -> Formula:
        """Return the part's goal of the value under a name: False if the name is not allowed."""
        key = (part, name_class)
        found = self._goals.get(key)
        if found is None:
            found = self._goals[key] = self._make_goal(part, name_class)
        return found

    def _make_goal(self, part: ObjectPart, name_class: NameClass) -> Formula:
        if name_class.number is not None and not self._tests:
            return part.goal_under(self.compiler, self.names[name_class.number])
        if any(isinstance(test, UndecidedFormat) for test in name_class.matched):
            return False
        if name_class.number is not None:
            name = self.names[name_class.number]
            if any(is_undecided((self.compiler.typed(goal, "string"),), name) for goal in part.name_goals):
                return False
            return part.goal_under(self.compiler, name)
        for goal in part.name_goals:
            if not evaluate(self.compiler.typed(goal, "string"), lambda atom: atom in name_class.matched):
                return False
        return part.goal(None, name_class.matched)

    def _find_kinds(self) -> None:
        """Find the combinations of tests that names can pass."""
        try:
            found = self._combinations()
            if len(found) > MAX_NAME_KINDS:
                raise GrammarError(f"the patterns of names overlap in more than {MAX_NAME_KINDS} ways")
        except GrammarError as error:
            self._refuse(error)
            return
        for accepted in found:
            kind = frozenset(test for test, passed in zip(self._tests, accepted, strict=True) if passed)
            if frozenset(test for test in kind if not isinstance(test, UndecidedFormat)) in self._listed:
                continue
            self.kinds.append(kind)
            if kind not in self._class_of_kind:
                self._class_of_kind[kind] = len(self.classes)
                self.classes.append(NameClass(None, kind))

    def _refuse(self, error: GrammarError) -> None:
        """Allow only listed names, for this reason."""
        self.compiler.refused.add(error)
        self.refused = error

    def _combinations(self) -> Collection[Truths]:
        """Return the combinations of tests that names pass. Raises GrammarError beyond the limits."""
        if self._parts is None:
            try:
                return combinations(any_string(), [_test_dfa(test) for test in self._tests])
            except GrammarError:
                self._parts = self._as_parts()
                if self._parts is None:
                    raise
        return tuple(part_combinations(self._parts))

    def is_everything(self, kinds: frozenset[NameKind]) -> bool:
        """Return True if every text is a listed name or a name of these kinds."""
        return self.refused is None and len(kinds) == len(self.kinds) > 0

    def kind_of(self, name: str) -> NameKind:
        """Return the tests that a name passes."""
        if self._parts is not None:
            return frozenset(test for test, part in zip(self._tests, self._parts, strict=True) if part.holds(name))
        data = spellings(name)[0][:-1]
        return frozenset(test for test in self._tests if _test_dfa(test).accepts(data))

    def few(self, kind: NameKind) -> list[str] | None:
        """Return the names of a kind, without those that are listed, or None if they are more than a few."""
        if kind not in self._few:
            found = self._few_names(kind)
            self._few[kind] = None if found is None else [name for name in found if name not in self._number_of]
        return self._few[kind]

    def _few_names(self, kind: NameKind) -> list[str] | None:
        if not self._tests:
            return None
        tests = [test for test in self._tests if not isinstance(test, UndecidedFormat)]
        try:
            chars = [pattern_chars(test) if isinstance(test, str) else chars_of(test) for test in tests]
            found = char_product(chars, CompileBudget())
        except GrammarError:
            return None
        passed = tuple(test in kind for test in tests)
        return few_texts(found.chars(passed), MAX_LISTED_NAMES) if passed in found.truths else []

    def may_run_out(self, kinds: frozenset[NameKind]) -> bool:
        """Return True if some beginning of a name of these kinds leaves only finitely many names of its kind."""
        if self.is_everything(kinds) and len(kinds) == 1:
            return False
        try:
            found = self._product(0, kinds, [])
            if found is not None and found[1].counts is not None:
                return any(self._counted_may_run_out(kind) for kind in kinds)
        except GrammarError:
            return True
        if found is None:
            return False
        dfa, block = found
        # From a state that leads to itself, there are always more names.
        leads_on = (dfa.table == np.arange(dfa.num_states)[:, None]).any(axis=1)
        table = np.ascontiguousarray(dfa.table)
        for number in set(block.results[~leads_on].tolist()) - {-1}:
            alive = live_states(table, block.results == number)
            if not alive[table[alive]].any(axis=1).all():
                return True
        return False

    def _counted_may_run_out(self, kind: NameKind) -> bool:
        assert self._parts is not None
        truths = tuple(test in kind for test in self._tests)
        found = labelled_strings(self._parts, lambda passed: 0 if passed == truths else -1)
        if found is None:
            return False
        goes_on = found.chars.table[START:].any(axis=1) & (found.fewest[START:] == 0) & (found.most[START:] >= NEVER)
        return not goes_on.all()

    def start(
        self, automaton: Automaton, names: int, kinds: frozenset[NameKind], used: frozenset[str] = frozenset()
    ) -> int | None:
        """Return the number of the state after the opening quote of a name; None if there is no such name.

        `names` and `kinds` are allowed; the result code of a name is the index of its class. `used` are other names
        that may not come again. The frame below refuses them; here no state leads only to them.
        """
        key = ("name states", self, names, kinds, used)
        if key not in automaton.memory:
            automaton.memory[key] = self._start(automaton, names, kinds, used)
        return automaton.memory[key]  # type: ignore[no-any-return]

    def _start(self, automaton: Automaton, names: int, kinds: frozenset[NameKind], used: frozenset[str]) -> int | None:
        if not kinds:
            for number in range(len(self.names)):  # the state before the last name may have had one name more
                more = None if names >> number & 1 else ("name states", self, names | 1 << number, kinds, used)
                if more is not None and (root := automaton.memory.get(more)) is not None:
                    for text in self._spellings[self.names[number]]:
                        root = None if root is None else without_text(automaton.tables, root, text)
                    return root
            allowed = [name for number, name in enumerate(self.names) if names >> number & 1]
            texts = [(text, self._pop(automaton, name)) for name in allowed for text in self._spellings[name]]
            return literal_states(automaton.tables, sorted(texts)) if texts else None
        tested_used = frozenset(name for name in used if len(spellings(name)) > 1 or "/" in name)
        begins = None
        if not self._tests and not self._tested_names and not tested_used:
            others = any_string()
            base = automaton.block(("any name",), _any_name_block)
        else:
            product = self._product(names, kinds, [*self._tested_names, *sorted(tested_used)])
            if product is None:
                return None
            others, block = product
            begins = None if block.counts is None else block.counts.begins
            base = automaton.block(("names", self, names & self._tested_bits, kinds, tested_used), lambda: block)
        texts = [(text, DEAD) for name in used - tested_used for text in spellings(name) if others.accepts(text[:-1])]
        for number, name in enumerate(self.names):
            if name not in self._tested_names:
                text = self._spellings[name][0]
                if names >> number & 1:
                    texts.append((text, self._pop(automaton, name)))
                elif others.accepts(text[:-1]):
                    texts.append((text, DEAD))
        if not texts:
            return base + START
        return literal_states(automaton.tables, sorted(texts), base, others, begins) or None

    def _pop(self, automaton: Automaton, name: str) -> int:
        return automaton.pop(1 + self._number_of[name])

    def _product(self, names: int, kinds: frozenset[NameKind], apart: list[str]) -> tuple[Dfa, Block] | None:
        """Return the automaton of other names by kind, except the names `apart`, which are refused unless listed."""
        num_tests = len(self._tests)
        apart_parts = tuple(StringPart(texts=frozenset([name])) for name in apart)

        def label(accepted: Truths) -> int:
            for name, found in zip(apart, accepted[num_tests:], strict=True):
                if found:
                    if name not in self._number_of:
                        return -1
                    return 1 + self._number_of[name] if names >> self._number_of[name] & 1 else -1
            kind = frozenset(test for test, passed in zip(self._tests, accepted, strict=False) if passed)
            return self._class_of_kind[kind] if kind in kinds else -1

        if self._parts is not None:
            labelled = labelled_strings((*self._parts, *apart_parts), label)
            if labelled is None:
                return None
            block = counted_block(labelled)
            return Dfa(block.table, block.class_of, block.results >= 0), block
        dfas = [_test_dfa(test) for test in self._tests]
        product = labelled_product(any_string(), [*dfas, *map(string_dfa, apart_parts)], label)
        if product is None:
            return None
        table, class_of, labels = product
        dfa = Dfa(table, class_of, labels >= 0)
        return dfa, _name_block(dfa, labels)


def _test_dfa(test: str | StringPart | UndecidedFormat) -> Dfa:
    if isinstance(test, UndecidedFormat):
        return string_content_dfa(test.part.undecided()[test.number])
    return pattern_dfa(test) if isinstance(test, str) else string_dfa(test)


@cache
def _any_name_block() -> Block:
    dfa = any_string()
    return _name_block(dfa, np.where(dfa.accepting, 0, -1).astype(np.int32))


def _name_block(dfa: Dfa, results: NDArray[np.int32]) -> Block:
    return Block(dfa.table, dfa.class_of, results, closing=QUOTE, plain=plain_states(dfa), loops=looping_states(dfa))
