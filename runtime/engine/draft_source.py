"""What the engine asks of a draft source that runs beside the model, on the model's device.

After each forward the engine tells its source everything that was computed for good (`follow`), and the source answers
with a tree for every row that wants one. A source never decides what is said: a bad one costs time, never a token.

**Positions and slots.** Page ids and slots are the target's. A source that has memory of its own (keys and values,
features) lays it out by the same slots, page p slot s at `p * PAGE_SIZE + s`, host pages after the device's; then a
prefix that requests share, copy on write and the host tier carry it along: `copy` gets every page copy, before the
forward of its step. What slot j holds may depend on the tokens 0..j of its sequence and on nothing else (so an EAGLE
head keeps at slot j what it computes from (feature of token j-1, token j)); a shared prefix is then wholly reusable.

**Laziness.** A row that wants no tree needs no draft now and perhaps never: its source should store what it cannot get
again (features, token ids) and compute only when a tree is wanted. `ledger.SlotLedger` keeps, by slot, which token a
slot was written for and whether the source has computed it, so that it can catch up with any sequence, shared or not.

Legend: T kept tokens of the step, E hidden size of the target, C captures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..scheduler.plan import DraftSpec, PageCopy, Row
from ..speculation.tree import DraftTree


@dataclass(frozen=True)
class DraftRow:
    """One row of the step, as far as it was computed for good: chunks whole, of a tree the accepted path.

    The tokens `kept` are at positions [first_position, first_position + len(kept)) of the sequence, whose page table
    `pages` covers them (and perhaps more: a rejected node's slots hold nothing of worth). `next_token` is the one that
    was sampled after them, None for a chunk that samples nothing; then no tree is wanted. Its slot may not exist yet:
    `pages` may end before it. What a source computes for `next_token` and for guesses after it must go to memory of its
    own, outside the pages; in the step after, `next_token` is the first of the kept tokens.
    """

    kept: list[int]
    first_position: int
    pages: list[int]
    next_token: int | None
    want: DraftSpec | None

    @property
    def end(self) -> int:
        """The number of tokens whose KV the target has: the position of `next_token`."""
        return self.first_position + len(self.kept)


@dataclass(frozen=True)
class DraftStep:
    """What a forward computed for good: its rows in order, and the features of their kept tokens, concatenated.

    `features_TE` is [T, len(captures) * E] in the target's dtype, captures side by side in the order of
    `DraftSource.captures`; None when the source captures nothing.
    """

    rows: list[DraftRow]
    features_TE: torch.Tensor | None


class DraftSource(Protocol):
    """Not for several threads. Called under `torch.inference_mode`."""

    @property
    def captures(self) -> tuple[int, ...]:
        """Which hidden states of the target `features_TE` holds, by layer: index i < num_layers is the input of layer
        i, that is, the residual stream before its input norm; `num_layers` is the output of the final norm."""

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        """One answer per row, in order: None where none is wanted, or where the source has no guess. A tree has at
        most `want.num_tokens` nodes, at most `want.steps` deep."""

    def skip(self, rows: Sequence[Row]) -> None:
        """In the place of `follow`, after a step whose features nobody kept: these rows, none with guesses, were
        computed. To cost next to nothing: it stands for guessing being turned off. What the source then lacks of these
        sequences, it has to do without; guesses may be worse for it."""

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do the copies one after the other in the source's memory, as `KvPool.copy` does in the target's."""
