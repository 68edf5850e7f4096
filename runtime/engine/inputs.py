"""From a plan's rows to the decoder's inputs: index tensors for the whole step, built with numpy, moved once.

Legend: T tokens of the step, O outputs wanted, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from ...kernels import Attention, AttentionArgs, KvCache, RowSpan, to_device
from ..models.decoder import Decoder, DecoderInputs
from ..scheduler.plan import Row
from ..speculation.tree import is_chain
from .kv_pool import PAGE_SIZE
from .last_tokens import NO_LAST_TOKENS, LastTokens


def decoder_inputs(
    rows: Sequence[Row], model: Decoder, wanted: np.ndarray, kv: KvCache, sampled: LastTokens = NO_LAST_TOKENS
) -> DecoderInputs:
    """`wanted` are the indices, among the rows' tokens concatenated, of those whose hidden states will be read; `kv` is
    any layer's memory; `sampled` is what the step before sampled, for rows that follow its rows."""
    num_R = np.array([len(row.tokens) for row in rows])
    first_R = np.array([row.first_position for row in rows])
    ids_T = np.fromiter(chain.from_iterable(row.tokens for row in rows), dtype=np.int64, count=int(num_R.sum()))
    starts_R = np.cumsum(num_R) - num_R
    # Place of token t in its row's page table: the row's first, and its distance from the row's start.
    places_T = np.arange(len(ids_T)) + np.repeat(first_R - starts_R, num_R)
    positions_T = _positions(rows, places_T, starts_R.tolist())
    lengths_R = first_R + num_R
    spans = [
        RowSpan(
            row.first_position,
            len(row.tokens),
            np.array(row.pages[: -(-length // PAGE_SIZE)], dtype=np.int64),
            # A chain needs no mask of its own: each guess sees all before it.
            () if row.parents is None or is_chain(row.parents) else row.parents,
        )
        for row, length in zip(rows, lengths_R.tolist(), strict=True)
    ]
    pages = np.concatenate([span.pages for span in spans])
    page_starts_R = np.cumsum([len(span.pages) for span in spans]) - [len(span.pages) for span in spans]
    slots_T = pages[np.repeat(page_starts_R, num_R) + places_T // PAGE_SIZE] * PAGE_SIZE + places_T % PAGE_SIZE

    ids, positions, lengths, slots, wanted_O = to_device(
        [ids_T, positions_T, np.repeat(lengths_R, num_R), slots_T, wanted], model.device
    )
    sampled.fill(ids, rows, starts_R.tolist())
    cos_T1D, sin_T1D = model.rope.angles(positions, lengths)
    return DecoderInputs(
        ids_T=ids,
        cos_T1D=cos_T1D,
        sin_T1D=sin_T1D,
        slots_T=slots,
        attention=_attention(spans, model, int(lengths_R.max()), kv),
        wanted_O=None if np.array_equal(wanted, np.arange(len(ids_T))) else wanted_O,
    )


def _positions(rows: Sequence[Row], places_T: np.ndarray, starts_R: Sequence[int]) -> np.ndarray:
    """A token's place is its position, a guess's is as far after the committed tokens as it is deep."""
    positions_T = places_T
    for row, start in zip(rows, starts_R, strict=True):
        if row.parents is not None and not is_chain(row.parents):
            if positions_T is places_T:
                positions_T = places_T.copy()
            positions_T[start : start + len(row.tokens)] = row.position_ids
    return positions_T


def _attention(spans: list[RowSpan], model: Decoder, longest: int, kv: KvCache) -> dict[int | None, Attention]:
    """One for each of the model's windows; a window no row outgrows needs none of its own."""
    made: dict[int | None, Attention] = {}
    attention: dict[int | None, Attention] = {}
    for window in set(model.config.windows):
        effective = None if window is not None and window >= longest else window
        if effective not in made:
            key_rope = model.rope.angles if model.rope.depends_on_length else None
            made[effective] = model.ops.attention(
                AttentionArgs(spans, kv, model.config.num_heads, PAGE_SIZE, effective, model.dtype, key_rope)
            )
        attention[window] = made[effective]
    return attention
