"""Finite automata as blocks of the transition tables: laid out once, and copied as a whole into each automaton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..regex.dfa import Dfa
from .actions import (
    CHECK,
    COUNT,
    ENDING,
    FEWEST,
    FILLED,
    FLAGS,
    FREE,
    GOTO,
    LENGTH,
    LOOPS,
    MOST,
    PLAIN,
    POP,
    POP_BEFORE,
    POP_COUNTED,
    QUOTE,
    ROW,
    SHIFT,
    TEXT,
    UNBOUNDED,
)
from .tables import Ints, new_rows

MAX_CACHED = 1 << 10  # states of a block whose layout is cached; larger blocks are seldom used again


class BlockLayout(NamedTuple):
    """The rows of a block of S states, relative to its first state, target, and row of results by count.

    A byte's class c in state s leads on by `operations[s]` and the table's state. The last column, if there are `ends`,
    is that of the bytes that end the value: `ends[s]`, or what the class `like` does where it is -1.
    """

    operations: Ints  # [S - 1]
    ends: Ints  # [S - 1], or [0]
    like: int
    num_columns: int
    class_of: NDArray[np.uint8]  # [256]
    states: Ints  # [S - 1, NUM_COLUMNS]
    results: list[tuple[int, int]]  # by count: last count and result
    marks: tuple[int, ...]  # counts at which masks change


@dataclass(frozen=True, eq=False)
class CharacterCounts:
    """Bounds and results by number of characters, for a block of S states.

    A transition from s begins a character if begins[s]. The state s may be entered with fewest[s] to most[s]
    characters. If the block's results[s] is r >= 0, results[r] are the results by count: in ascending order, the last
    count of each and the result itself, -1 if the string may not end.
    """

    begins: NDArray[np.bool_]  # [S]
    fewest: Ints  # [S]
    most: Ints  # [S]
    results: Sequence[Sequence[tuple[int, int]]]

    @property
    def marks(self) -> tuple[int, ...]:
        """The counts, in ascending order, behind which some state's transitions differ."""
        found = {last for row in self.results for last, _ in row}
        found |= set(self.most[1:].tolist()) | set((self.fewest[1:] - 1).tolist())
        return tuple(sorted(found - {UNBOUNDED, -1}))


@dataclass(frozen=True, eq=False)
class Block:
    """A finite automaton of S states, the dead one first, over C classes of bytes.

    results[s] is the result of a value that ends in s, -1 if none may end there. A value ends with the byte `closing`,
    or before one of the bytes `before`; with neither, the text ends there (`accepts`). `plain[s]`: every token of plain
    string content is allowed. `loops[s]`: every plain character leads from s to s. `free`: byte kinds and lengths of
    each state, as `free_kinds` returns them. `counts` is given if characters are counted.
    """

    table: NDArray[np.int32]  # [S, C]
    class_of: NDArray[np.uint8]  # [256]
    results: Ints  # [S]
    closing: int | None = None
    before: bytes = b""
    accepts: bool = False
    plain: NDArray[np.bool_] | None = None  # [S]
    loops: NDArray[np.bool_] | None = None  # [S]
    free: tuple[Ints, Ints] | None = None  # [S] each
    counts: CharacterCounts | None = None

    def layout(self) -> BlockLayout:
        """Return the rows of this block, cached if it is small."""
        found: BlockLayout | None = self.__dict__.get("_layout")
        if found is None:
            found = self._compute_layout()
            if len(found.operations) <= MAX_CACHED:
                self.__dict__["_layout"] = found
        return found

    def _compute_layout(self) -> BlockLayout:
        num_states, num_classes = self.table.shape
        counts, class_of = self.counts, self.class_of
        ended = list(self.before) if self.closing is None else [self.closing]
        operations = np.full(num_states - 1, GOTO << SHIFT, np.int32)
        if counts is not None:
            operations = np.where(counts.begins[1:], COUNT << SHIFT, CHECK << SHIFT).astype(np.int32)
        ends, like = np.empty(0, np.int32), 0
        by_count: list[tuple[int, int]] = []
        if ended:
            # The bytes after a value, or the byte that closes it, form a class of their own.
            class_of = class_of.copy()
            # Where the value cannot end, the closing byte keeps its transition: an escaped quote.
            like = int(class_of[ended[0]])
            operation_at_end = POP_BEFORE if self.closing is None else (POP if counts is None else POP_COUNTED)
            results = self.results[1:]
            if counts is not None:
                first = [0]
                for row in counts.results:
                    by_count += row
                    first.append(len(by_count))
                results = np.where(results >= 0, np.array(first, np.int32)[results], -1)
            ends = np.where(results >= 0, (operation_at_end << SHIFT) + results, -1).astype(np.int32)
            class_of[ended] = num_classes
            num_classes += 1
        states = new_rows(num_states - 1)
        states[:, ROW] = num_classes * np.arange(num_states - 1)
        if self.accepts:
            states[:, ENDING] = np.where(self.results[1:] >= 0, -1, 0)
        elif self.before:
            states[:, ENDING] = self.results[1:] + 1
        if self.closing == QUOTE:
            states[:, FLAGS] |= TEXT
        if self.plain is not None:
            states[:, FLAGS] |= np.where(self.plain[1:], PLAIN, 0)
            if self.loops is not None:
                states[:, FLAGS] |= np.where(self.plain[1:] & self.loops[1:], LOOPS, 0)
        if self.free is not None:
            states[:, FREE], states[:, LENGTH] = self.free[0][1:], self.free[1][1:]
        if counts is not None:
            states[:, FEWEST], states[:, MOST] = counts.fewest[1:], counts.most[1:]
        states[:, FILLED] = 1
        marks = () if counts is None else counts.marks
        return BlockLayout(operations, ends, like, num_classes, class_of, states, by_count, marks)


def block_of(dfa: Dfa, **options: Any) -> Block:
    """Make a block of a Dfa: every accepting state ends with result 0, and the start is local state `dfa.START`."""
    return Block(dfa.table, dfa.class_of, np.where(dfa.accepting, 0, -1).astype(np.int32), **options)
