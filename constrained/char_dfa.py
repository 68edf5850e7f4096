"""Deterministic automata over classes of characters, and the algebra of the languages they accept. Knows no bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .alphabet import NO_CLASS, Alphabet, alphabet_of, common_alphabet
from .budget import Budget
from .charset import ALL

DEAD, START = 0, 1


@dataclass(frozen=True, eq=False)
class CharDfa:
    """S states, one column a class of characters. State 0 is dead, state 1 the start; from every other state an
    accepting one can be reached. An automaton that accepts nothing has a start from which none can."""

    alphabet: Alphabet
    table: NDArray[np.int32]  # [S, classes]
    accepting: NDArray[np.bool_]  # [S]

    @property
    def num_states(self) -> int:
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is accepted."""
        return not self.accepting.any()

    def accepts(self, text: str) -> bool:
        state = START
        for character in text:
            label = self.alphabet.class_of(ord(character))
            if label == NO_CLASS:
                return False
            state = int(self.table[state, label])
            if state == DEAD:
                return False
        return bool(self.accepting[state])

    def intersect(self, other: CharDfa, budget: Budget | None = None) -> CharDfa:
        """What both accept. This and the others raise GrammarError beyond the budget."""
        return _product(self, other, budget or Budget(), lambda a, b: a and b, lambda a, b: a != DEAD and b != DEAD)

    def union(self, other: CharDfa, budget: Budget | None = None) -> CharDfa:
        return _product(self, other, budget or Budget(), lambda a, b: a or b, lambda a, b: True)

    def minus(self, other: CharDfa, budget: Budget | None = None) -> CharDfa:
        return _product(self, other, budget or Budget(), lambda a, b: a and not b, lambda a, b: a != DEAD)

    def complement(self) -> CharDfa:
        """Every text but those accepted."""
        return length_chars(0, None).minus(self)

    def up_to(self, ends: Sequence[str], budget: Budget) -> CharDfa:
        """Texts of this, followed by one of `ends`, that have no other such beginning."""
        letters = tuple(dict.fromkeys(((ord(letter), ord(letter)),) for end in ends for letter in end))
        alphabet, from_self, _ = common_alphabet(self.alphabet, alphabet_of(letters)[0])
        spelled = [[alphabet.class_of(ord(letter)) for letter in end] for end in ends]
        table = self.table[:, from_self].tolist()
        first = (START, frozenset[tuple[int, int]]())
        number = {first: START + 1}  # after the end, which is state 1 until the two change places
        keys = [first]
        rows = [[DEAD] * alphabet.num_classes] * 2
        for state, partial in keys:
            budget.check(len(keys))
            begun = partial | {(end, 0) for end in range(len(ends))} if self.accepting[state] else partial
            row = []
            for label in range(alphabet.num_classes):
                moved = {(end, at + 1) for end, at in begun if spelled[end][at] == label}
                key = int(table[state][label]), frozenset(moved)
                if any(at == len(spelled[end]) for end, at in moved):
                    row.append(START)
                elif key == (DEAD, frozenset()):
                    row.append(DEAD)
                else:
                    if key not in number:
                        number[key] = len(number) + START + 1
                        keys.append(key)
                    row.append(number[key])
            rows.append(row)
        rows[1], rows[2] = rows[2], rows[1]
        swapped = [[{1: 2, 2: 1}.get(target, target) for target in row] for row in rows]
        return trimmed_chars(alphabet, swapped, [number == 2 for number in range(len(rows))])

    def witness(self) -> str | None:
        """A shortest text that is accepted; None when there is none."""
        reached: dict[int, tuple[int, int]] = {START: (DEAD, 0)}
        order = [START]
        for state in order:
            if self.accepting[state]:
                labels: list[int] = []
                while state != START:
                    state, label = reached[state]
                    labels.append(label)
                return "".join(_typical(self.alphabet, label) for label in reversed(labels))
            for label, target in enumerate(self.table[state].tolist()):
                if target != DEAD and target not in reached:
                    reached[target] = (state, label)
                    order.append(target)
        return None


def trimmed_chars(alphabet: Alphabet, rows: Sequence[Sequence[int]], accepting: Sequence[bool]) -> CharDfa:
    """The automaton without the states from which no accepting one can be reached. Every state is reachable."""
    sources: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in set(row):
            sources[target].append(state)
    alive = {state for state, accepts in enumerate(accepting) if accepts}
    todo = list(alive)
    while todo:
        new = [source for source in sources[todo.pop()] if source not in alive]
        alive.update(new)
        todo += new
    alive -= {DEAD}
    table = np.array(rows, np.int32).reshape(len(rows), alphabet.num_classes)
    ends = np.array(accepting, np.bool_)
    if len(alive) == len(rows) - 1:
        return CharDfa(alphabet, table, ends)
    kept = [DEAD, *sorted(alive | {START})]
    number = np.zeros(len(rows), np.int32)
    number[kept] = np.arange(len(kept))
    return CharDfa(alphabet, number[table[kept]], ends[kept])


def length_chars(least: int, most: int | None, budget: Budget | None = None) -> CharDfa:
    """All texts of so many characters."""
    last = least if most is None else most
    (budget or Budget()).check(last + 2)
    alphabet, _ = alphabet_of((ALL,))
    rows = [[DEAD]] + [[START + length + 1] for length in range(last)] + [[START + last if most is None else DEAD]]
    return trimmed_chars(alphabet, rows, [False, *(least <= length for length in range(last + 1))])


def _product(
    a: CharDfa, b: CharDfa, budget: Budget, ends: Callable[[bool, bool], bool], lives: Callable[[int, int], bool]
) -> CharDfa:
    """Pairs of states, found breadth first."""
    alphabet, from_a, from_b = common_alphabet(a.alphabet, b.alphabet)
    rows_a, rows_b = a.table[:, from_a].tolist(), b.table[:, from_b].tolist()
    ends_a, ends_b = a.accepting.tolist(), b.accepting.tolist()
    number = {(START, START): START}
    pairs = [(START, START)]
    rows = [[DEAD] * alphabet.num_classes]
    accepting = [False]
    for state_a, state_b in pairs:
        if len(rows) % 64 == 0:
            budget.check(len(number))
        row = []
        for pair in zip(rows_a[state_a], rows_b[state_b], strict=True):
            target = number.get(pair)
            if target is None:
                if pair == (DEAD, DEAD) or not lives(*pair):
                    target = DEAD
                else:
                    target = number[pair] = len(number) + START
                    pairs.append(pair)
            row.append(target)
        rows.append(row)
        accepting.append(ends(ends_a[state_a], ends_b[state_b]))
    return trimmed_chars(alphabet, rows, accepting)


def _typical(alphabet: Alphabet, label: int) -> str:
    """A member of the class, a letter or digit if there is one."""
    codes = [*b"a0A ", *range(0x21, 0x7F)]
    return chr(next((code for code in codes if alphabet.class_of(code) == label), alphabet.members(label)[0][0]))
