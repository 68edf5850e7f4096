"""Interface between the engine and a draft source that runs beside the model, on its device.

After each forward the engine passes to `follow` what was computed for good, and the source returns a tree for every row
that wants one. A source never changes the output: a bad one costs time and no token.

**Positions and slots.** Page ids and slots are the target's. A source with memory of its own (KV, features) lays it out
by the same slots, page p slot s at `p * PAGE_SIZE + s`, host pages after the device's. So prefix sharing, copy on write
and the host tier carry that memory along: `copy` gets every page copy before the forward of its step. The content of
slot j may depend only on tokens 0..j of its sequence (an EAGLE head stores at slot j what it computes from (feature of
token j-1, token j)); a shared prefix is then wholly reusable.

**Laziness.** A row that wants no tree may never want one. A source should store what it cannot get again (features,
token ids), and compute only when a tree is wanted. `SlotLedger` records, by slot, the token it was written for and
whether the source has computed it, so that the source can catch up with any sequence.

Legend: T kept tokens of the step, E hidden size of the target, C captures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from ..scheduler.drafts.tree import DraftTree
from ..scheduler.plan import DraftSpec, PageCopy, Row


@dataclass(frozen=True)
class DraftRow:
    """The part of a row that was computed for good: whole chunks, and the accepted path of a tree.

    The tokens `kept` are at positions [first_position, first_position + len(kept)). The page table `pages` covers them,
    and perhaps more: slots of rejected nodes hold garbage. `next_token` was sampled after them; it is None for a chunk
    that samples nothing, which wants no tree. `pages` may end before the slot of `next_token`. A source keeps what it
    computes for `next_token` and the draft in memory of its own; in the next step `next_token` is the first of the kept
    tokens.
    """

    kept: list[int]
    first_position: int
    pages: list[int]
    next_token: int | None
    want: DraftSpec | None

    @property
    def end(self) -> int:
        """Number of tokens whose KV the target has, which is the position of `next_token`."""
        return self.first_position + len(self.kept)


@dataclass(frozen=True)
class DraftStep:
    """The part of a forward that was computed for good: rows in order, and the features of their kept tokens,
    concatenated.

    `features_TE` is [T, len(captures) * E] in the target's dtype, captures side by side in the order of
    `DraftSource.captures`; None when the source captures nothing.
    """

    rows: list[DraftRow]
    features_TE: torch.Tensor | None


class DraftBytes(NamedTuple):
    """Bytes of memory that a draft source takes on the device."""

    per_page: int  # of its target's pool
    weights: int


class DraftSource(Protocol):
    """A draft source. Not thread-safe. Called under `torch.inference_mode`."""

    @property
    def captures(self) -> tuple[int, ...]:
        """Hidden states of the target in `features_TE`, by layer.

        Index i < num_layers is the input of layer i, that is, the residual stream before its input norm; `num_layers`
        is the output of the final norm.
        """

    caught_up: float
    """Seconds of the last `follow` in which the source computed what it lacked of sequences, if that takes long. The
    drafts of that step are not charged with them."""

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        """Record the step. Returns a tree per row, in order; None where none is wanted or there is no draft.

        A tree has at most `want.num_tokens` nodes, at most `want.steps` deep.
        """

    def skip(self, rows: Sequence[Row]) -> None:
        """Record rows without drafts whose features were not kept. Called instead of `follow` while speculation is
        closed.

        It must cost next to nothing. Later drafts for these sequences may be worse.
        """

    def use_loops(self) -> None:
        """Draft with compiled loops from the next step on; they were not loaded when the source was made. The target
        uses them already."""

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Make the copies one after the other in the source's memory, as `KvPool.copy` does in the target's."""
