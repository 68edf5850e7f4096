"""Finite automata as blocks of the transition tables: laid out once, and copied as a whole into each automaton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..regex.dfa import Dfa
from .actions import (
    CHECK,
    COUNT,
    DEAD,
    ENDS,
    FILLED,
    FLAGS,
    FREE,
    GOTO,
    LEAST,
    LENGTH,
    LOOPS,
    MOST,
    PLAIN,
    POP,
    POP_BEFORE,
    POP_COUNTED,
    ROW,
    SHIFT,
    UNBOUNDED,
)
from .tables import Ints, new_rows

MAX_CACHED = 1 << 14  # actions of a block whose layout is cached; larger blocks are seldom used again


class BlockLayout(NamedTuple):
    """The rows of a block, relative to its first state and target."""

    actions: Ints  # [S - 1, C]
    moves: Ints  # [S - 1, C]: 1 where an action leads to a state
    class_of: NDArray[np.uint8]  # [256]
    states: Ints  # [S - 1, NUM_COLUMNS]


@dataclass(frozen=True, eq=False)
class Block:
    """A finite automaton of S states, the dead one first, over C classes of bytes.

    results[s] is the result of a value that ends in s, -1 if none may end there. A value ends with the byte `closing`,
    or before one of the bytes `before`; with neither, the text ends there (`accepts`). `counted[s]`: a transition from
    s begins a character; at least `least` characters are needed to end, and at most `most[s]` are allowed to enter s.
    `plain[s]`: every token of plain string content is allowed. `loops[s]`: every plain character leads from s to s.
    `free`: byte kinds and lengths of each state, as `free_kinds` returns them.
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
    counted: NDArray[np.bool_] | None = None  # [S]
    least: int = 0
    most: Ints | None = None  # [S]

    def layout(self) -> BlockLayout:
        """Return the rows of this block, cached if it is small."""
        found: BlockLayout | None = self.__dict__.get("_layout")
        if found is None:
            found = self._compute_layout()
            if found.actions.size <= MAX_CACHED:
                self.__dict__["_layout"] = found
        return found

    def _compute_layout(self) -> BlockLayout:
        num_states, num_classes = self.table.shape
        leads = self.table != 0
        actions = np.where(leads, (GOTO << SHIFT) + self.table, DEAD).astype(np.int32)
        if self.counted is not None:
            extra = np.where(self.counted[:, None] & leads, COUNT - GOTO, np.where(leads, CHECK - GOTO, 0)) << SHIFT
            actions = (actions + extra).astype(np.int32)
        class_of = self.class_of
        if self.before or self.closing is not None:
            # The bytes after a value, or the byte that closes it, form a class of their own.
            class_of = class_of.copy()
            ended = list(self.before) if self.closing is None else [self.closing]
            # Where the value cannot end, the closing byte keeps its transition: an escaped quote.
            like = int(class_of[ended[0]])
            extra, also = actions[:, [like]].copy(), leads[:, [like]].copy()
            operation = POP_BEFORE if self.closing is None else (POP if self.counted is None else POP_COUNTED)
            has = self.results >= 0
            extra[has, 0] = (operation << SHIFT) + self.results[has]
            also[has, 0] = False
            class_of[ended] = num_classes
            actions, leads = np.concatenate([actions, extra], axis=1), np.concatenate([leads, also], axis=1)
            num_classes += 1
        states = new_rows(num_states - 1)
        states[:, ROW] = num_classes * np.arange(num_states - 1)
        if self.accepts:
            states[:, ENDS] = np.where(self.results[1:] >= 0, -1, 0)
        elif self.before:
            states[:, ENDS] = self.results[1:] + 1
        if self.plain is not None:
            states[:, FLAGS] |= np.where(self.plain[1:], PLAIN, 0)
            if self.loops is not None:
                states[:, FLAGS] |= np.where(self.plain[1:] & self.loops[1:], LOOPS, 0)
        if self.free is not None:
            states[:, FREE], states[:, LENGTH] = self.free[0][1:], self.free[1][1:]
        states[:, LEAST] = self.least
        states[:, MOST] = UNBOUNDED if self.most is None else self.most[1:]
        states[:, FILLED] = 1
        return BlockLayout(actions[1:], leads[1:].astype(np.int32), class_of, states)


def block_of(dfa: Dfa, **options: Any) -> Block:
    """Make a block of a Dfa: every accepting state ends with result 0, and the start is local state `dfa.START`."""
    return Block(dfa.table, dfa.class_of, np.where(dfa.accepting, 0, -1).astype(np.int32), **options)
