"""From a step's rows to what the attention kernels take: which kernel gets which rows, and their tables, moved to the
device in one copy.

Rows of few tokens and trees are split over the device; rows of many are tiled. A row whose tree the bitmasks have no
room for gives them its nodes alone, or, where the tree outgrows them or the window, none: such nodes are left to plain
torch.

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
    """Some neighbouring tokens of a row, the last of whose keys they are."""

    row: RowSpan
    first_query: int  # among the step's tokens
    num_keys: int  # their own included
    num_tokens: int
    tree: Sequence[int]

    @property
    def pages(self) -> np.ndarray:
        return self.row.pages


@dataclass(frozen=True)
class SegmentsByKernel:
    """Who computes what."""

    few: tuple[tuple[RowSegment, ...], ...]  # launches of the kernel for splits
    many: tuple[RowSegment, ...]
    plain: tuple[RowSegment, ...]


def segments_by_kernel(rows: Sequence[RowSpan], window: int | None, *, most: int | None = None) -> SegmentsByKernel:
    """With `most`, rows of more tokens are cut into pieces of so many, and all go to the kernel for splits."""
    few: dict[int, list[RowSegment]] = {size: [] for size in _FEW}
    many: list[RowSegment] = []
    plain: list[RowSegment] = []
    limit = min(_FEW[1] if most is None else most, window or MAX_TREE)
    start = 0
    for row in rows:
        for piece in _pieces(row, start, window):
            if not _fits(piece, window):
                plain.append(piece)
            elif piece.tree or piece.num_tokens <= limit:
                few[_class(piece)].append(piece)
            elif most is None:
                many.append(piece)
            else:
                for part in _slices(piece, limit):
                    few[_class(part)].append(part)
        start += row.num_tokens
    return SegmentsByKernel(tuple(tuple(some) for some in few.values() if some), tuple(many), tuple(plain))


def _class(piece: RowSegment) -> int:
    return next(size for size in _FEW if piece.num_tokens <= size)


def _pieces(row: RowSpan, start: int, window: int | None) -> list[RowSegment]:
    whole = RowSegment(row, start, row.first_position + row.num_tokens, row.num_tokens, row.tree)
    num_committed = row.num_tokens - len(row.tree)
    if not row.tree or not num_committed or _fits(whole, window):
        return [whole]
    committed = RowSegment(row, start, row.first_position + num_committed, num_committed, ())
    return [committed, whole._replace(first_query=start + num_committed, num_tokens=len(row.tree))]


def _fits(piece: RowSegment, window: int | None) -> bool:
    """Whether bitmasks hold the tree, and the window all of it."""
    return not piece.tree or (piece.num_tokens <= MAX_TREE and (window is None or window >= piece.num_tokens))


def _slices(piece: RowSegment, most: int) -> list[RowSegment]:
    before = piece.num_keys - piece.num_tokens
    return [
        piece._replace(
            first_query=piece.first_query + first,
            num_keys=before + min(first + most, piece.num_tokens),
            num_tokens=min(most, piece.num_tokens - first),
        )
        for first in range(0, piece.num_tokens, most)
    ]


class KernelInputs(NamedTuple):
    few: tuple[PagedRows, ...]
    most_keys: tuple[int, ...]  # of a row of each of them
    many: tuple[PagedRows, QueryTiles] | None


def kernel_inputs(
    pieces: SegmentsByKernel,
    num_tokens: int,
    *,
    group: int,
    tile: AttentionTile,
    page_size: int,
    window: int | None,
    device: torch.device,
) -> KernelInputs:
    """`num_tokens` is T; `group` query heads share a key head; `tile` is that of rows of many tokens."""
    sets = [*pieces.few, *([pieces.many] if pieces.many else [])]
    positions_T = np.zeros(num_tokens, dtype=np.int32)
    visible_T = np.zeros(num_tokens, dtype=np.int64)
    for piece in (piece for some in sets for piece in some):
        own = slice(piece.first_query, piece.first_query + piece.num_tokens)
        positions_T[own], visible_T[own] = _positions_and_bits(piece)
    arrays: list[np.ndarray] = [positions_T, visible_T]
    for some in sets:
        arrays += [_page_table(some, page_size), *_facts(some)]
    if pieces.many:
        lengths = [piece.num_tokens for piece in pieces.many], [piece.num_keys for piece in pieces.many]
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
                visible_T=visible if any(piece.tree for piece in some) else None,
                max_queries=max(piece.num_tokens for piece in some),
                page_size=page_size,
                window=window,
            )
        )
    many = None
    if pieces.many:
        row_I, first_I = tables
        many = made.pop(), QueryTiles(row_I, first_I, tokens_of_tile(tile, group), tile)
    return KernelInputs(tuple(made), tuple(max(piece.num_keys for piece in some) for some in pieces.few), many)


def _positions_and_bits(piece: RowSegment) -> tuple[np.ndarray, np.ndarray]:
    """A place is a position, except in a tree. Bit j of a token is set where it sees its piece's token j."""
    num_tokens, before = piece.num_tokens, piece.num_keys - piece.num_tokens
    positions = before + np.arange(num_tokens, dtype=np.int32)
    if num_tokens > MAX_TREE:
        return positions, np.zeros(num_tokens, dtype=np.int64)  # never read
    bits = np.left_shift(np.uint64(2), np.arange(num_tokens, dtype=np.uint64)) - np.uint64(1)
    if piece.tree:
        num_before = num_tokens - len(piece.tree)  # of the piece's tokens
        visible_NN, depth_N = ancestors(piece.tree)
        weights_N = np.left_shift(np.uint64(1), np.arange(num_before, num_tokens, dtype=np.uint64))
        committed = np.uint64((1 << num_before) - 1)
        bits[num_before:] = (visible_NN * weights_N).sum(axis=1, dtype=np.uint64) | committed
        positions[num_before:] = before + num_before - 1 + depth_N
    return positions, bits.view(np.int64)


def _page_table(pieces: Sequence[RowSegment], page_size: int) -> np.ndarray:
    widths = [-(-piece.num_keys // page_size) for piece in pieces]
    table_RP = np.zeros((len(pieces), max(widths)), dtype=np.int32)
    for own_P, piece, width in zip(table_RP, pieces, widths, strict=True):
        own_P[:width] = piece.pages[:width]
    return table_RP


def _facts(pieces: Sequence[RowSegment]) -> list[np.ndarray]:
    """Keys, first token, tokens."""
    columns = zip(*((piece.num_keys, piece.first_query, piece.num_tokens) for piece in pieces), strict=True)
    return [np.array(column, dtype=np.int32) for column in columns]
