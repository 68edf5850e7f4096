"""Assignment of a step's rows to attention kernels, and the kernels' tables, moved to the device in one copy.

Rows of few tokens and trees go to the kernel for splits, rows of many tokens to the kernel for chunks. A bitmask has 64
bits. A row with a tree and more tokens is cut in two, so that the bits are for the nodes alone. Trees that outgrow the
bits or the window are left to plain torch.

Legend: R rows of a launch, P pages of its longest row, T tokens of the step, I tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..arguments import RowSpan
from ..reference.attention_layout import ancestors
from ..transfer import to_device
from .chunk_attention import QueryTiles, tile_table, tokens_of_tile
from .launch_configs import AttentionTile
from .paged_rows import MAX_TREE, PagedRows

_FEW = (1, 8, MAX_TREE)  # rows of at most so many tokens are launched together


class RowSegment(NamedTuple):
    """Consecutive tokens of a row, with the keys up to the last of them."""

    row: RowSpan
    first_query: int  # among the step's tokens
    num_keys: int  # the tokens' own included
    num_tokens: int
    tree: Sequence[int]

    @property
    def pages(self) -> np.ndarray:
        return self.row.pages


@dataclass(frozen=True)
class SegmentsByKernel:
    """Row segments by the kernel that computes them."""

    few: tuple[tuple[RowSegment, ...], ...]  # by launch of the kernel for splits
    many: tuple[RowSegment, ...]
    plain: tuple[RowSegment, ...]


def segments_by_kernel(rows: Sequence[RowSpan], window: int | None, *, most: int | None = None) -> SegmentsByKernel:
    """Assign the rows to kernels. With `most`, rows are cut into segments of at most so many tokens, which all go to
    the kernel for splits."""
    few: dict[int, list[RowSegment]] = {size: [] for size in _FEW}
    many: list[RowSegment] = []
    plain: list[RowSegment] = []
    limit = min(_FEW[1] if most is None else most, window or MAX_TREE)
    start = 0
    for row in rows:
        for segment in _segments(row, start, window):
            if not _fits(segment, window):
                plain.append(segment)
            elif segment.tree or segment.num_tokens <= limit:
                few[_class(segment)].append(segment)
            elif most is None:
                many.append(segment)
            else:
                for part in _slices(segment, limit):
                    few[_class(part)].append(part)
        start += row.num_tokens
    return SegmentsByKernel(tuple(tuple(some) for some in few.values() if some), tuple(many), tuple(plain))


def _class(segment: RowSegment) -> int:
    return next(size for size in _FEW if segment.num_tokens <= size)


def _segments(row: RowSpan, start: int, window: int | None) -> list[RowSegment]:
    whole = RowSegment(row, start, row.first_position + row.num_tokens, row.num_tokens, row.tree)
    num_committed = row.num_tokens - len(row.tree)
    if not row.tree or not num_committed or _fits(whole, window):
        return [whole]
    committed = RowSegment(row, start, row.first_position + num_committed, num_committed, ())
    return [committed, whole._replace(first_query=start + num_committed, num_tokens=len(row.tree))]


def _fits(segment: RowSegment, window: int | None) -> bool:
    """Return True if a bitmask holds the segment's tree and the window spans all of it."""
    return not segment.tree or (segment.num_tokens <= MAX_TREE and (window is None or window >= segment.num_tokens))


def _slices(segment: RowSegment, most: int) -> list[RowSegment]:
    before = segment.num_keys - segment.num_tokens
    return [
        segment._replace(
            first_query=segment.first_query + first,
            num_keys=before + min(first + most, segment.num_tokens),
            num_tokens=min(most, segment.num_tokens - first),
        )
        for first in range(0, segment.num_tokens, most)
    ]


class KernelInputs(NamedTuple):
    """Tables of each launch."""

    few: tuple[PagedRows, ...]
    most_keys: tuple[int, ...]  # of a row of each of them
    many: tuple[PagedRows, QueryTiles] | None


def kernel_inputs(
    segments: SegmentsByKernel,
    num_tokens: int,
    *,
    group: int,
    tile: AttentionTile,
    page_size: int,
    window: int | None,
    device: torch.device,
) -> KernelInputs:
    """Build the kernels' tables. `num_tokens` is T; `group` query heads share a key head; `tile` is that of chunks."""
    sets = [*segments.few, *([segments.many] if segments.many else [])]
    positions_T = np.zeros(num_tokens, dtype=np.int32)
    visible_T = np.zeros(num_tokens, dtype=np.int64)
    for segment in (segment for some in sets for segment in some):
        own = slice(segment.first_query, segment.first_query + segment.num_tokens)
        positions_T[own], visible_T[own] = _positions_and_bits(segment)
    arrays: list[np.ndarray] = [positions_T, visible_T]
    for some in sets:
        arrays += [_page_table(some, page_size), *_lengths(some)]
    if segments.many:
        lengths = [segment.num_tokens for segment in segments.many], [segment.num_keys for segment in segments.many]
        arrays += tile_table(*lengths, group=group, tile=tile)
    positions, visible, *tables = to_device(arrays, device)
    made: list[PagedRows] = []
    for some in sets:
        page_table, num_keys, first_query, num_queries, *tables = tables
        made.append(
            PagedRows(
                page_table_RP=page_table,
                num_keys_R=num_keys,
                first_query_R=first_query,
                num_queries_R=num_queries,
                positions_T=positions,
                visible_T=visible if any(segment.tree for segment in some) else None,
                max_queries=max(segment.num_tokens for segment in some),
                page_size=page_size,
                window=window,
            )
        )
    many = None
    if segments.many:
        row_I, first_I = tables
        many = made.pop(), QueryTiles(row_I, first_I, tokens_of_tile(tile, group), tile)
    return KernelInputs(tuple(made), tuple(max(segment.num_keys for segment in some) for some in segments.few), many)


def _positions_and_bits(segment: RowSegment) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens' positions, int32, and bitmasks, int64. A node's position is the last committed one plus its
    depth. Bit j of a token is set if it sees the segment's token j."""
    num_tokens, before = segment.num_tokens, segment.num_keys - segment.num_tokens
    positions = before + np.arange(num_tokens, dtype=np.int32)
    if num_tokens > MAX_TREE:
        return positions, np.zeros(num_tokens, dtype=np.int64)  # never read
    bits = np.left_shift(np.uint64(2), np.arange(num_tokens, dtype=np.uint64)) - np.uint64(1)
    if segment.tree:
        num_before = num_tokens - len(segment.tree)  # of the segment's tokens
        visible_NN, depth_N = ancestors(segment.tree)
        weights_N = np.left_shift(np.uint64(1), np.arange(num_before, num_tokens, dtype=np.uint64))
        committed = np.uint64((1 << num_before) - 1)
        bits[num_before:] = (visible_NN * weights_N).sum(axis=1, dtype=np.uint64) | committed
        positions[num_before:] = before + num_before - 1 + depth_N
    return positions, bits.view(np.int64)


def _page_table(segments: Sequence[RowSegment], page_size: int) -> np.ndarray:
    widths = [-(-segment.num_keys // page_size) for segment in segments]
    table_RP = np.zeros((len(segments), max(widths)), dtype=np.int32)
    for own_P, segment, width in zip(table_RP, segments, widths, strict=True):
        own_P[:width] = segment.pages[:width]
    return table_RP


def _lengths(segments: Sequence[RowSegment]) -> list[np.ndarray]:
    """Return `num_keys_R`, `first_query_R` and `num_queries_R`."""
    columns = zip(*((segment.num_keys, segment.first_query, segment.num_tokens) for segment in segments), strict=True)
    return [np.array(column, dtype=np.int32) for column in columns]
