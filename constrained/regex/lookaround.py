"""Determinisation of patterns with look-ahead and look-behind, exactly.

A state is a set of threads. A thread is an NFA state and the obligations of the look-aheads that it passed: threads of
the look-ahead's own pattern, one of which must (or none of which may) ever accept. Look-behind needs no obligations:
its pattern runs alongside from every position. Obligations may nest, and may arise inside repeats, so this determinises
an alternating automaton (Chandra, Kozen and Stockmeyer 1981), under a budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..budget import INTERPRETED, CompileBudget
from .char_dfa import CharDfa, trimmed_char_dfa
from .dfa import DEAD
from .nfa import CharNfa, Fragment, LookGuard


class Obligation(NamedTuple):
    """One of `threads` must reach the state `accept`; if negated, none may."""

    accept: int
    negated: bool
    threads: Threads


class Thread(NamedTuple):
    """An NFA state, and what must still match from here."""

    state: int
    obligations: frozenset[Obligation]


Threads = frozenset[Thread]
_NONE: frozenset[Obligation] = frozenset()


@dataclass(frozen=True)
class _Position:
    """A position in the text: whether it is the first or last, and the threads of each look-behind there."""

    at_start: bool
    at_end: bool
    behind: tuple[Threads, ...]


def determinise_with_lookaround(nfa: CharNfa, budget: CompileBudget) -> CharDfa:
    """Determinise an NFA with any look-around. Raises GrammarError beyond the budget."""
    return _LookaroundDeterminiser(nfa, budget).run()


class _LookaroundDeterminiser:
    """Breadth-first search over sets of threads."""

    def __init__(self, nfa: CharNfa, budget: CompileBudget) -> None:
        self._nfa = nfa
        self._budget = budget
        self._num_states = 0
        self._steps: dict[tuple[Obligation, int, tuple[Threads, ...]], Obligation] = {}

    def run(self) -> CharDfa:
        """Number the sets of threads in the order in which they are reached, and fill their rows."""
        nfa = self._nfa
        behind = self._behind(None)
        start = self._closed([Thread(nfa.pattern.entry, _NONE)], nfa.pattern.accept, _Position(True, False, behind))
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
        position = _Position(False, False, self._behind((behind, label)))
        return self._after(threads, self._nfa.pattern.accept, label, position, keeps=False), position.behind

    def _behind(self, last: tuple[tuple[Threads, ...], int] | None) -> tuple[Threads, ...]:
        """Return the threads of each look-behind after a character, or at the start of the text if `last` is None.

        A look-behind may also begin here. Inner ones come first.
        """
        found: tuple[Threads, ...] = ()
        for number, fragment in enumerate(self._nfa.lookarounds):
            position = _Position(last is None, False, found)
            threads: Threads = frozenset()
            if not fragment.ahead:
                threads = self._closed([Thread(fragment.entry, _NONE)], None, position)
                if last is not None:
                    threads |= self._after(last[0][number], None, last[1], position, keeps=False)
            found += (threads,)
        return found

    def _moved(self, threads: Threads, accept: int | None, label: int) -> list[Thread]:
        """Advance threads by a character, but not yet their obligations. Threads at `accept` stay."""
        moved = []
        for thread in threads:
            move = self._nfa.moves[thread.state]
            if thread.state == accept:
                moved.append(thread)
            elif move is not None and label in move[0]:
                moved.append(Thread(move[1], thread.obligations))
        return moved

    def _after(self, threads: Threads, accept: int | None, label: int, position: _Position, keeps: bool) -> Threads:
        """Advance threads and their obligations by a character, and close them.

        If `keeps`, threads at `accept` stay.
        """
        self._budget.check(self._num_states, (2 + len(threads)) * INTERPRETED)
        moved = []
        for thread in self._moved(threads, accept if keeps else None, label):
            self._budget.check(self._num_states, (2 + 2 * len(thread.obligations)) * INTERPRETED)
            obligations = self._still_open(self._obligation_after(o, label, position) for o in thread.obligations)
            if obligations is not None:
                moved.append(Thread(thread.state, obligations))
        return self._closed(moved, accept if keeps else None, position)

    def _obligation_after(self, obligation: Obligation, label: int, position: _Position) -> Obligation:
        key = (obligation, label, position.behind)
        if key not in self._steps:
            accept, negated, threads = obligation
            self._steps[key] = Obligation(accept, negated, self._after(threads, accept, label, position, keeps=True))
        return self._steps[key]

    def _closed(self, threads: list[Thread], accept: int | None, position: _Position) -> Threads:
        """Return the epsilon closure of threads."""
        nfa = self._nfa
        seen = set(threads)
        todo = list(seen)
        while todo:
            at, obligations = todo.pop()
            edges = len(nfa.epsilon[at]) + len(nfa.guarded.get(at, ())) * (1 + len(obligations))
            self._budget.check(self._num_states, (2 + edges) * INTERPRETED)
            new = [Thread(target, obligations) for target in nfa.epsilon[at]]
            for guard, target in nfa.guarded.get(at, ()):
                if isinstance(guard, LookGuard):
                    added = self._obligation(guard, nfa.lookarounds[guard.number], position)
                    kept = self._still_open((*obligations, added))
                    if kept is not None:
                        new.append(Thread(target, kept))
                elif position.at_start if guard == "start" else position.at_end:
                    new.append(Thread(target, obligations))
            for thread in new:
                if thread not in seen:
                    seen.add(thread)
                    todo.append(thread)
        return self._minimal(seen)

    def _obligation(self, guard: LookGuard, fragment: Fragment, position: _Position) -> Obligation:
        if fragment.ahead:
            begun = [Thread(fragment.entry, _NONE)]
            return Obligation(fragment.accept, guard.negated, self._closed(begun, fragment.accept, position))
        arrived = frozenset(t for t in position.behind[guard.number] if t.state == fragment.accept)
        return Obligation(fragment.accept, guard.negated, arrived)

    def _still_open(self, obligations: Iterable[Obligation]) -> frozenset[Obligation] | None:
        """Return the obligations that are still open; None if one has failed."""
        kept = []
        for obligation in obligations:
            arrived = Thread(obligation.accept, _NONE) in obligation.threads
            if arrived or not obligation.threads:
                if arrived == obligation.negated:
                    return None
            else:
                kept.append(obligation)
        return frozenset(kept)

    def _minimal(self, threads: set[Thread]) -> Threads:
        """Drop threads in useless states, and threads from which another with no more obligations leads further.

        That is one in their state, or in a lower one of its chain.
        """
        nfa = self._nfa
        self._budget.check(self._num_states, len(threads) * INTERPRETED)
        groups: dict[int, list[tuple[int, Thread]]] = {}
        for thread in threads:
            if thread.state in nfa.useful:
                chain, rank = nfa.chains.get(thread.state, (-1 - thread.state, 0))
                groups.setdefault(chain, []).append((rank, thread))
        # Each thread's obligations are compared with those of all others of its group.
        self._budget.check(self._num_states, sum(len(group) ** 2 for group in groups.values()) * INTERPRETED // 5)
        for state in nfa.absorbing:
            if Thread(state, _NONE) in threads:
                return frozenset([Thread(state, _NONE), Thread(nfa.pattern.accept, _NONE)])
        return frozenset(
            thread
            for group in groups.values()
            for rank, thread in group
            if not any(
                lower <= rank and other.obligations <= thread.obligations and other != thread for lower, other in group
            )
        )

    def _ends(self, threads: Threads, accept: int, position: _Position) -> bool:
        """Return True if a thread accepts, with all its obligations met, when the text ends here."""
        for at, obligations in self._closed(list(threads), accept, position):
            if at == accept and all(self._ends(o.threads, o.accept, position) != o.negated for o in obligations):
                return True
        return False
