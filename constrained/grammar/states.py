"""A context-free grammar as states of the byte automaton.

A state is the set of readings of the text so far. A reading is a terminal begun after a set of Earley's, and how far
its automaton is; and the terminals that ended before it while their automata could go on, which have to be watched: a
longer match that would have been preferred rules the reading out. No token is looked at here; the token walk asks for
states one by one, and equal ones are made once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..automaton.automaton import Automaton, TransitionRow, class_row
from ..errors import GrammarError
from ..regex.dfa import DEAD, START, Dfa
from .cfg import Cfg
from .earley import EarleySets

MAX_READINGS = 2_000  # of one text: the grammar is that ambiguous


class Reading(NamedTuple):
    """A place in `terminal`, which began after the set `begun`. `watched`: (terminal, state) of earlier matches."""

    begun: int
    terminal: int
    state: int
    watched: frozenset[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class CompiledCfg:
    """A grammar and what has been worked out of it. Compared by identity."""

    cfg: Cfg
    sets: EarleySets
    rows: dict[int, list[list[int]]]  # of each terminal's automaton, as lists
    leads_on: list[list[bool]]  # of each terminal's states: whether any byte leads on
    columns: dict[tuple[int, ...], tuple[NDArray[np.uint8], list[int]]]

    @classmethod
    def of(cls, cfg: Cfg) -> CompiledCfg:
        rows = {number: terminal.dfa.table.tolist() for number, terminal in enumerate(cfg.terminals)}
        leads_on = [[any(row) for row in rows[number]] for number in range(len(cfg.terminals))]
        return cls(cfg, EarleySets(cfg), rows, leads_on, {})

    def dfa(self, terminal: int) -> Dfa:
        return self.cfg.terminals[terminal].dfa


@dataclass(frozen=True)
class GrammarState:
    grammar: CompiledCfg
    readings: frozenset[Reading]
    accepts: bool

    def expand(self, automaton: Automaton) -> TransitionRow:
        if not self.readings:
            return TransitionRow({}, accepts=self.accepts)
        class_of, following = self.following()
        actions = [automaton.goto(after) if after.readings or after.accepts else 0 for after in following]
        return TransitionRow({}, rest=class_row(automaton, actions, class_of), accepts=self.accepts)

    def following(self) -> tuple[NDArray[np.uint8], list[GrammarState]]:
        """The state after each byte, by classes that no terminal of this state tells apart."""
        if not self.readings:
            return np.zeros(256, np.uint8), [GrammarState(self.grammar, self.readings, False)]
        watched = {terminal for reading in self.readings for terminal, _ in reading.watched}
        terminals = tuple(sorted(watched.union(reading.terminal for reading in self.readings)))
        class_of, examples = _columns(self.grammar, terminals)
        return class_of, [_after(self.grammar, self.readings, byte) for byte in examples]


def grammar_start(cfg: Cfg) -> GrammarState:
    """The state before the text."""
    grammar = CompiledCfg.of(cfg)
    nothing: frozenset[tuple[int, int]] = frozenset()
    start = grammar.sets.start
    return GrammarState(grammar, frozenset(_begun(grammar, start, nothing)), grammar.sets.accepts(start))


def _after(grammar: CompiledCfg, readings: frozenset[Reading], byte: int) -> GrammarState:
    going_on: set[Reading] = set()
    ended: dict[frozenset[tuple[int, int]], set[tuple[int, int]]] = {}
    skipped: set[tuple[frozenset[tuple[int, int]], int]] = set()
    watches: dict[frozenset[tuple[int, int]], frozenset[tuple[int, int]] | None] = {}
    cfg = grammar.cfg
    for begun, terminal, state, watched in readings:
        dfa = cfg.terminals[terminal].dfa
        now = grammar.rows[terminal][state][dfa.class_of[byte]]
        if now == DEAD:
            continue
        if watched:
            if watched not in watches:
                watches[watched] = _watched_after(grammar, watched, byte)
            still = watches[watched]
            if still is None:
                continue
            watched = still
        leads_on = grammar.leads_on[terminal][now]
        if leads_on:
            going_on.add(Reading(begun, terminal, now, watched))
        if dfa.accepting[now]:
            if leads_on and cfg.terminals[terminal].preferred:
                watched = watched | {(terminal, now)}
            if terminal in cfg.ignored:
                skipped.add((watched, begun))
            if terminal in grammar.sets.expected(begun):
                ended.setdefault(watched, set()).add((begun, terminal))
    skipped.update((watched, grammar.sets.after(frozenset(scans))) for watched, scans in ended.items())
    for watched, number in skipped:
        going_on.update(_begun(grammar, number, watched))
    if len(going_on) > MAX_READINGS:
        raise GrammarError(f"the grammar is too ambiguous: a text has more than {MAX_READINGS} readings")
    return GrammarState(grammar, frozenset(going_on), any(grammar.sets.accepts(number) for _, number in skipped))


def _begun(grammar: CompiledCfg, number: int, watched: frozenset[tuple[int, int]]) -> list[Reading]:
    terminals = dict.fromkeys([*grammar.sets.expected(number), *grammar.cfg.ignored])
    return [Reading(number, terminal, START, watched) for terminal in terminals]


def _watched_after(
    grammar: CompiledCfg, watched: frozenset[tuple[int, int]], byte: int
) -> frozenset[tuple[int, int]] | None:
    """None when one of the matches is longer than was read."""
    found = []
    for terminal, state in watched:
        dfa = grammar.dfa(terminal)
        now = grammar.rows[terminal][state][dfa.class_of[byte]]
        if dfa.accepting[now]:
            return None
        if now != DEAD:
            found.append((terminal, now))
    return frozenset(found)


def _columns(grammar: CompiledCfg, terminals: tuple[int, ...]) -> tuple[NDArray[np.uint8], list[int]]:
    """Classes of bytes that are alike in all of the terminals, and an example of each."""
    if terminals not in grammar.columns:
        stacked = np.stack([grammar.dfa(terminal).class_of for terminal in terminals])
        _, examples, class_of = np.unique(stacked, axis=1, return_index=True, return_inverse=True)
        grammar.columns[terminals] = class_of.reshape(-1).astype(np.uint8), examples.tolist()
    return grammar.columns[terminals]
