"""The decoder's inputs for a plan's rows: index tensors of the whole step, built with numpy, copied once.

Legend: T tokens of the step, O outputs wanted, R rows, P pages of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
import torch

from ...kernels import Attention, AttentionArgs, KvCache, RowSpan, StreamingAttention, to_device
from ..models.decoder import Decoder
from ..models.decoder_inputs import DecoderInputs
from ..models.lora.adapters import StepAdapters
from ..models.pictures.features import StepFeatures
from ..models.recurrent.memory import RecurrentStep
from ..scheduler.drafts.tree import is_chain
from ..scheduler.plan import Row
from .kv_pool import PAGE_SIZE
from .last_tokens import NO_LAST_TOKENS, LastTokens


class RowArrays(NamedTuple):
    """A step's tokens, int64, and pages, of all rows concatenated."""

    ids_T: np.ndarray
    positions_T: np.ndarray
    slots_T: np.ndarray
    row_T: np.ndarray  # the row of each token
    lengths_R: np.ndarray  # keys of the row, its tokens included
    starts_R: np.ndarray  # where the row's tokens begin
    pages_P: np.ndarray
    page_starts: list[int]  # where each row's pages begin, and where all end
    window_pages_P: np.ndarray | None  # of layers with a window, if these have pages of their own
    window_slots_T: np.ndarray | None


def decoder_inputs(
    rows: Sequence[Row], model: Decoder, wanted: np.ndarray, kv: KvCache, last_tokens: LastTokens = NO_LAST_TOKENS
) -> DecoderInputs:
    """Build the decoder's inputs.

    All rows are `widened` or none is. `wanted` int64 are the indices, among the rows' tokens concatenated, of those
    whose hidden states are read. `kv` is the cache of any layer. `last_tokens` are those of the last step, for rows
    that follow its rows.
    """
    step = row_arrays(rows)
    spans = _spans(rows, step.pages_P, step.page_starts)
    window_spans = spans
    if step.window_pages_P is not None:
        window_spans = _spans(rows, step.window_pages_P, step.page_starts)

    arrays = [step.ids_T, step.positions_T, step.slots_T, wanted, _rope_lengths(rows, step, model)]
    if step.window_slots_T is not None:
        arrays.append(step.window_slots_T)
    ids, positions, slots, wanted_O, lengths, *window_slots = to_device(arrays, model.device)
    if last_tokens.index:
        last_tokens.fill(ids, rows, step.starts_R.tolist())
    return DecoderInputs(
        ids_T=ids,
        positions_T=positions,
        angles=_angles(rows, step, positions, lengths, model),
        slots_T=slots,
        window_slots_T=window_slots[0] if window_slots else None,
        attention=_attention(spans, window_spans, model, int(step.lengths_R.max()), kv),
        adapters=_adapters(rows, step.row_T, wanted, model),
        pictures=_pictures(rows, step.starts_R, model),
        wanted_O=None if np.array_equal(wanted, np.arange(len(step.ids_T))) else wanted_O,
        recurrent=None if model.config.recurrent is None else RecurrentStep.of(rows, model.device),
        widened=rows[0].widened,
    )


def _angles(
    rows: Sequence[Row], step: RowArrays, positions: torch.Tensor, lengths: torch.Tensor, model: Decoder
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return the angles of the tokens' rotary positions, which pictures with a grid make others than their own."""
    if not any(row.rope_offset or any(part.picture.grid for part in row.pictures) for row in rows):
        return model.angles(positions, lengths)
    turned_3T = np.tile(step.positions_T, (3, 1))
    has_three = False
    for row, start in zip(rows, step.starts_R.tolist(), strict=True):
        own_3T, done, offset = turned_3T[:, start : start + len(row.tokens)], 0, row.rope_offset
        for part in row.pictures:
            if part.picture.grid is None:
                continue
            own_3T[:, done : part.start] += offset
            features, done = np.arange(part.first, part.first + part.count), part.start + part.count
            own_3T[:, part.start : done] = row.first_position + part.start - part.first + offset
            own_3T[1:, part.start : done] += np.divmod(features, part.picture.grid[1])
            offset, has_three = row.rope_offset_at(done), True
        own_3T[:, done:] += offset
    if not has_three:
        return model.angles(*to_device([turned_3T[0]], model.device), lengths)
    [turned] = to_device([turned_3T], model.device)
    return tuple(rope.angles_of_three(turned) for rope in model.ropes)


def _rope_lengths(rows: Sequence[Row], step: RowArrays, model: Decoder) -> np.ndarray:
    """Return the length by which each token rotates; only a model whose angles depend on it reads them."""
    if not model.rope.depends_on_length:
        return step.positions_T[:0]
    return np.maximum(step.positions_T + 1, np.array([row.rope_length for row in rows])[step.row_T])


def _spans(rows: Sequence[Row], pages_P: np.ndarray, page_starts: Sequence[int]) -> list[RowSpan]:
    """Return the rows' spans, with their pages of `pages_P`."""
    return [
        RowSpan(
            row.first_position,
            len(row.tokens),
            pages_P[first:end],
            # A chain needs no mask of its own: each draft token sees all before it.
            () if row.parents is None or is_chain(row.parents) else row.parents,
            () if not row.pictures else _blocks(row),
        )
        for row, (first, end) in zip(rows, pairwise(page_starts), strict=True)
    ]


def _blocks(row: Row) -> list[tuple[int, int]]:
    """Return the places of the row's pictures that attend both ways."""
    first = row.first_position
    return [
        (first + part.start, first + part.start + part.count) for part in row.pictures if part.picture.attends_both_ways
    ]


def _adapters(rows: Sequence[Row], row_T: np.ndarray, wanted: np.ndarray, model: Decoder) -> StepAdapters | None:
    """Return the adapters of the rows' tokens."""
    if not any(row.adapter for row in rows):
        return None
    return model.lora.step(np.array([row.adapter for row in rows])[row_T], wanted)


def _pictures(rows: Sequence[Row], starts_R: np.ndarray, model: Decoder) -> StepFeatures | None:
    """Return the features of the rows' pictures; None on a stage that embeds no tokens."""
    parts = [(int(start), part) for row, start in zip(rows, starts_R, strict=True) for part in row.pictures]
    if not parts or model.pictures is None:
        return None
    return model.pictures.of_step(parts)


def row_arrays(rows: Sequence[Row]) -> RowArrays:
    """Return the rows' tokens, positions and slots, concatenated."""
    if not rows[0].window_pages and all(len(row.tokens) == 1 for row in rows):
        return _decode_arrays(rows)
    num_R, first_R = np.array([len(row.tokens) for row in rows]), np.array([row.first_position for row in rows])
    lengths_R, starts_R = first_R + num_R, num_R.cumsum() - num_R
    ids_T = np.fromiter(chain.from_iterable([row.tokens for row in rows]), np.int64)
    row_T = np.arange(len(rows)).repeat(num_R)
    # Place of each token in its row's page table: the row's first, and its distance from the row's start.
    places_T = np.arange(len(ids_T)) + (first_R - starts_R)[row_T]
    num_pages_R = (-(-lengths_R // PAGE_SIZE)).tolist()
    pages_R = [row.pages[:num] for row, num in zip(rows, num_pages_R, strict=True)]
    page_starts = [0, *accumulate(map(len, pages_R))]
    pages_P = np.fromiter(chain.from_iterable(pages_R), np.int64, page_starts[-1])
    own_T, offset_T = np.array(page_starts)[row_T] + places_T // PAGE_SIZE, places_T % PAGE_SIZE
    window_pages_P = window_slots_T = None
    if rows[0].window_pages:
        windows_R = [row.window_pages[:num] for row, num in zip(rows, num_pages_R, strict=True)]
        window_pages_P = np.fromiter(chain.from_iterable(windows_R), np.int64, page_starts[-1])
        window_slots_T = window_pages_P[own_T] * PAGE_SIZE + offset_T
    return RowArrays(
        ids_T,
        _positions(rows, places_T, starts_R),
        pages_P[own_T] * PAGE_SIZE + offset_T,
        row_T,
        lengths_R,
        starts_R,
        pages_P,
        page_starts,
        window_pages_P,
        window_slots_T,
    )


def _decode_arrays(rows: Sequence[Row]) -> RowArrays:
    """Return `row_arrays` of rows with one token each. Few calls: a small model computes a step of them in less time
    than the general way takes."""
    positions = [row.first_position for row in rows]
    pages_R = [row.pages[: position // PAGE_SIZE + 1] for row, position in zip(rows, positions, strict=True)]
    slots = [pages[-1] * PAGE_SIZE + position % PAGE_SIZE for pages, position in zip(pages_R, positions, strict=True)]
    ids_T, positions_T, slots_T = np.array([[row.tokens[0] for row in rows], positions, slots], dtype=np.int64)
    row_T = np.arange(len(rows))
    page_starts = [0, *accumulate(map(len, pages_R))]
    pages_P = np.array(pages_R[0] if len(rows) == 1 else list(chain.from_iterable(pages_R)), dtype=np.int64)
    return RowArrays(ids_T, positions_T, slots_T, row_T, positions_T + 1, row_T, pages_P, page_starts, None, None)


def _positions(rows: Sequence[Row], places_T: np.ndarray, starts_R: np.ndarray) -> np.ndarray:
    """Return the tokens' positions. A token's position is its place; a node's is the last committed one plus its
    depth."""
    positions_T = places_T
    for index, row in enumerate(rows):
        if row.parents is not None and not is_chain(row.parents):
            if positions_T is places_T:
                positions_T = places_T.copy()
            start = starts_R[index]
            positions_T[start : start + len(row.tokens)] = row.position_ids
    return positions_T


def _attention(
    spans: list[RowSpan], window_spans: list[RowSpan], model: Decoder, longest: int, kv: KvCache
) -> dict[int | None, Attention]:
    """Prepare the attention of each of the model's windows. A window that no row outgrows shares that without a
    window, if the pages are the same."""
    prepared: dict[tuple[int | None, bool], Attention] = {}
    attention: dict[int | None, Attention] = {}
    for window in set(model.config.windows):
        effective = None if window is not None and window >= longest else window
        own_spans = spans if window is None else window_spans
        key = effective, own_spans is spans
        streaming = model.config.streaming
        if key not in prepared and streaming is not None and effective == streaming.window:
            prepared[key] = StreamingAttention(
                own_spans,
                streaming,
                page_size=PAGE_SIZE,
                turn_back=model.streaming_rope.turned_back,
                device=model.device,
                cap=model.ops.attention_cap,
            )
        if key not in prepared:
            prepared[key] = model.ops.attention(
                AttentionArgs(own_spans, kv, model.config.num_heads, PAGE_SIZE, effective, model.dtype)
            )
        attention[window] = prepared[key]
    return attention
