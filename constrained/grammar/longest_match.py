"""Finds the alternatives of a grammar that no text can be read by, because its terminals take their preferred match.

`NAME "x"` with `NAME: /[a-z]+/` has no text: the terminal takes the `x` too. What has ended and could go on is watched
(`states.py`), so a place is known by the pairs of a terminal and a state that are watched there. The more is watched,
the less can follow. So an alternative that cannot be read where nothing is watched cannot be read anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..budget import INTERPRETED, charge
from ..errors import GrammarError
from ..regex.dfa import DEAD, START
from .cfg import Cfg, Symbol, trimmed_cfg

MAX_WORK = 400_000  # bytes and rules that are followed, before the alternatives that are left are kept

Watched = frozenset[tuple[int, int]]
_NOTHING: Watched = frozenset()
_Place = tuple[int, int, int, Watched, Watched]  # nonterminal, alternative, symbols read; watched before and after them


def without_unreadable(cfg: Cfg) -> Cfg:
    """Return the grammar without the alternatives that no text can be read by.

    Raises GrammarError if no text at all can be read, or if it takes too long to find one.
    """
    if not any(terminal.preferred for terminal in cfg.terminals):
        return cfg
    search = _Search(cfg)
    unread = search.run()
    if search.is_cut:
        if any((0, number) not in unread for number in range(len(cfg.alternatives[0]))):
            return cfg
        raise GrammarError("the grammar is too complex: no text of it was found within the longest matches")
    if not unread:
        return cfg
    kept = [
        [rule for number, rule in enumerate(rules) if (nonterminal, number) not in unread]
        for nonterminal, rules in enumerate(cfg.alternatives)
    ]
    try:
        return trimmed_cfg(cfg.terminals, kept, cfg.ignored)
    except GrammarError as error:
        why = ": a terminal takes its longest match, and what must follow is part of it"
        raise GrammarError(f"{error}{why}") from None


class _Search:
    """Follows all alternatives from places where nothing is watched, until each has been read once."""

    def __init__(self, cfg: Cfg) -> None:
        self.is_cut = False
        self._cfg = cfg
        self._work = 0
        self._heights = _heights(cfg)
        self._waiting: dict[tuple[int, Watched], list[_Place]] = {}
        self._ends: dict[tuple[int, Watched], dict[Watched, None]] = {}
        self._matches: dict[tuple[int, Watched], list[Watched]] = {}
        self._known: set[_Place] = set()
        self._todo: list[_Place] = []

    def run(self) -> set[tuple[int, int]]:
        """Return the alternatives, as nonterminal and number, that have not been read."""
        unread = {(n, number) for n, rules in enumerate(self._cfg.alternatives) for number in range(len(rules))}
        goals = sorted(unread, key=lambda goal: self._height(self._cfg.alternatives[goal[0]][goal[1]]))
        for goal in goals:
            if goal not in unread:
                continue
            self._expect(goal[0], _NOTHING)
            while self._todo and goal in unread:
                if self._work > MAX_WORK:
                    self.is_cut = True
                    return unread
                place = self._todo.pop()
                nonterminal, alternative, read, before, after = place
                rule = self._cfg.alternatives[nonterminal][alternative]
                self._work += 1
                if read == len(rule):
                    if before == _NOTHING:
                        unread.discard((nonterminal, alternative))
                    self._end(nonterminal, before, after)
                elif rule[read] >= 0:
                    self._waiting.setdefault((rule[read], after), []).append(place)
                    self._expect(rule[read], after)
                    for watched in self._ends.get((rule[read], after), ()):
                        self._add((nonterminal, alternative, read + 1, before, watched))
                else:
                    for watched in self._after_terminal(-1 - rule[read], after):
                        self._add((nonterminal, alternative, read + 1, before, watched))
        charge(self._work * INTERPRETED)
        return unread

    def _add(self, place: _Place) -> None:
        if place not in self._known:
            self._known.add(place)
            self._todo.append(place)

    def _expect(self, nonterminal: int, watched: Watched) -> None:
        if (nonterminal, watched) in self._ends:
            return
        self._ends[nonterminal, watched] = {}
        rules = self._cfg.alternatives[nonterminal]
        # The shortest is followed first.
        for number in sorted(range(len(rules)), key=lambda n: -self._height(rules[n])):
            self._add((nonterminal, number, 0, watched, watched))

    def _end(self, nonterminal: int, before: Watched, after: Watched) -> None:
        ends = self._ends[nonterminal, before]
        if after not in ends:
            ends[after] = None
            for caller, alternative, read, begun, _ in self._waiting.get((nonterminal, before), ()):
                self._add((caller, alternative, read + 1, begun, after))

    def _height(self, rule: tuple[Symbol, ...]) -> int:
        return max((self._heights[symbol] for symbol in rule if symbol >= 0), default=0)

    def _after_terminal(self, terminal: int, watched: Watched) -> Iterator[Watched]:
        """Yield what is watched after matches of a terminal, with ignored ones before it."""
        todo, seen = [watched], {watched}
        for begun in todo:
            yield from self._after_match(terminal, begun)
            for ignored in self._cfg.ignored if begun else ():
                for after in self._after_match(ignored, begun):
                    if after not in seen:
                        seen.add(after)
                        todo.append(after)

    def _after_match(self, terminal: int, watched: Watched) -> list[Watched]:
        key = terminal, watched
        if key not in self._matches:
            self._matches[key] = self._matched(terminal, watched)
        return self._matches[key]

    def _matched(self, terminal: int, watched: Watched) -> list[Watched]:
        """Follow the texts of a terminal that make no watched match longer."""
        cfg = self._cfg
        dfa, is_preferred = cfg.terminals[terminal].dfa, cfg.terminals[terminal].preferred
        leads_on = (dfa.table != DEAD).any(axis=1) & is_preferred
        ends = dict.fromkeys(np.flatnonzero(dfa.accepting).tolist())
        if not watched:  # every state can be reached
            going_on = [frozenset([(terminal, state)]) for state in ends if leads_on[state]]
            return [*going_on, *([] if all(leads_on[state] for state in ends) else [_NOTHING])]
        machines = [dfa, *(cfg.terminals[other].dfa for other in {other for other, _ in watched})]
        classes = np.stack([machine.class_of for machine in machines])
        examples = np.unique(classes, axis=1, return_index=True)[1].tolist()  # a byte of each class
        found: dict[Watched, None] = {}
        todo, seen = [(START, watched)], {(START, watched)}
        for state, now in todo:
            self._work += len(examples)
            if self._work > MAX_WORK:
                break
            for byte in examples:
                after = int(dfa.table[state, dfa.class_of[byte]])
                if after == DEAD:
                    continue
                still = []
                for other, place in now:
                    machine = cfg.terminals[other].dfa
                    moved = int(machine.table[place, machine.class_of[byte]])
                    if cfg.terminals[other].refutes(moved):
                        break
                    if moved != DEAD:
                        still.append((other, moved))
                else:
                    left = frozenset(still)
                    if dfa.accepting[after]:
                        found[left | {(terminal, after)} if leads_on[after] else left] = None
                    if (after, left) not in seen:
                        seen.add((after, left))
                        todo.append((after, left))
        return sorted(found, key=len)[::-1]


def _heights(cfg: Cfg) -> list[int]:
    """Return the least height of a derivation of each nonterminal."""
    heights: dict[int, int] = {}
    waiting: dict[int, list[tuple[int, tuple[Symbol, ...]]]] = {}
    todo = [(n, rule) for n, rules in enumerate(cfg.alternatives) for rule in rules]
    for nonterminal, rule in todo:
        missing = next((symbol for symbol in rule if symbol >= 0 and symbol not in heights), None)
        if missing is not None:
            waiting.setdefault(missing, []).append((nonterminal, rule))
        elif nonterminal not in heights:
            heights[nonterminal] = 1 + max((heights[symbol] for symbol in rule if symbol >= 0), default=0)
            todo += waiting.pop(nonterminal, [])
    return [heights.get(n, 0) for n in range(len(cfg.alternatives))]
