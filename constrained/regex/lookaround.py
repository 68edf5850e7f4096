"""Patterns with look-ahead and look-behind to deterministic automata over classes of characters, exactly.

A pattern is at a set of threads. A thread is a place and the obligations that it took on where it passed a look-ahead:
threads of the look-ahead's own pattern, of which one must (or none may) ever arrive. What lies behind is known without
guessing: each look-behind's pattern runs along from every position. Obligations may nest, and may be taken on inside
repeats, so this determinises an alternating automaton (Chandra, Kozen and Stockmeyer 1981), under a budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..budget import CompileBudget
from .char_dfa import DEAD, CharDfa, trimmed_char_dfa
from .nfa import CharNfa, Fragment, LookGuard


class Obligation(NamedTuple):
    """One of `threads` must arrive at `accept`, or, if negated, none may."""

    accept: int
    negated: bool
    threads: Threads


class Thread(NamedTuple):
    place: int
    obligations: frozenset[Obligation]


Threads = frozenset[Thread]
_FREE: frozenset[Obligation] = frozenset()


@dataclass(frozen=True)
class _Position:
    """What is known of a position in the text: whether it is the first or last, and what each look-behind is at."""

    at_start: bool
    at_end: bool
    behind: tuple[Threads, ...]


def determinise_with_lookaround(nfa: CharNfa, budget: CompileBudget) -> CharDfa:
    """Raises GrammarError beyond the budget."""
    return _LookaroundDeterminiser(nfa, budget).run()


class _LookaroundDeterminiser:
    def __init__(self, nfa: CharNfa, budget: CompileBudget) -> None:
        self._nfa = nfa
        self._budget = budget
        self._num_states = 0
        self._steps: dict[tuple[Obligation, int, tuple[Threads, ...]], Obligation] = {}

    def run(self) -> CharDfa:
        nfa = self._nfa
        behind = self._behind(None)
        start = self._closed([Thread(nfa.pattern.entry, _FREE)], nfa.pattern.accept, _Position(True, False, behind))
        first = (start, behind, True)
        number = {first: 1}
        keys = [first]
        rows = [[DEAD] * nfa.alphabet.num_classes]
        accepting = [False]
        for threads, behind, at_start in keys:
            row = []
            for label in range(nfa.alphabet.num_classes):
                key = (*self._step(threads, behind, label), False)
                if not key[0]:
                    row.append(DEAD)
                    continue
                if key not in number:
                    number[key] = len(number) + 1
                    keys.append(key)
                    self._num_states = len(number)
                row.append(number[key])
            rows.append(row)
            accepting.append(self._ends(threads, nfa.pattern.accept, _Position(at_start, True, behind)))
        return trimmed_char_dfa(nfa.alphabet, rows, accepting)

    def _step(self, threads: Threads, behind: tuple[Threads, ...], label: int) -> tuple[Threads, tuple[Threads, ...]]:
        place = _Position(False, False, self._behind((behind, label)))
        return self._after(threads, self._nfa.pattern.accept, label, place, keeps=False), place.behind

    def _behind(self, last: tuple[tuple[Threads, ...], int] | None) -> tuple[Threads, ...]:
        """Where each look-behind's pattern is, after a character or at the text's start; it may also begin here.
        Inner ones come first."""
        found: tuple[Threads, ...] = ()
        for number, around in enumerate(self._nfa.arounds):
            place = _Position(last is None, False, found)
            threads: Threads = frozenset()
            if not around.ahead:
                threads = self._closed([Thread(around.entry, _FREE)], None, place)
                if last is not None:
                    threads |= self._after(last[0][number], None, last[1], place, keeps=False)
            found += (threads,)
        return found

    def _moved(self, threads: Threads, accept: int | None, label: int) -> list[Thread]:
        """After a character; those that have arrived at `accept` stay. Their obligations have not moved yet."""
        moved = []
        for thread in threads:
            move = self._nfa.moves[thread.place]
            if thread.place == accept:
                moved.append(thread)
            elif move is not None and label in move[0]:
                moved.append(Thread(move[1], thread.obligations))
        return moved

    def _after(self, threads: Threads, accept: int | None, label: int, place: _Position, keeps: bool) -> Threads:
        """After a character, obligations and all."""
        self._budget.check(self._num_states)
        moved = []
        for thread in self._moved(threads, accept if keeps else None, label):
            obligations = self._kept(self._obligation_after(o, label, place) for o in thread.obligations)
            if obligations is not None:
                moved.append(Thread(thread.place, obligations))
        return self._closed(moved, accept if keeps else None, place)

    def _obligation_after(self, obligation: Obligation, label: int, place: _Position) -> Obligation:
        key = (obligation, label, place.behind)
        if key not in self._steps:
            accept, negated, threads = obligation
            self._steps[key] = Obligation(accept, negated, self._after(threads, accept, label, place, keeps=True))
        return self._steps[key]

    def _closed(self, threads: list[Thread], accept: int | None, place: _Position) -> Threads:
        """The threads, and all that they reach without a character."""
        nfa = self._nfa
        seen = set(threads)
        todo = list(seen)
        while todo:
            if len(seen) % 64 == 0:
                self._budget.check(self._num_states)
            at, obligations = todo.pop()
            new = [Thread(target, obligations) for target in nfa.free[at]]
            for guard, target in nfa.guarded.get(at, ()):
                if isinstance(guard, LookGuard):
                    added = self._obligation(guard, nfa.arounds[guard.number], place)
                    kept = self._kept((*obligations, added))
                    if kept is not None:
                        new.append(Thread(target, kept))
                elif place.at_start if guard == "start" else place.at_end:
                    new.append(Thread(target, obligations))
            for thread in new:
                if thread not in seen:
                    seen.add(thread)
                    todo.append(thread)
        return self._least(seen)

    def _obligation(self, guard: LookGuard, around: Fragment, place: _Position) -> Obligation:
        if around.ahead:
            begun = [Thread(around.entry, _FREE)]
            return Obligation(around.accept, guard.negated, self._closed(begun, around.accept, place))
        arrived = frozenset(t for t in place.behind[guard.number] if t.place == around.accept)
        return Obligation(around.accept, guard.negated, arrived)

    def _kept(self, obligations: Iterable[Obligation]) -> frozenset[Obligation] | None:
        """Those that are still open; None when one is broken."""
        kept = []
        for obligation in obligations:
            arrived = Thread(obligation.accept, _FREE) in obligation.threads
            if arrived or not obligation.threads:
                if arrived == obligation.negated:
                    return None
            else:
                kept.append(obligation)
        return frozenset(kept)

    def _least(self, threads: set[Thread]) -> Threads:
        """Without places that do nothing, and without threads that another at their place makes needless."""
        nfa = self._nfa
        by_place: dict[int, list[frozenset[Obligation]]] = {}
        for place, obligations in threads:
            if place in nfa.useful:
                by_place.setdefault(place, []).append(obligations)
        for place in nfa.absorbing:
            if _FREE in by_place.get(place, ()):
                return frozenset([Thread(place, _FREE), Thread(nfa.pattern.accept, _FREE)])
        return frozenset(
            Thread(place, obligations)
            for place, group in by_place.items()
            for obligations in group
            if not any(other < obligations for other in group)
        )

    def _ends(self, threads: Threads, accept: int, place: _Position) -> bool:
        """Whether one of the threads is through if the text ends here."""
        for at, obligations in self._closed(list(threads), accept, place):
            if at == accept and all(self._ends(o.threads, o.accept, place) != o.negated for o in obligations):
                return True
        return False
