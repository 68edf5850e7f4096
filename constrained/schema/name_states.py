"""The names of an object's members as states: those that a schema mentions, by themselves, and all others by which of
its patterns they match. Knows parts and strings; not what has come before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..automaton.automaton import Automaton
from ..automaton.blocks import Block
from ..automaton.literals import literal_states
from ..budget import CompileBudget
from ..errors import GrammarError
from ..regex.dfa import DEAD, START, Dfa
from .formula import Formula, atoms, evaluate, has_negation
from .goals import SchemaCompiler
from .string_dfas import (
    any_string,
    combinations,
    labelled_product,
    looping_states,
    pattern_chars,
    pattern_dfa,
    plain_states,
)
from .string_parts import StringPart, spellings, string_dfa
from .string_regions import char_product, chars_of, few_texts
from .string_states import QUOTE, is_doubtful
from .structure_parts import ObjectPart


@dataclass(frozen=True)
class UndecidedFormat:
    """The names of which is not known whether a part holds."""

    part: StringPart
    number: int  # of the format


MatchedTests = frozenset[str | StringPart | UndecidedFormat]  # of a name: what it matches
MAX_KINDS = 32  # of names that are not mentioned
MAX_LISTED = 64  # names of a kind


@dataclass(frozen=True, eq=False)
class NameClass:
    """A name: which of those mentioned it is, or what it matches. Compared by identity."""

    number: int | None
    matched: MatchedTests = frozenset()


class MemberNames:
    """All names of some parts."""

    def __init__(self, world: SchemaCompiler, parts: tuple[ObjectPart, ...], lists_names: bool) -> None:
        """`lists_names`: where there are only a few names of a kind, they are as if they were mentioned."""
        self.world = world
        self.names = list(dict.fromkeys(name for part in parts for name in part.names))
        self.num_mentioned = len(self.names)
        # What is asked of all names is a pattern to them, too: a part of the formula that a name satisfies or not.
        self._tests: dict[str | StringPart | UndecidedFormat, Dfa] = {}
        for part in parts:
            for pattern in part.patterns:
                self._tests[pattern] = pattern_dfa(pattern)
            for goal in part.name_goals:
                for atom in atoms(world.typed(goal, "string")):
                    assert isinstance(atom, StringPart)
                    self._tests[atom] = string_dfa(atom)
                    if has_negation(world.typed(goal, "string")):
                        self._tests |= {UndecidedFormat(atom, number): dfa for number, dfa in enumerate(atom.doubts())}
        self._listed: set[MatchedTests] = set()
        if lists_names and self._tests:
            self._list_names()
        self._number = {name: number for number, name in enumerate(self.names)}
        self.named = [NameClass(number) for number in range(len(self.names))]
        self.outcomes: list[NameClass] = [NameClass(None), *self.named]
        self.kinds: list[MatchedTests] = [frozenset()] if not self._tests else []
        self._numbers: dict[MatchedTests, int] = {frozenset(): 0}
        self._goals: dict[tuple[ObjectPart, NameClass], Formula] = {}
        self.num_outcomes = 1 + len(self.names) + MAX_KINDS
        # Names with several spellings are tested for, where other names may come.
        self._spelled = {name: spellings(name) for name in self.names}
        self._many = [name for name in self.names if len(self._spelled[name]) != 1 or "/" in name]
        self._are_all = True
        self._many_bits = self.bits(self._many)
        if self._tests:
            self._find_kinds()

    def _list_names(self) -> None:
        tests = [test for test in self._tests if not isinstance(test, UndecidedFormat)]
        budget = CompileBudget()
        try:
            chars = [pattern_chars(test) if isinstance(test, str) else chars_of(test) for test in tests]
            found = char_product(chars, budget)
        except GrammarError:
            return  # they are too complex to be told apart, as will be seen
        for passed in found.truths:
            texts = few_texts(found.chars(passed), MAX_LISTED)
            if texts is not None:
                self._listed.add(frozenset(test for test, accepted in zip(tests, passed, strict=True) if accepted))
                self.names = list(dict.fromkeys((*self.names, *texts)))

    def can_be_spelled(self, number: int) -> bool:
        """Half a surrogate pair cannot."""
        return bool(self._spelled[self.names[number]])

    def bits(self, names: Iterable[str]) -> int:
        return sum(1 << self._number[name] for name in dict.fromkeys(names))

    def bit(self, outcome: NameClass) -> int:
        return 0 if outcome.number is None else 1 << outcome.number

    def other(self, kind: MatchedTests) -> NameClass:
        return self.outcomes[self._numbers[kind]]

    def goal(self, part: ObjectPart, outcome: NameClass) -> Formula:
        key = (part, outcome)
        found = self._goals.get(key)
        if found is None:
            found = self._goals[key] = self._make_goal(part, outcome)
        return found

    def _make_goal(self, part: ObjectPart, outcome: NameClass) -> Formula:
        if any(isinstance(test, UndecidedFormat) for test in outcome.matched):
            return False
        if outcome.number is not None:
            name = self.names[outcome.number]
            if any(is_doubtful((self.world.typed(goal, "string"),), name) for goal in part.name_goals):
                return False
            return part.name_goal(self.world, name)
        for goal in part.name_goals:
            if not evaluate(self.world.typed(goal, "string"), lambda atom: atom in outcome.matched):
                return False
        return part.goal(None, outcome.matched)

    def _find_kinds(self) -> None:
        """The combinations of tests that names can pass."""
        tests = list(self._tests)
        try:
            found = combinations(any_string(), list(self._tests.values()))
        except GrammarError:
            self._are_all = False
            return  # no other names at all, where they cannot be told apart
        self._are_all = len(found) <= MAX_KINDS
        for accepted in found[:MAX_KINDS]:
            kind = frozenset(test for test, passed in zip(tests, accepted, strict=True) if passed)
            if frozenset(test for test in kind if not isinstance(test, UndecidedFormat)) in self._listed:
                continue
            self.kinds.append(kind)
            if kind not in self._numbers:
                self._numbers[kind] = len(self.outcomes)
                self.outcomes.append(NameClass(None, kind))

    def is_everything(self, kinds: frozenset[MatchedTests]) -> bool:
        """Whether any text at all is a name, mentioned or of these kinds."""
        return self._are_all and len(kinds) == len(self.kinds) > 0

    def start(
        self, automaton: Automaton, names: int, kinds: frozenset[MatchedTests], used: frozenset[str] = frozenset()
    ) -> int | None:
        """The number of the state after the opening quote; the result of a name is the number of its outcome. `used`
        are other names that may not come again: whoever asks for the states refuses them, and here nothing leads only
        to them."""
        key = ("keys", self, names, kinds, used)
        if key not in automaton.memory:
            automaton.memory[key] = self._start(automaton, names, kinds, used)
        return automaton.memory[key]  # type: ignore[no-any-return]

    def _start(
        self, automaton: Automaton, names: int, kinds: frozenset[MatchedTests], used: frozenset[str]
    ) -> int | None:
        if not kinds:
            allowed = [name for number, name in enumerate(self.names) if names >> number & 1]
            texts = [(text, self._pop(automaton, name)) for name in allowed for text in self._spelled[name]]
            return literal_states(automaton.tables, sorted(texts)) if texts else None
        if not self._tests and not self._many:
            base = automaton.block(("any key",), _any_key)
            table = any_string()
        else:
            made = self._product(names, kinds, self._many)
            if made is None:
                return None
            table, base = (
                made[0],
                automaton.block(("keys block", self, names & self._many_bits, kinds), lambda: made[1]),
            )
        texts = []
        ends = [spelling[:-1] for name in used for spelling in spellings(name)[:1]]
        for number, name in enumerate(self.names):
            if name not in self._many:
                text = self._spelled[name][0]
                if names >> number & 1:
                    texts.append((text, self._pop(automaton, name)))
                elif table.accepts(text[:-1]):
                    texts.append((text, DEAD))
                    ends.append(text[:-1])
        if any(_leads_nowhere(table, text) for text in ends):
            apart = [name for name in (*self.names, *sorted(used)) if spellings(name)]
            told_apart = self._product(names, kinds, apart)
            if told_apart is None:
                return None
            return START + automaton.block(("keys apart", self, names, kinds, used), lambda: told_apart[1])
        if not texts:
            return base + START
        return literal_states(automaton.tables, sorted(texts), base, table)

    def _pop(self, automaton: Automaton, name: str) -> int:
        return automaton.pop(1 + self._number[name])

    def _product(self, names: int, kinds: frozenset[MatchedTests], apart: list[str]) -> tuple[Dfa, Block] | None:
        """Other names by their kind, beside some names that are told apart; those that are unknown are refused."""
        tests = list(self._tests)
        many = [string_dfa(StringPart(texts=frozenset([name]))) for name in apart]

        def label(accepted: tuple[bool, ...]) -> int:
            for name, found in zip(apart, accepted[len(tests) :], strict=True):
                if found:
                    if name not in self._number:
                        return -1
                    return 1 + self._number[name] if names >> self._number[name] & 1 else -1
            kind = frozenset(test for test, passed in zip(tests, accepted, strict=False) if passed)
            return self._numbers[kind] if kind in kinds else -1

        made = labelled_product(any_string(), [*self._tests.values(), *many], label)
        if made is None:
            return None
        table, class_of, labels = made
        dfa = Dfa(table, class_of, labels >= 0)
        return dfa, Block(table, class_of, labels, closing=QUOTE, plain=plain_states(dfa), loops=looping_states(dfa))


def _leads_nowhere(table: Dfa, text: bytes) -> bool:
    """Whether no other accepted text begins with this one."""
    state = table.walk(START, text)
    return state != DEAD and not table.table[state].any()


@cache
def _any_key() -> Block:
    dfa = any_string()
    results = np.where(dfa.accepting, 0, -1).astype(np.int32)
    return Block(dfa.table, dfa.class_of, results, closing=QUOTE, plain=plain_states(dfa), loops=looping_states(dfa))
