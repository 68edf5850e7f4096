"""Context-free grammars over terminals that are byte automata, and the builder of them that the front ends use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError
from ..regex.dfa import START, Dfa
from ..regex.listed import listed_dfa

MAX_GRAMMAR_TEXT = 1 << 17  # characters of a grammar
MAX_RULES = 20_000
MAX_GRAMMAR_REPEAT = 10_000
MAX_SYMBOLS = 200_000

MANY_LITERALS = 8  # alternatives that one terminal reads

Symbol = int  # a nonterminal n >= 0, or -1 - t for terminal t
Rules = tuple[tuple[tuple[Symbol, ...], ...], ...]  # the alternatives of each nonterminal


@dataclass(frozen=True)
class TokenSet:
    """One token of `tokens`, which are given by their number or text, or any other that has text.

    With `and_special` the others are also special tokens that do not end an output. `position` is in the grammar.
    """

    tokens: tuple[int | str, ...]
    is_excluded: bool = False
    and_special: bool = False
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, eq=False)
class Terminal:
    """A named byte automaton that does not accept the empty text, or with `token` a whole token.

    `preferred`: a match ends where the automaton's last accepting state is, whatever follows (see `leftmost_first`).
    Otherwise every text that the automaton accepts is a match. `spoiled`: states in which an earlier end of the match
    is none, because of what follows it (None: no states).
    """

    name: str
    dfa: Dfa
    preferred: bool
    spoiled: NDArray[np.bool_] | None = None
    token: TokenSet | None = None  # its automaton has no meaning then

    def refutes(self, state: int) -> bool:
        """Return True if an earlier end of the match is none in a state: it is longer, or spoiled."""
        return bool(self.dfa.accepting[state]) or (self.spoiled is not None and bool(self.spoiled[state]))


@dataclass(frozen=True)
class Cfg:
    """A grammar whose nonterminal 0 is the start. `alternatives[n]` are the sequences of symbols of nonterminal n.

    Ignored terminals may stand before, after and between all others. Every symbol derives some text. `nullable` are the
    nonterminals that derive the empty text.
    """

    terminals: tuple[Terminal, ...]
    alternatives: Rules
    ignored: tuple[int, ...] = ()
    nullable: frozenset[int] = field(default=frozenset())

    @property
    def has_tokens(self) -> bool:
        """True if some terminals are tokens, which a vocabulary has to give a meaning."""
        return any(terminal.token is not None for terminal in self.terminals)


def trimmed_cfg(
    terminals: Iterable[Terminal], alternatives: Iterable[Iterable[tuple[Symbol, ...]]], ignored: Iterable[int]
) -> Cfg:
    """Build a grammar without the alternatives that derive no text. Raises GrammarError if the start derives none."""
    rules = [list(dict.fromkeys(group)) for group in alternatives]
    _check_number(rules)
    kept = tuple(terminals)
    productive = _closure(rules, {-1 - number for number, terminal in enumerate(kept) if not terminal.dfa.is_empty})
    if 0 not in productive:
        raise GrammarError("no text at all satisfies the grammar")
    rules = [[rule for rule in group if all(symbol in productive for symbol in rule)] for group in rules]
    nullable = frozenset(_closure(rules, set()))
    assert not any(terminal.dfa.accepting[START] for terminal in kept), "a terminal that may be empty"
    return Cfg(kept, tuple(tuple(group) for group in rules), tuple(ignored), nullable)


def _check_number(rules: list[list[tuple[Symbol, ...]]]) -> None:
    if sum(map(len, rules)) > MAX_RULES:
        raise GrammarError(f"the grammar is too complex: it has more than {MAX_RULES} alternatives")


def _closure(rules: list[list[tuple[Symbol, ...]]], known: set[Symbol]) -> set[Symbol]:
    """Return the symbols that can be derived from the known ones, which are included."""
    waiting: dict[Symbol, list[tuple[int, tuple[Symbol, ...]]]] = {}
    todo = []
    for number, group in enumerate(rules):
        for rule in group:
            todo.append((number, rule))
    known = set(known)
    while todo:
        number, rule = todo.pop()
        missing = next((symbol for symbol in rule if symbol not in known), None)
        if missing is not None:
            waiting.setdefault(missing, []).append((number, rule))
        elif number not in known:
            known.add(number)
            todo += waiting.pop(number, [])
    return known


def _only_text(dfa: Dfa) -> bytes | None:
    """Return the only text of an automaton, None if there are several."""
    text, state = bytearray(), START
    while len(text) < dfa.num_states:
        following = dfa.table[state, dfa.class_of]
        bytes_on = np.flatnonzero(following)
        if dfa.accepting[state]:
            return None if len(bytes_on) else bytes(text)
        if len(bytes_on) != 1:
            return None
        text.append(int(bytes_on[0]))
        state = int(following[bytes_on[0]])
    return None


def _one_of(texts: Iterable[bytes]) -> Terminal:
    """Return the terminal of some literals."""
    return Terminal("literals", listed_dfa(dict.fromkeys(texts, 0))[0], preferred=False)


class CfgBuilder:
    """Builds a grammar from rules with options, repeats and alternatives inside.

    These become nonterminals of their own, so that n options give n rules instead of 2^n. Repeats recurse to the left,
    which is cheap for an Earley parser.
    """

    def __init__(self) -> None:
        self._alternatives: list[list[tuple[Symbol, ...]]] = []
        self._num_symbols = 0
        self._terminals: list[Terminal] = []
        self._terminal_of: dict[object, int] = {}

    def new(self) -> Symbol:
        """Add a nonterminal without alternatives. The first is the start."""
        self._alternatives.append([])
        if len(self._alternatives) > MAX_RULES:
            raise GrammarError(f"the grammar is too complex: it has more than {MAX_RULES} rules")
        return len(self._alternatives) - 1

    def terminal(self, key: object, make: Callable[[], Terminal]) -> Symbol:
        """Return the terminal of a key, made at its first use."""
        if key not in self._terminal_of:
            self._terminals.append(make())
            self._terminal_of[key] = len(self._terminals) - 1
        return -1 - self._terminal_of[key]

    def define(self, nonterminal: Symbol, alternatives: list[tuple[Symbol, ...]]) -> None:
        """Add alternatives to a nonterminal."""
        self._alternatives[nonterminal] += alternatives
        self._num_symbols += sum(map(len, alternatives))
        if self._num_symbols > MAX_SYMBOLS:
            raise GrammarError(f"the grammar is too complex: it has more than {MAX_SYMBOLS} symbols")

    def choice(self, alternatives: list[tuple[Symbol, ...]]) -> tuple[Symbol, ...]:
        """Return symbols that derive what one of the alternatives derives."""
        if len(alternatives) == 1:
            return alternatives[0]
        number = self.new()
        self.define(number, alternatives)
        return (number,)

    def repeat(self, part: tuple[Symbol, ...], least: int, most: int | None) -> tuple[Symbol, ...]:
        """Return symbols that derive a part `least` to `most` times (None: any number of times)."""
        if max(least, most or 0) > MAX_GRAMMAR_REPEAT or (most is not None and most < least):
            raise GrammarError(f"invalid repeat from {least} to {most} times: the limit is {MAX_GRAMMAR_REPEAT}")
        if len(part) > 1:
            whole = self.new()
            self.define(whole, [part])
            part = (whole,)
        head = part * least
        if most is None:
            more = self.new()
            self.define(more, [(), (more, *part)])
            return (*head, more)
        tail: tuple[Symbol, ...] = ()
        for _ in range(most - least):
            tail = self.choice([(), (*part, *tail)])
        return (*head, *tail)

    def merge_literals(self) -> None:
        """Let one terminal read all alternatives of a nonterminal that are one literal each, if they are many.

        Otherwise each literal would be a reading of its own. A literal matches one text, so nothing is preferred.
        """
        for group in self._alternatives:
            texts: dict[tuple[Symbol, ...], bytes] = {}
            for symbols in group:
                if len(symbols) == 1 and symbols[0] < 0:
                    terminal = self._terminals[-1 - symbols[0]]
                    text = None if terminal.token else _only_text(terminal.dfa)
                    if text is not None:
                        texts[symbols] = text
            if len(texts) >= MANY_LITERALS:
                key = ("literals", frozenset(texts.values()))
                merged = self.terminal(key, lambda: _one_of(texts.values()))  # noqa: B023
                group[:] = [(merged,), *(symbols for symbols in group if symbols not in texts)]

    def rules(self) -> tuple[Rules, frozenset[int]]:
        """Return the alternatives of each nonterminal, and the nonterminals that derive the empty text."""
        groups = [[*dict.fromkeys(group)] for group in self._alternatives]
        _check_number(groups)
        return tuple(map(tuple, groups)), frozenset(_closure(groups, set()))

    def build(self, ignored: list[Symbol]) -> Cfg:
        """Return the grammar. Raises GrammarError if the start derives no text."""
        return trimmed_cfg(self._terminals, self._alternatives, [-1 - symbol for symbol in ignored])
