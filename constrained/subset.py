"""Nondeterministic automata over classes of characters to deterministic ones (the subset construction).

A state is the set of places where the pattern may be, and whether the text may end there. Places behind which anything
may follow absorb all others. Patterns with look-around go through `boundaries` or
`lookaround` instead.
"""

from __future__ import annotations

from .boundaries import determinise_with_boundaries, sees_one_character
from .budget import Budget
from .char_dfa import DEAD, CharDfa, trimmed_chars
from .charset import ALL
from .expression import Chars, Expression, Look, Sequence, TextStart, repeat, sequence
from .lookaround import determinise_with_lookaround
from .thompson import CharNfa, build_char_nfa

Key = tuple[frozenset[int], bool]  # the states that take a character, and whether the text may end


def char_dfa(expression: Expression, budget: Budget) -> CharDfa:
    """The automaton of an expression whose anchors mean the ends of the text. Raises GrammarError beyond the budget."""
    looks, rest = _leading_looks(expression)
    nfa = build_char_nfa(rest, budget)
    found = _determinised(nfa, budget)
    for look in looks:
        ahead = char_dfa(sequence(look.part, repeat(Chars(ALL), 0, None)), budget)
        found = found.minus(ahead, budget) if look.negated else found.intersect(ahead, budget)
    return found


def _determinised(nfa: CharNfa, budget: Budget) -> CharDfa:
    if not nfa.arounds:
        return _Determiniser(nfa, budget).run()
    if sees_one_character(nfa):
        return determinise_with_boundaries(nfa, budget)
    return determinise_with_lookaround(nfa, budget)


def _leading_looks(expression: Expression) -> tuple[list[Look], Expression]:
    """Look-ahead at the text's start, which is but an intersection, and the rest."""
    parts = list(expression.parts) if isinstance(expression, Sequence) else []
    looks: list[Look] = []
    if parts and parts[0] == TextStart():
        at = 1
        while at < len(parts) and isinstance(look := parts[at], Look) and look.ahead:
            looks.append(look)
            del parts[at]
    return looks, sequence(*parts) if looks else expression


class _Determiniser:
    def __init__(self, nfa: CharNfa, budget: Budget) -> None:
        self._nfa = nfa
        self._budget = budget
        self._closures: dict[int, Key] = {}
        self._unions: dict[frozenset[int], int] = {}
        self._number: dict[Key, int] = {}
        self._keys: list[Key] = [(frozenset(), False)]  # the dead state; the start is the next
        self._work = 0

    def run(self) -> CharDfa:
        num_classes = self._nfa.alphabet.num_classes
        self._enter(self._search(self._nfa.pattern.entry, at_start=True))
        rows = [[DEAD] * num_classes]
        while len(rows) < len(self._keys):
            if len(rows) % 16 == 0:
                self._budget.check(len(self._keys))
            rows.append(self._row(self._keys[len(rows)][0], num_classes))
        return trimmed_chars(self._nfa.alphabet, rows, [ends for _, ends in self._keys])

    def _row(self, states: frozenset[int], num_classes: int) -> list[int]:
        moves = self._nfa.moves
        row = [DEAD] * num_classes
        if len(states) == 1:
            for state in states:
                classes, target = moves[state] or ((), DEAD)
                after = self._after(frozenset((target,))) if classes else DEAD
                for label in classes:
                    row[label] = after
            return row
        targets: list[list[int]] = [[] for _ in row]
        for state in states:
            classes, target = moves[state] or ((), DEAD)
            for label in classes:
                targets[label].append(target)
        self._spend(len(states) * num_classes)
        return [self._after(frozenset(group)) if group else DEAD for group in targets]

    def _after(self, targets: frozenset[int]) -> int:
        number = self._unions.get(targets)
        if number is None:
            parts = [self._closure(target) for target in targets]
            if len(parts) == 1:
                key = parts[0]
            else:
                inner = frozenset[int]().union(*(part for part, _ in parts))
                self._spend(len(inner))
                key = self._absorbed(inner), any(ends for _, ends in parts)
            number = self._unions[targets] = self._enter(key)
        return number

    def _enter(self, key: Key) -> int:
        if not key[0] and not key[1]:
            return DEAD if len(self._keys) > 1 else self._append(key)
        return self._number[key] if key in self._number else self._append(key)

    def _append(self, key: Key) -> int:
        self._number[key] = len(self._keys)
        self._keys.append(key)
        return self._number[key]

    def _closure(self, state: int) -> Key:
        key = self._closures.get(state)
        if key is None:
            key = self._closures[state] = self._search(state, at_start=False)
        return key

    def _search(self, state: int, at_start: bool) -> Key:
        """What can be reached without a character: first as the text goes on, then as it ends."""
        nfa = self._nfa
        seen = {state}
        todo = [state]
        at_end: list[int] = []
        while todo:
            state = todo.pop()
            new = [target for target in nfa.free[state] if target not in seen]
            if state in nfa.guarded:
                for guard, target in nfa.guarded[state]:
                    if guard == "end":
                        at_end.append(target)
                    elif at_start and target not in seen:
                        new.append(target)
            seen.update(new)
            todo += new
        self._spend(len(seen))
        inner = self._absorbed(frozenset(s for s in seen if nfa.moves[s] is not None))
        while at_end:
            state = at_end.pop()
            if state not in seen:
                seen.add(state)
                at_end += nfa.free[state]
                at_end += [t for guard, t in nfa.guarded.get(state, ()) if guard == "end" or at_start]
        return inner, nfa.pattern.accept in seen

    def _absorbed(self, states: frozenset[int]) -> frozenset[int]:
        for state in self._nfa.absorbing & states if self._nfa.absorbing else ():
            return frozenset([state])
        return states

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > 20_000:
            self._work = 0
            self._budget.check(len(self._keys))
