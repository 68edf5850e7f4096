"""Deterministic automata over classes of characters, with Boolean operations on the languages that they accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..budget import INTERPRETED, CompileBudget
from .alphabet import NO_CLASS, Alphabet, alphabet_of, common_alphabet
from .charset import ALL
from .dfa import DEAD, START
from .pair_product import Lives, pair_product

MAX_TOLD, MIN_ROUNDS = 1_000_000, 8  # states that are told apart by one more character, in all rounds together; rounds


@dataclass(frozen=True, eq=False)
class CharDfa:
    """Automaton of S states with one column per class of characters.

    State 0 is dead, state 1 the start. From every other state an accepting one can be reached. The start of an
    automaton that accepts nothing reaches none.
    """

    alphabet: Alphabet
    table: NDArray[np.int32]  # [S, classes]
    accepting: NDArray[np.bool_]  # [S]

    @property
    def num_states(self) -> int:
        """Number of states, with the dead one."""
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """True if no text is accepted."""
        return not self.accepting.any()

    def accepts(self, text: str) -> bool:
        """Return True if the whole text is accepted."""
        return bool(self.accepting[self.state_after(text)])

    def state_after(self, text: str) -> int:
        """Return the state after a text, `DEAD` if no accepted text begins with it."""
        state, table = START, self.table
        for character in text:
            label = self.alphabet.class_of(ord(character))
            state = DEAD if label == NO_CLASS else table.item(state, label)
            if state == DEAD:
                break
        return state

    def intersect(self, other: CharDfa, budget: CompileBudget | None = None) -> CharDfa:
        """Accept what both accept. Raises GrammarError beyond the budget."""
        return _product(self, other, "both", budget)

    def union(self, other: CharDfa, budget: CompileBudget | None = None) -> CharDfa:
        """Accept what either accepts. Raises GrammarError beyond the budget."""
        return _product(self, other, "either", budget)

    def minus(self, other: CharDfa, budget: CompileBudget | None = None) -> CharDfa:
        """Accept what this accepts and `other` does not. Raises GrammarError beyond the budget."""
        return _product(self, other, "only first", budget)

    def minimal(self) -> CharDfa:
        """Return the smallest automaton that accepts the same texts."""
        table, labels = minimal_table(self.table, self.accepting.astype(np.int32))
        return CharDfa(self.alphabet, table, labels == 1)

    def complement(self) -> CharDfa:
        """Accept every other text."""
        return length_char_dfa(0, None).minus(self)

    def up_to(self, ends: Sequence[str], budget: CompileBudget) -> CharDfa:
        """Accept a text of this automaton followed by one of `ends`, cut at the first such end."""
        letters = tuple(dict.fromkeys(((ord(letter), ord(letter)),) for end in ends for letter in end))
        alphabet, from_self, _ = common_alphabet(self.alphabet, alphabet_of(letters)[0])
        spelled = [[alphabet.class_of(ord(letter)) for letter in end] for end in ends]
        table = self.table[:, from_self].tolist()
        first = (START, frozenset[tuple[int, int]]())
        number = {first: START + 1}  # the end is state 1 until it is swapped with the start, which is state 2 so far
        keys = [first]
        rows = [[DEAD] * alphabet.num_classes] * 2
        for state, partial in keys:
            budget.check(len(keys), alphabet.num_classes * (1 + len(partial) + len(ends)) * INTERPRETED)
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
        return trimmed_char_dfa(alphabet, swapped, [number == 2 for number in range(len(rows))])

    def witness(self) -> str | None:
        """Return a shortest accepted text; None if there is none."""
        reached: dict[int, tuple[int, int]] = {START: (DEAD, 0)}
        order = [START]
        for state in order:
            if self.accepting[state]:
                labels: list[int] = []
                while state != START:
                    state, label = reached[state]
                    labels.append(label)
                return "".join(_readable_member(self.alphabet, label) for label in reversed(labels))
            for label, target in enumerate(self.table[state].tolist()):
                if target != DEAD and target not in reached:
                    reached[target] = (state, label)
                    order.append(target)
        return None


def trimmed_char_dfa(
    alphabet: Alphabet, rows: Sequence[Sequence[int]] | NDArray[np.int32], accepting: Sequence[bool] | NDArray[np.bool_]
) -> CharDfa:
    """Build an automaton without the states that reach no accepting one. Every state must be reachable.

    `rows` is [S, classes], `accepting` is [S].
    """
    from . import dfa_kernel  # not at the top: it imports numba

    table = np.ascontiguousarray(rows, np.int32).reshape(len(rows), alphabet.num_classes)
    ends = np.array(accepting, np.bool_)
    kept = dfa_kernel.alive(table, ends)
    kept[DEAD] = False
    if kept[1:].all():
        return CharDfa(alphabet, table, ends)
    kept[[DEAD, START]] = True
    number = np.where(kept, np.cumsum(kept, dtype=np.int32) - 1, DEAD).astype(np.int32)
    return CharDfa(alphabet, number[table[kept]], ends[kept])


def length_char_dfa(least: int, most: int | None, budget: CompileBudget | None = None) -> CharDfa:
    """Accept every text of `least` to `most` characters (None: unbounded)."""
    last = least if most is None else most
    (budget or CompileBudget()).check(last + 2, (last + 2) * INTERPRETED)
    alphabet, _ = alphabet_of((ALL,))
    rows = [[DEAD]] + [[START + length + 1] for length in range(last)] + [[START + last if most is None else DEAD]]
    return trimmed_char_dfa(alphabet, rows, [False, *(least <= length for length in range(last + 1))])


def _product(
    a: CharDfa, b: CharDfa, accepts: Literal["both", "only first", "either"], budget: CompileBudget | None
) -> CharDfa:
    """Build the product automaton, which accepts by both factors."""
    alphabet, from_a, from_b = common_alphabet(a.alphabet, b.alphabet)
    lives: Lives = "first" if accepts == "only first" else accepts
    check = (budget or CompileBudget()).check
    table, pairs = pair_product(a.table[:, from_a], b.table[:, from_b], lives, check)
    in_a, in_b = a.accepting[pairs[:, 0]], b.accepting[pairs[:, 1]]
    ends = in_a & in_b if accepts == "both" else in_a | in_b if accepts == "either" else in_a & ~in_b
    return trimmed_char_dfa(alphabet, table, ends)


def choice(machines: Sequence[CharDfa], exactly_one: bool, budget: CompileBudget) -> CharDfa:
    """Accept what some automaton accepts, or exactly one of them. Raises GrammarError beyond the budget.

    They are joined in pairs, and these in pairs again. What is joined is minimised, because many patterns together
    often need few states although their product has many.
    """
    # A state is labelled by the number of automata that accept in it, 2 for more.
    most = 2 if exactly_one else 1
    found = [(chars.alphabet, chars.table, chars.accepting.astype(np.int32)) for chars in machines]
    while len(found) > 1:
        joined = []
        for (a, table_a, labels_a), (b, table_b, labels_b) in zip(found[::2], found[1::2], strict=False):
            alphabet, from_a, from_b = common_alphabet(a, b)
            table, pairs = pair_product(table_a[:, from_a], table_b[:, from_b], "either", budget.check)
            labels = np.minimum(labels_a[pairs[:, 0]] + labels_b[pairs[:, 1]], most)
            budget.check(len(table), len(table) * INTERPRETED)
            joined.append((alphabet, *minimal_table(table, labels)))
        found = joined + found[2 * len(joined) :]
    ((alphabet, table, labels),) = found
    return trimmed_char_dfa(alphabet, table, labels == 1)


def minimal_table(table: NDArray[np.int32], labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Merge the states of a table [S, C] that no text tells apart by the labels [S], by Moore's algorithm (1956).

    The table may stay larger than it must be, where telling the states apart takes long texts.
    """
    from . import dfa_kernel as kernel  # not at the top: it imports numba

    table = np.ascontiguousarray(table)
    # Of each state: equal for states that no text so far tells apart. In the order of their first states, the dead
    # state and the start keep their numbers.
    kinds = labels + np.int32(1)
    kinds[DEAD] = 0
    refined, firsts = np.empty_like(kinds), np.empty_like(kinds)
    slots = np.empty(1 << (2 * len(table)).bit_length(), np.int32)
    count = 0
    for _ in range(max(MIN_ROUNDS, MAX_TOLD // len(table))):
        found = kernel.refine(table, kinds, refined, firsts, slots)
        kinds, refined = refined, kinds
        if found == count:
            kept = firsts[:count]
            return kinds[table[kept]], labels[kept]
        count = found
    return table, labels


def _readable_member(alphabet: Alphabet, label: int) -> str:
    """Return a member of the class, preferably a letter or digit."""
    codes = [*b"a0A ", *range(0x21, 0x7F)]
    return chr(next((code for code in codes if alphabet.class_of(code) == label), alphabet.members(label)[0][0]))
