r"""Determinisation of patterns whose look-around inspects one character, such as `\b`.

Look-behind is decided by the class of the last character. Look-ahead restricts the classes of the next character, and
the end of the text; a thread carries this restriction for one step. A state is a set of threads, and nothing nests.
`lookaround` determinises every other kind of look-around.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..budget import INTERPRETED, CompileBudget
from .char_dfa import CharDfa, trimmed_char_dfa
from .dfa import DEAD
from .nfa import CharNfa, LookGuard

START_OF_TEXT = -1  # in place of the class of the last character
Thread = tuple[int, int]  # an NFA state, and a bit set of what may come next: bit c for class c, one more for the end
Threads = frozenset[Thread]


def inspects_one_character(nfa: CharNfa) -> bool:
    """Return True if every look-around matches a single character."""
    return all(
        (move := nfa.moves[around.entry]) is not None and move[1] == around.accept and not nfa.epsilon[around.entry]
        for around in nfa.lookarounds
    )


def determinise_with_boundaries(nfa: CharNfa, budget: CompileBudget) -> CharDfa:
    """Determinise an NFA for which `inspects_one_character` holds. Raises GrammarError beyond the budget."""
    return _BoundaryDeterminiser(nfa, budget).run()


@dataclass(frozen=True)
class _Closure:
    """Epsilon closure of a state after a character of some class."""

    threads: tuple[Thread, ...]  # those that consume a character
    accepts: bool  # the text may end here


class _BoundaryDeterminiser:
    """Breadth-first search over sets of threads."""

    def __init__(self, nfa: CharNfa, budget: CompileBudget) -> None:
        self._nfa = nfa
        self._budget = budget
        self._end_bit = 1 << nfa.alphabet.num_classes
        self._anything = 2 * self._end_bit - 1
        self._looked_for = [self._classes(around.entry) for around in nfa.lookarounds]
        self._behind = self._behind_classes()
        self._closures: dict[tuple[int, int], _Closure] = {}
        self._loops = _loops(nfa, budget)
        self._owed = 0  # visits that have not been charged

    def run(self) -> CharDfa:
        """Number the sets of threads in the order in which they are reached, and fill their rows."""
        num_classes = self._nfa.alphabet.num_classes
        first = self._united([self._closure(self._nfa.pattern.entry, START_OF_TEXT)])
        number = {first: 1}
        keys = [first]
        moves: dict[tuple[int, frozenset[int]], int] = {}  # of what stands behind, and the states that are entered
        rows = [[DEAD] * num_classes]
        for threads, _ in keys:
            self._owed += num_classes + len(threads)
            targets: list[list[int]] = [[] for _ in range(num_classes)]
            for state, ahead in threads:
                classes, target = self._nfa.moves[state] or ((), DEAD)
                self._owed += len(classes)
                for label in classes:
                    if ahead >> label & 1:
                        targets[label].append(target)
            row = []
            for label, group in enumerate(targets):
                move = (self._behind[label], frozenset(group))
                after = moves.get(move)
                if after is None:
                    key = self._united([self._closure(target, label) for target in move[1]])
                    if not key[0] and not key[1]:
                        after = DEAD
                    elif (after := number.get(key)) is None:
                        after = number[key] = len(keys) + 1
                        keys.append(key)
                    moves[move] = after
                row.append(after)
            rows.append(row)
            self._budget.check(len(keys), self._owed * INTERPRETED // 3)
            self._owed = 0
        return trimmed_char_dfa(self._nfa.alphabet, rows, [False, *(ends for _, ends in keys)])

    def _united(self, closures: list[_Closure]) -> tuple[Threads, bool]:
        """Unite closures; drop threads that a looping state subsumes."""
        ahead_of: dict[int, int] = {}
        self._owed += 1
        for closure in closures:
            self._owed += len(closure.threads)
            for state, ahead in closure.threads:
                ahead_of[state] = ahead_of.get(state, 0) | ahead
        for loop, absorbed in self._loops:
            if ahead_of.get(loop) == self._anything:
                ahead_of = {state: ahead for state, ahead in ahead_of.items() if state not in absorbed}
        return frozenset(ahead_of.items()), any(closure.accepts for closure in closures)

    def _classes(self, state: int) -> int:
        classes, _ = self._nfa.moves[state] or ((), 0)
        return sum(1 << label for label in classes)

    def _behind_classes(self) -> list[int]:
        """Return the first class of characters that every look-behind judges like each class."""
        wanted = [
            looked_for
            for looked_for, around in zip(self._looked_for, self._nfa.lookarounds, strict=True)
            if not around.ahead
        ]
        first: dict[tuple[int, ...], int] = {}
        classes = range(self._nfa.alphabet.num_classes)
        return [first.setdefault(tuple(bits >> label & 1 for bits in wanted), label) for label in classes]

    def _closure(self, state: int, last: int) -> _Closure:
        """Return the epsilon closure of a state after a character of class `last`."""
        if last != START_OF_TEXT:
            last = self._behind[last]
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
            self._budget.check(0, (2 + len(nfa.epsilon[at]) + len(nfa.guarded.get(at, ()))) * INTERPRETED // 3)
            new = [(target, ahead) for target in nfa.epsilon[at]]
            for guard, target in nfa.guarded.get(at, ()):
                if guard == "end":
                    new.append((target, ahead & self._end_bit))
                elif guard == "start":
                    new.append((target, ahead if last == START_OF_TEXT else 0))
                elif isinstance(guard, LookGuard):
                    new.append((target, ahead & self._allowed(guard, last)))
            for thread in new:
                if thread[1] and thread not in seen:
                    seen.add(thread)
                    todo.append(thread)
        threads = tuple((at, ahead) for at, ahead in seen if nfa.moves[at] is not None and ahead != self._end_bit)
        return _Closure(threads, any(at == nfa.pattern.accept and ahead & self._end_bit for at, ahead in seen))

    def _allowed(self, guard: LookGuard, last: int) -> int:
        """Return the set of next classes for which a guard holds."""
        wanted = self._looked_for[guard.number]
        if self._nfa.lookarounds[guard.number].ahead:
            return self._anything & ~wanted if guard.negated else wanted
        is_behind = last != START_OF_TEXT and bool(wanted >> last & 1)
        return self._anything if is_behind != guard.negated else 0


def _loops(nfa: CharNfa, budget: CompileBudget) -> list[tuple[int, frozenset[int]]]:
    """Pair each accepting self-loop with the states that it subsumes: those that consume only classes of the loop."""
    found = []
    accepting = _accepting(nfa)
    for state, move in enumerate(nfa.moves):
        if move is not None and state in nfa.epsilon[move[1]] and state in accepting:
            found.append((state, frozenset(move[0])))
    if not found:
        return []
    consumes = [frozenset(move[0]) if move is not None else frozenset() for move in nfa.moves]
    changed = True
    while changed:
        changed = False
        for state in range(len(consumes) - 1, -1, -1):
            move = nfa.moves[state]
            after = [*nfa.epsilon[state], *([move[1]] if move else []), *(t for _, t in nfa.guarded.get(state, ()))]
            budget.check(0, (2 + sum(len(consumes[target]) for target in after)) * INTERPRETED // 10)
            merged = consumes[state].union(*(consumes[target] for target in after))
            if merged != consumes[state]:
                consumes[state], changed = merged, True
    return [
        (loop, frozenset(state for state, taken in enumerate(consumes) if state != loop and taken <= classes))
        for loop, classes in found
    ]


def _accepting(nfa: CharNfa) -> set[int]:
    """Return the states from which the text may end at once, whatever came before."""
    before: dict[int, list[int]] = {}
    for state, targets in enumerate(nfa.epsilon):
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
