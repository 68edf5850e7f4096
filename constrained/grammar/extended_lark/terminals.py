"""Compiles terminals of llguidance's Lark to automata, of whose texts a lexer takes the longest or shortest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal, NoReturn

from ...budget import CompileBudget
from ...errors import GrammarError
from ...regex.alphabet import alphabet_of, common_alphabet
from ...regex.byte_dfa import byte_dfa
from ...regex.char_dfa import CharDfa
from ...regex.dfa import DEAD, START, Dfa, trimmed_dfa
from ...regex.nfa import CharNfa
from ...regex.subset import char_dfa, nfa_dfa
from ...regex.syntax.expression import (
    Alt,
    Chars,
    Expression,
    Repeat,
    Seq,
    alternation,
    literal,
    repeat,
    sequence,
)
from ...regex.syntax.parser import parse_regex
from ..rule_expressions import without_anchors
from . import syntax
from .syntax import (
    LarkBoth,
    LarkChoice,
    LarkDefinition,
    LarkJson,
    LarkName,
    LarkNested,
    LarkNot,
    LarkPattern,
    LarkRepeated,
    LarkSubstring,
    LarkText,
    Part,
    TokenRanges,
)

MAX_SUBSTRING = 2_000  # parts
_MAX_PARTS = 5_000  # of a terminal, with those of terminals in it
_Language = Expression | CharDfa


class TerminalCompiler:
    """Compiles terminals of one grammar. `fail` raises GrammarError for a message and a position."""

    def __init__(
        self,
        definition: Callable[[LarkName], LarkDefinition],
        fail: Callable[[str, int], NoReturn],
        budget: CompileBudget,
    ) -> None:
        self._definition = definition
        self._fail = fail
        self._budget = budget
        self._open: list[str] = []  # terminals around the one that is compiled
        self._num_parts = 0

    def automaton(self, part: Part, *, lazy: bool = False, suffix: Part | None = None) -> Dfa:
        """Return the automaton of a terminal, which ends in `suffix`, over bytes.

        If `lazy`, of its texts that begin with no shorter one.
        """
        self._num_parts = 0
        language = self._language(part)
        if suffix is not None:
            language = self._joined("sequence", [language, self._language(suffix)])
        found = byte_dfa(self._dfa(language), "utf8", self._budget)
        if not lazy:
            return found
        table = found.table.copy()
        table[found.accepting] = DEAD
        return trimmed_dfa(table, found.class_of, found.accepting)

    def _dfa(self, language: _Language) -> CharDfa:
        return language if isinstance(language, CharDfa) else char_dfa(language, self._budget)

    def _language(self, part: Part) -> _Language:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise GrammarError(f"a terminal is too complex: it has more than {_MAX_PARTS} parts")
        match part:
            case LarkText():
                return self._text(part)
            case LarkPattern():
                return self._pattern(part)
            case LarkSubstring(chunks=chunks):
                return self._substring(chunks)
            case LarkName():
                return self._named(part)
            case syntax.LarkSequence(parts=parts):
                return self._joined("sequence", [self._language(inner) for inner in parts])
            case LarkChoice(parts=alternatives):
                return self._joined("choice", [self._language(inner) for inner, _ in alternatives])
            case LarkRepeated(part=inner, least=least, most=most):
                found = self._language(inner)
                if not isinstance(found, CharDfa):
                    return repeat(found, least, most)
                copies = [found] * least
                if most is None:
                    return self._joined("sequence", [*copies, _looped(found, self._budget)])
                empty_too = self._joined("choice", [found, sequence()])
                return self._joined("sequence", [*copies, *([empty_too] * (most - least))])
            case LarkBoth(parts=parts):
                return reduce(
                    lambda a, b: a.intersect(b, self._budget), [self._dfa(self._language(inner)) for inner in parts]
                )
            case LarkNot(part=inner):
                return self._dfa(self._language(inner)).complement()
            case TokenRanges(at=at) | LarkJson(at=at) | LarkNested(at=at):
                self._fail("a token, %json or a grammar cannot stand in a terminal: use it in a rule", at)

    def _text(self, part: LarkText) -> Expression:
        if part.to is not None:
            return Chars(((ord(part.text), ord(part.to)),))
        return parse_regex(re.escape(part.text), flags="iu") if part.ignores_case else literal(part.text)

    def _pattern(self, part: LarkPattern) -> Expression:
        if "l" in part.flags:
            self._fail("the flag l of a pattern is not supported", part.at)
        try:
            found = without_anchors(parse_regex(part.pattern, flags="u" + part.flags))
            if _has_lazy(found):
                raise GrammarError("lazy repeats are not supported: write name[lazy]: for the whole terminal")
            return found
        except GrammarError as error:
            self._fail(f"the pattern: {error.reason.splitlines()[0]}", part.at + 1 + (error.position or 0))

    def _named(self, part: LarkName) -> _Language:
        definition = self._definition(part)
        if not part.is_terminal:
            self._fail(f"{part.name} is a rule, which cannot stand in a terminal", part.at)
        if part.name in self._open:
            self._fail(f"the terminal {part.name} is made of itself", part.at)
        self._open.append(part.name)
        found = self._language(definition.body)
        self._open.pop()
        return found

    def _substring(self, chunks: tuple[str, ...]) -> CharDfa:
        """Return the automaton of runs of chunks. Its size is that of the texts, not of all runs."""
        if len(chunks) > MAX_SUBSTRING:
            raise GrammarError(f"%regex takes at most {MAX_SUBSTRING} parts")
        letters = sorted({ord(letter) for chunk in chunks for letter in chunk})
        nfa = CharNfa(alphabet_of(tuple(((letter, letter),) for letter in letters))[0])
        begins = [_state(nfa) for _ in range(len(chunks) + 1)]
        entry, exit = _state(nfa), _state(nfa)
        nfa.pattern.entry, nfa.pattern.accept = entry, exit
        nfa.epsilon[entry] += [*begins, exit]
        for place, chunk in enumerate(chunks):
            state = begins[place]
            for letter in chunk:
                middle, after = _state(nfa), _state(nfa)
                nfa.epsilon[state].append(middle)
                nfa.moves[middle] = ((nfa.alphabet.class_of(ord(letter)),), after)
                state = after
            nfa.epsilon[state].append(begins[place + 1])
            nfa.epsilon[begins[place + 1]].append(exit)
            self._budget.check(len(nfa.moves), 0)
        return nfa_dfa(nfa, self._budget)

    def _joined(self, kind: Literal["sequence", "choice"], parts: Sequence[_Language]) -> _Language:
        """Join languages; automata, which & and ~ make, are put into a nondeterministic one."""
        plain = [part for part in parts if not isinstance(part, CharDfa)]
        if len(plain) == len(parts):
            return sequence(*plain) if kind == "sequence" else alternation(plain)
        automata = [self._dfa(part) for part in parts]
        nfa, classes = _empty_nfa(automata)
        entry, exit = _state(nfa), _state(nfa)
        nfa.pattern.entry, nfa.pattern.accept = entry, exit
        ends = [entry]
        for automaton, own in zip(automata, classes, strict=True):
            begin, last = _embedded(nfa, automaton, own)
            for end in ends if kind == "sequence" else [entry]:
                nfa.epsilon[end].append(begin)
            ends = [last] if kind == "sequence" else [*ends[ends[0] == entry :], last]
        for end in ends:
            nfa.epsilon[end].append(exit)
        return nfa_dfa(nfa, self._budget)


def _has_lazy(expression: Expression) -> bool:
    todo: list[Expression] = [expression]
    for part in todo:
        if isinstance(part, Seq | Alt):
            todo += part.parts
        elif isinstance(part, Repeat):
            todo.append(part.part)
    return any(isinstance(part, Repeat) and part.lazy for part in todo)


def _looped(automaton: CharDfa, budget: CompileBudget) -> CharDfa:
    """Return the automaton of any number of texts of an automaton."""
    nfa, (own,) = _empty_nfa([automaton])
    entry, exit = _state(nfa), _state(nfa)
    nfa.pattern.entry, nfa.pattern.accept = entry, exit
    begin, last = _embedded(nfa, automaton, own)
    nfa.epsilon[entry] += [begin, exit]
    nfa.epsilon[last] += [begin, exit]
    return nfa_dfa(nfa, budget)


def _empty_nfa(automata: Sequence[CharDfa]) -> tuple[CharNfa, list[tuple[int, ...]]]:
    """Return an automaton without states over classes of characters that none of some automata tell apart.

    And for each of them its own class of each class.
    """
    alphabet, classes = automata[0].alphabet, [tuple(range(automata[0].alphabet.num_classes))]
    for automaton in automata[1:]:
        alphabet, before, own = common_alphabet(alphabet, automaton.alphabet)
        classes = [*(tuple(each[label] for label in before) for each in classes), own]
    return CharNfa(alphabet), classes


def _state(nfa: CharNfa) -> int:
    nfa.moves.append(None)
    nfa.epsilon.append([])
    return len(nfa.moves) - 1


def _embedded(nfa: CharNfa, automaton: CharDfa, own: tuple[int, ...]) -> tuple[int, int]:
    """Add the states of an automaton; return where its texts begin and end."""
    states = [_state(nfa) for _ in range(automaton.num_states)]
    exit = _state(nfa)
    for state in range(START, automaton.num_states):
        labels: dict[int, list[int]] = {}
        for label, column in enumerate(own):
            target = automaton.table.item(state, column)
            if target != DEAD:
                labels.setdefault(target, []).append(label)
        for target, group in labels.items():
            step = _state(nfa)
            nfa.epsilon[states[state]].append(step)
            nfa.moves[step] = (tuple(group), states[target])
        if automaton.accepting[state]:
            nfa.epsilon[states[state]].append(exit)
    return states[START], exit
