"""States of the byte automaton for a context-free grammar.

A state is the set of readings of the text so far. A reading is a terminal that began after an Earley set, and the state
of its automaton. Terminals that ended earlier while their automata could go on are watched: a longer match, which would
have been preferred, rules the reading out.
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

MAX_READINGS = 2_000  # of one text


class Reading(NamedTuple):
    """State of the automaton of `terminal`, which began after the Earley set `begun`.

    `watched` are pairs of a terminal and a state, of earlier matches that could still become longer.
    """

    begun: int
    terminal: int
    state: int
    watched: frozenset[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class CompiledCfg:
    """A grammar with its Earley sets and terminals' tables. Compared by identity.

    `tables[t]` is the table of terminal t, by state and class: a view, because Python integers would take ten times its
    memory. `leads_on[t][q]` is True if some byte leads on from state q, `goes_on[t][q]` if
    some leads to a match.
    """

    cfg: Cfg
    sets: EarleySets
    tables: list[memoryview]
    leads_on: list[list[bool]]
    goes_on: list[list[bool]]
    columns: dict[tuple[int, ...], tuple[NDArray[np.uint8], list[int]]]

    @classmethod
    def of(cls, cfg: Cfg) -> CompiledCfg:
        tables = [np.ascontiguousarray(terminal.dfa.table).data for terminal in cfg.terminals]
        leads_on = [(terminal.dfa.table != DEAD).any(axis=1).tolist() for terminal in cfg.terminals]
        goes_on = [
            leads if terminal.spoiled is None else _goes_on(terminal.dfa)
            for terminal, leads in zip(cfg.terminals, leads_on, strict=True)
        ]
        return cls(cfg, EarleySets(cfg.alternatives, cfg.nullable), tables, leads_on, goes_on, {})

    @property
    def num_bytes(self) -> int:
        """Memory of the terminals' automata."""
        return sum(table.nbytes + 8 * len(flags) for table, flags in zip(self.tables, self.leads_on, strict=True))

    def dfa(self, terminal: int) -> Dfa:
        return self.cfg.terminals[terminal].dfa


@dataclass(frozen=True)
class GrammarState:
    """The readings of the text so far. `accepts`: the text may end here."""

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
        """Return classes of bytes [256] that the state's terminals do not distinguish, and the state after each."""
        if not self.readings:
            return np.zeros(256, np.uint8), [GrammarState(self.grammar, self.readings, False)]
        watched = {terminal for reading in self.readings for terminal, _ in reading.watched}
        terminals = tuple(sorted(watched.union(reading.terminal for reading in self.readings)))
        class_of, examples = _columns(self.grammar, terminals)
        return class_of, [_after(self.grammar, self.readings, byte) for byte in examples]


def grammar_start(cfg: Cfg, automaton: Automaton) -> GrammarState:
    """Return the state before the text."""
    grammar = CompiledCfg.of(cfg)
    automaton.caches.append(grammar.sets.caches)
    automaton.num_fixed_bytes += grammar.num_bytes
    return first_state(grammar)


def first_state(grammar: CompiledCfg) -> GrammarState:
    """Return the state before the text of a compiled grammar."""
    nothing: frozenset[tuple[int, int]] = frozenset()
    start = grammar.sets.start
    return GrammarState(grammar, frozenset(_first_readings(grammar, start, nothing)), grammar.sets.accepts(start))


def _after(grammar: CompiledCfg, readings: frozenset[Reading], byte: int) -> GrammarState:
    """Return the state after a byte."""
    scanning: set[Reading] = set()
    ended: dict[frozenset[tuple[int, int]], set[tuple[int, int]]] = {}
    skipped: set[tuple[frozenset[tuple[int, int]], int]] = set()
    watched_after: dict[frozenset[tuple[int, int]], frozenset[tuple[int, int]] | None] = {}
    cfg = grammar.cfg
    for begun, terminal, state, watched in readings:
        dfa = cfg.terminals[terminal].dfa
        now = grammar.tables[terminal][state, dfa.class_of[byte]]
        if now == DEAD:
            continue
        if watched:
            if watched not in watched_after:
                watched_after[watched] = _watched_after(grammar, watched, byte)
            still = watched_after[watched]
            if still is None:
                continue
            watched = still
        leads_on = grammar.leads_on[terminal][now]
        if grammar.goes_on[terminal][now]:
            scanning.add(Reading(begun, terminal, now, watched))
        if dfa.accepting[now]:
            if leads_on and cfg.terminals[terminal].preferred:
                watched = watched | {(terminal, now)}
            if terminal in cfg.ignored:
                skipped.add((watched, begun))
            if terminal in grammar.sets.expected(begun):
                ended.setdefault(watched, set()).add((begun, terminal))
    skipped.update((watched, grammar.sets.after(frozenset(scans))) for watched, scans in ended.items())
    for watched, number in skipped:
        scanning.update(_first_readings(grammar, number, watched))
    if len(scanning) > MAX_READINGS:
        raise GrammarError(f"the grammar is too ambiguous: a text has more than {MAX_READINGS} readings")
    return GrammarState(grammar, frozenset(scanning), any(grammar.sets.accepts(number) for _, number in skipped))


def _first_readings(grammar: CompiledCfg, number: int, watched: frozenset[tuple[int, int]]) -> list[Reading]:
    terminals = dict.fromkeys([*grammar.sets.expected(number), *grammar.cfg.ignored])
    return [Reading(number, terminal, START, watched) for terminal in terminals]


def _goes_on(dfa: Dfa) -> list[bool]:
    """Return the states from which some byte leads to a match, now or later."""
    reaches: NDArray[np.bool_] = dfa.accepting.copy()
    while True:
        onward: NDArray[np.bool_] = np.logical_or.reduce(reaches[dfa.table], axis=1)
        grown: NDArray[np.bool_] = np.logical_or(dfa.accepting, onward)
        if (grown == reaches).all():
            return onward.tolist()  # type: ignore[no-any-return]
        reaches = grown


def _watched_after(
    grammar: CompiledCfg, watched: frozenset[tuple[int, int]], byte: int
) -> frozenset[tuple[int, int]] | None:
    """Advance watched matches by a byte. Returns None if one of them becomes longer than it was read."""
    found = []
    for terminal, state in watched:
        now = grammar.tables[terminal][state, grammar.dfa(terminal).class_of[byte]]
        if grammar.cfg.terminals[terminal].refutes(now):
            return None
        if now != DEAD:
            found.append((terminal, now))
    return frozenset(found)


def _columns(grammar: CompiledCfg, terminals: tuple[int, ...]) -> tuple[NDArray[np.uint8], list[int]]:
    """Return classes of bytes [256] that no terminal distinguishes, and an example of each class."""
    if terminals not in grammar.columns:
        stacked = np.stack([grammar.dfa(terminal).class_of for terminal in terminals])
        _, examples, class_of = np.unique(stacked, axis=1, return_index=True, return_inverse=True)
        grammar.columns[terminals] = class_of.reshape(-1).astype(np.uint8), examples.tolist()
    return grammar.columns[terminals]
