"""Context-free grammars over terminals that are byte automata: what the front ends for Lark and GBNF produce.

Knows no syntax of grammars and no way to parse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import GrammarError
from ..regex.dfa import START, Dfa

MAX_RULES = 20_000


@dataclass(frozen=True, eq=False)
class Terminal:
    """`preferred`: a match ends where the automaton's last accepting state is, whatever follows (see `leftmost`);
    otherwise every text that is accepted is a match. None matches the empty text."""

    name: str
    dfa: Dfa
    preferred: bool


Symbol = int  # a nonterminal n >= 0, or -1 - t for terminal t


@dataclass(frozen=True)
class Cfg:
    """Nonterminal 0 is the start. `alternatives[n]` are sequences of symbols. Ignored terminals may stand before,
    after and between all others. Every symbol that is left stands for some text."""

    terminals: tuple[Terminal, ...]
    alternatives: tuple[tuple[tuple[Symbol, ...], ...], ...]
    ignored: tuple[int, ...] = ()
    nullable: frozenset[int] = field(default=frozenset())  # nonterminals that may be empty


def cfg(
    terminals: Iterable[Terminal], alternatives: Iterable[Iterable[tuple[Symbol, ...]]], ignored: Iterable[int]
) -> Cfg:
    """Without the alternatives that stand for no text. Raises GrammarError when none is left for the start."""
    rules = [list(dict.fromkeys(group)) for group in alternatives]
    if sum(map(len, rules)) > MAX_RULES:
        raise GrammarError(f"the grammar is too complex: it has more than {MAX_RULES} alternatives")
    kept = tuple(terminals)
    productive = _closure(rules, {-1 - number for number, terminal in enumerate(kept) if not terminal.dfa.is_empty})
    if 0 not in productive:
        raise GrammarError("no text at all satisfies the grammar")
    rules = [[rule for rule in group if all(symbol in productive for symbol in rule)] for group in rules]
    nullable = frozenset(_closure(rules, set()))
    assert not any(terminal.dfa.accepting[START] for terminal in kept), "a terminal that may be empty"
    return Cfg(kept, tuple(tuple(group) for group in rules), tuple(ignored), nullable)


def _closure(rules: list[list[tuple[Symbol, ...]]], known: set[Symbol]) -> set[Symbol]:
    """The symbols that can be made of the known ones."""
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
