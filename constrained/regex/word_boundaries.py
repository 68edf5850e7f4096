r"""Patterns whose look-around sees one character, such as `\b`, to deterministic automata over classes of characters.

What lies behind is told by the class of the last character. What must lie ahead is a set of classes of the next one,
and whether the text may end instead; a thread of the pattern carries it for one step. So a state is a set of threads as
in `subset`, and nothing nests. Other look-around goes through `lookaround`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..budget import CompileBudget
from .char_dfa import DEAD, CharDfa, trimmed_char_dfa
from .nfa import CharNfa, LookGuard

START_OF_TEXT = -1  # in place of the class of the last character
Thread = tuple[int, int]  # a state, and what may come next: bit c for class c, and one more bit for the text's end
Threads = frozenset[Thread]


def sees_one_character(nfa: CharNfa) -> bool:
    """Whether all look-around is of a single set of characters."""
    return all(
        (move := nfa.moves[around.entry]) is not None and move[1] == around.accept and not nfa.free[around.entry]
        for around in nfa.arounds
    )


def determinise_with_boundaries(nfa: CharNfa, budget: CompileBudget) -> CharDfa:
    """Raises GrammarError beyond the budget. `nfa` sees one character."""
    return _BoundaryDeterminiser(nfa, budget).run()


@dataclass(frozen=True)
class _Closure:
    going_on: tuple[Thread, ...]
    ends: bool  # whether the text may end here


class _BoundaryDeterminiser:
    def __init__(self, nfa: CharNfa, budget: CompileBudget) -> None:
        self._nfa = nfa
        self._budget = budget
        self._end = 1 << nfa.alphabet.num_classes
        self._anything = 2 * self._end - 1
        self._seen = [self._classes(around.entry) for around in nfa.arounds]
        self._closures: dict[tuple[int, int], _Closure] = {}
        self._loops = _loops(nfa)

    def run(self) -> CharDfa:
        num_classes = self._nfa.alphabet.num_classes
        first = self._entered([self._closure(self._nfa.pattern.entry, START_OF_TEXT)])
        number = {first: 1}
        keys = [first]
        rows = [[DEAD] * num_classes]
        for threads, _ in keys:
            self._budget.check(len(keys))
            targets: list[list[int]] = [[] for _ in range(num_classes)]
            for state, ahead in threads:
                classes, target = self._nfa.moves[state] or ((), DEAD)
                for label in classes:
                    if ahead >> label & 1:
                        targets[label].append(target)
            row = []
            for label, group in enumerate(targets):
                key = self._entered([self._closure(target, label) for target in set(group)])
                if not key[0] and not key[1]:
                    row.append(DEAD)
                    continue
                if key not in number:
                    number[key] = len(keys) + 1
                    keys.append(key)
                row.append(number[key])
            rows.append(row)
        return trimmed_char_dfa(self._nfa.alphabet, rows, [False, *(ends for _, ends in keys)])

    def _entered(self, closures: list[_Closure]) -> tuple[Threads, bool]:
        """All together, without the threads that another makes needless."""
        ahead_of: dict[int, int] = {}
        for closure in closures:
            for state, ahead in closure.going_on:
                ahead_of[state] = ahead_of.get(state, 0) | ahead
        for loop, absorbed in self._loops:
            if ahead_of.get(loop) == self._anything:
                ahead_of = {state: ahead for state, ahead in ahead_of.items() if state not in absorbed}
        return frozenset(ahead_of.items()), any(closure.ends for closure in closures)

    def _classes(self, state: int) -> int:
        classes, _ = self._nfa.moves[state] or ((), 0)
        return sum(1 << label for label in classes)

    def _closure(self, state: int, last: int) -> _Closure:
        """What can be reached without a character after one of class `last`."""
        key = (state, last)
        if key not in self._closures:
            self._closures[key] = self._search(state, last)
        return self._closures[key]

    def _search(self, state: int, last: int) -> _Closure:
        nfa = self._nfa
        seen: set[Thread] = {(state, self._anything)}
        todo = list(seen)
        while todo:
            at, ahead = todo.pop()
            new = [(target, ahead) for target in nfa.free[at]]
            for guard, target in nfa.guarded.get(at, ()):
                if guard == "end":
                    new.append((target, ahead & self._end))
                elif guard == "start":
                    new.append((target, ahead if last == START_OF_TEXT else 0))
                elif isinstance(guard, LookGuard):
                    new.append((target, ahead & self._allowed(guard, last)))
            for thread in new:
                if thread[1] and thread not in seen:
                    seen.add(thread)
                    todo.append(thread)
        self._budget.check(0)
        going_on = tuple((at, ahead) for at, ahead in seen if nfa.moves[at] is not None and ahead != self._end)
        return _Closure(going_on, any(at == nfa.pattern.accept and ahead & self._end for at, ahead in seen))

    def _allowed(self, guard: LookGuard, last: int) -> int:
        """What may come next where the guard holds."""
        wanted = self._seen[guard.number]
        if self._nfa.arounds[guard.number].ahead:
            return self._anything & ~wanted if guard.negated else wanted
        is_behind = last != START_OF_TEXT and bool(wanted >> last & 1)
        return self._anything if is_behind != guard.negated else 0


def _loops(nfa: CharNfa) -> list[tuple[int, frozenset[int]]]:
    """States that take some classes for ever and may end, and the others that take no class besides: whatever those
    accept, the loop does."""
    found = []
    ends = _ends(nfa)
    for state, move in enumerate(nfa.moves):
        if move is not None and state in nfa.free[move[1]] and state in ends:
            found.append((state, frozenset(move[0])))
    if not found:
        return []
    takes = [frozenset(move[0]) if move is not None else frozenset() for move in nfa.moves]
    changed = True
    while changed:
        changed = False
        for state in range(len(takes) - 1, -1, -1):
            move = nfa.moves[state]
            after = [*nfa.free[state], *([move[1]] if move else []), *(t for _, t in nfa.guarded.get(state, ()))]
            merged = takes[state].union(*(takes[target] for target in after))
            if merged != takes[state]:
                takes[state], changed = merged, True
    return [
        (loop, frozenset(state for state, taken in enumerate(takes) if state != loop and taken <= classes))
        for loop, classes in found
    ]


def _ends(nfa: CharNfa) -> set[int]:
    """States from which the text may end at once, whatever came before."""
    before: dict[int, list[int]] = {}
    for state, targets in enumerate(nfa.free):
        for target in targets:
            before.setdefault(target, []).append(state)
    for state, guards in nfa.guarded.items():
        for guard, target in guards:
            if guard == "end":
                before.setdefault(target, []).append(state)
    seen = {nfa.pattern.accept}
    todo = list(seen)
    while todo:
        new = [state for state in before.get(todo.pop(), ()) if state not in seen]
        seen.update(new)
        todo += new
    return seen
