"""Finite automata as blocks of the byte automaton's tables: laid out once, and brought into each automaton as a whole.

Knows the layout of the tables; no language, no tokens.
"""

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

MAX_KEPT = 1 << 14  # actions of a block that is laid out once; larger ones are seldom met again


class BlockLayout(NamedTuple):
    """A block's part of the tables, as if it began at state 0 and at target 0."""

    actions: Ints  # [S - 1, C]
    moves: Ints  # [S - 1, C]: 1 where an action leads to a state
    class_of: NDArray[np.uint8]  # [256]
    states: Ints  # [S - 1, NUM_COLUMNS]


@dataclass(frozen=True, eq=False)
class Block:
    """A finite automaton that is brought in as a whole: S states, the dead one first, C classes of bytes.

    results[s] is the result of a value that ends in s, -1 when none may. It ends by the byte `closing`, or before one
    of the bytes `before`; with neither, the text ends there (`accepts`). `counted[s]`: what leads on from s begins a
    character, of which there must have been `least` at the end, and at most `most[s]` to come to s. `plain[s]`: every
    token of plain string content may come. `loops[s]`: every plain character leads from s to s.
    `free`: of each state, kinds of bytes and how long every text of these may be, as `free_kinds` gives them.
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

    def laid_out(self) -> BlockLayout:
        """Its part of the tables, kept if it is small."""
        found: BlockLayout | None = self.__dict__.get("_laid_out")
        if found is None:
            found = self._lay_out()
            if found.actions.size <= MAX_KEPT:
                self.__dict__["_laid_out"] = found
        return found

    def _lay_out(self) -> BlockLayout:
        num_states, num_classes = self.table.shape
        leads = self.table != 0
        actions = np.where(leads, (GOTO << SHIFT) + self.table, DEAD).astype(np.int32)
        if self.counted is not None:
            extra = np.where(self.counted[:, None] & leads, COUNT - GOTO, np.where(leads, CHECK - GOTO, 0)) << SHIFT
            actions = (actions + extra).astype(np.int32)
        class_of = self.class_of
        if self.before or self.closing is not None:
            # The bytes after a value, and the byte that closes it, are classes of their own.
            class_of = class_of.copy()
            ended = list(self.before) if self.closing is None else [self.closing]
            # Where the value cannot end, the closing byte is as before: an escaped quote.
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
    """Every accepting state ends with result 0; its start is local state `dfa.START`."""
    return Block(dfa.table, dfa.class_of, np.where(dfa.accepting, 0, -1).astype(np.int32), **options)
