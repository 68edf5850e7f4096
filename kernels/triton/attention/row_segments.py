"""Assignment of a step's rows to attention kernels, and the kernels' tables, moved to the device in one copy.

Rows of few tokens and trees go to the kernel for splits, rows of many tokens to the kernel for chunks. A bitmask has 64
bits. A row with a tree and more tokens is cut in two, so that the bits are for the nodes alone. Trees that outgrow the
bits or the window are left to plain torch. Where bits must not depend on the tree, each of its paths is a row of its
own, whose keys are found slot by slot.

Legend: R rows of a launch, P pages of its longest row, T tokens of the step, I tiles, L keys of a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ...arguments import RowSpan, SharedKeys
from ...attention_groups import PIECE_TOKENS, Pieces
from ...reference.attention_layout import ancestors, tree_paths
from ...transfer import to_device
from ..launch_configs import AttentionTile
from .chunk_attention import QueryTiles, tile_table, tokens_of_tile
from .paged_rows import MAX_TREE, PagedRows, query_class

_FEW = (1, 8, MAX_TREE)  # rows of at most so many tokens are launched together


class RowSegment(NamedTuple):
    """Consecutive tokens of a row, with the keys up to the last of them."""

    row: RowSpan
    first_query: int  # among the step's tokens
    num_keys: int  # the tokens' own included
    num_tokens: int
    tree: Sequence[int]
    first_key: int = 0  # the keys before it are shared, and computed apart
    nodes: np.ndarray | None = None  # a path of the row's tree, of which the segment's tokens are the last

    @property
    def pages(self) -> np.ndarray:
        return self.row.pages


@dataclass(frozen=True)
class SegmentsByKernel:
    """Row segments by the kernel that computes them."""

    few: tuple[tuple[RowSegment, ...], ...]  # by launch of the kernel for splits
    paths: tuple[RowSegment, ...]  # as one more launch
    many: tuple[RowSegment, ...]
    plain: tuple[RowSegment, ...]


def segments_by_kernel(
    rows: Sequence[RowSpan],
    window: int | None,
    *,
    first_key_R: Sequence[int],
    path_key_R: Sequence[int],
    most: int | None = None,
) -> SegmentsByKernel:
    """Assign the rows to kernels.

    Keys before `first_key_R` are computed apart; for paths of trees it is those before `path_key_R`. With `most`, rows
    are cut into segments of at most so many tokens, which all go to the kernel for splits, and trees into paths.
    """
    few: dict[int, list[RowSegment]] = {size: [] for size in _FEW}
    many: list[RowSegment] = []
    plain: list[RowSegment] = []
    limit = min(_FEW[1] if most is None else most, window or MAX_TREE)
    paths: list[RowSegment] = []
    start = 0
    for row, first_key, path_key in zip(rows, first_key_R, path_key_R, strict=True):
        if most is not None and row.tree:
            paths += (part for path in _paths(row, start, path_key) for part in _slices(path, limit))
        for segment in _segments(row, start, window, cut=most is not None):
            segment = segment._replace(first_key=first_key)
            if not _fits(segment, window):
                plain.append(segment)
            elif most is not None:
                for part in _slices(segment, limit):
                    few[_class(part)].append(part)
            elif segment.tree or first_key or segment.num_tokens <= limit:
                few[_class(segment)].append(segment)
            else:
                many.append(segment)
        start += row.num_tokens
    launches = tuple(tuple(some) for some in few.values() if some)
    return SegmentsByKernel(launches, tuple(paths), tuple(many), tuple(plain))


def _class(segment: RowSegment) -> int:
    return next(size for size in _FEW if segment.num_tokens <= size)


def _paths(row: RowSpan, start: int, path_key: int) -> list[RowSegment]:
    """Return a segment for each path of the row's tree, of the nodes that no earlier path has."""
    num_committed = row.num_tokens - len(row.tree)
    first_node = row.first_position + num_committed  # its place
    return [
        RowSegment(row, start + num_committed, first_node + len(nodes), num_new, (), path_key, nodes)
        for nodes, num_new in tree_paths(row.tree)
    ]


def _segments(row: RowSpan, start: int, window: int | None, *, cut: bool) -> list[RowSegment]:
    """Return the row as one or two segments; with `cut` without its tree."""
    num_committed = row.num_tokens - len(row.tree)
    if cut:
        if not num_committed:
            return []
        return [RowSegment(row, start, row.first_position + num_committed, num_committed, ())]
    whole = RowSegment(row, start, row.first_position + row.num_tokens, row.num_tokens, row.tree)
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
            first_query=segment.first_query + (first if segment.nodes is None else 0),
            num_keys=before + min(first + most, segment.num_tokens),
            num_tokens=min(most, segment.num_tokens - first),
        )
        for first in range(0, segment.num_tokens, most)
    ]


class KernelInputs(NamedTuple):
    """Tables of each launch."""

    few: tuple[PagedRows, ...]
    most_keys: tuple[int, ...]  # of a row of each of them, the shared ones apart
    many: tuple[PagedRows, QueryTiles] | None
    pieces: tuple[PagedRows, torch.Tensor] | None  # of shared keys, and where tokens find their results (`places_TL`)


def kernel_inputs(
    segments: SegmentsByKernel,
    num_tokens: int,
    *,
    shared: Pieces | None,
    group: int,
    tile: AttentionTile,
    page_size: int,
    window: int | None,
    device: torch.device,
) -> KernelInputs:
    """Build the kernels' tables. `num_tokens` is T; `group` query heads share a key head; `tile` is that of chunks."""
    few = [*segments.few, *([segments.paths] if segments.paths else [])]
    sets = [*few, *([segments.many] if segments.many else [])]
    positions_T = np.zeros(num_tokens, dtype=np.int32)
    visible_T = np.zeros(num_tokens, dtype=np.int64)
    for segment in (segment for some in sets for segment in some):
        own = _tokens(segment)
        positions_T[own], visible_T[own] = _positions_and_bits(segment)
    arrays: list[np.ndarray] = [positions_T, visible_T]
    for some in sets:
        is_paths = some is segments.paths
        arrays += [_slot_table(some, page_size) if is_paths else _page_table(some, page_size)]
        arrays += [*_lengths(some), *([np.concatenate([_tokens(one) for one in some])] if is_paths else [])]
    if segments.many:
        lengths = [segment.num_tokens for segment in segments.many], [segment.num_keys for segment in segments.many]
        arrays += tile_table(*lengths, group=group, tile=tile)
    positions, visible, *tables = to_device([*arrays, *(shared or ())], device)
    taken = iter(tables)
    made: list[PagedRows] = []
    for some in sets:
        page_table, num_keys, first_key, first_query, num_queries = (next(taken) for _ in range(5))
        counts = [segment.num_tokens for segment in some]
        made.append(
            PagedRows(
                page_table_RP=page_table,
                num_keys_R=num_keys,
                first_query_R=first_query,
                num_queries_R=num_queries,
                positions_T=positions,
                # Whether there are trees, or shared keys, must not decide which kernel is compiled.
                visible_T=visible if some is not segments.many and query_class(max(counts)) > 1 else None,
                max_queries=max(counts),
                page_size=1 if some is segments.paths else page_size,
                window=window,
                first_key_R=first_key,
                tokens_N=next(taken) if some is segments.paths else None,
            )
        )
    many = None
    if segments.many:
        many = made.pop(), QueryTiles(next(taken), next(taken), tokens_of_tile(tile, group), tile)
    pieces = None
    if shared is not None:
        keys = SharedKeys(*taken)
        pieces = piece_rows(keys, positions, page_size=page_size, window=window), keys.places_TL
    most_keys = tuple(max(segment.num_keys - segment.first_key for segment in some) for some in few)
    return KernelInputs(tuple(made), most_keys, many, pieces)


def piece_rows(shared: SharedKeys, positions_T: torch.Tensor, *, page_size: int, window: int | None) -> PagedRows:
    """Return pieces of shared keys as rows."""
    G = len(shared.num_keys_G)
    return PagedRows(
        page_table_RP=shared.page_table_GP,
        num_keys_R=shared.num_keys_G,
        first_query_R=torch.arange(G, dtype=torch.int32, device=positions_T.device) * PIECE_TOKENS,
        num_queries_R=shared.num_tokens_G,
        positions_T=positions_T,
        visible_T=None,
        max_queries=PIECE_TOKENS,
        page_size=page_size,
        window=window,
        first_key_R=shared.first_key_G,
        tokens_N=shared.tokens_N,
        are_pieces=True,
    )


def _tokens(segment: RowSegment) -> np.ndarray:
    """Return the segment's tokens as indices into the step's, int32."""
    if segment.nodes is None:
        return np.arange(segment.first_query, segment.first_query + segment.num_tokens, dtype=np.int32)
    first_node = segment.row.first_position + segment.row.num_tokens - len(segment.row.tree)
    end = segment.num_keys - first_node
    return (segment.first_query + segment.nodes[end - segment.num_tokens : end]).astype(np.int32)


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
    pages = [segment.pages[segment.first_key // page_size : -(-segment.num_keys // page_size)] for segment in segments]
    return _table(pages)


def _slot_table(segments: Sequence[RowSegment], page_size: int) -> np.ndarray:
    """Return a table of pages of one slot: those of the committed keys, then those of the path's nodes."""
    slots: list[np.ndarray] = []
    for segment in segments:
        assert segment.nodes is not None
        first_node = segment.row.first_position + segment.row.num_tokens - len(segment.row.tree)
        nodes = first_node + segment.nodes[: segment.num_keys - first_node]
        place_L = np.concatenate((np.arange(segment.first_key, first_node), nodes))
        slots.append(segment.pages[place_L // page_size] * page_size + place_L % page_size)
    return _table(slots)


def _table(pages_R: Sequence[np.ndarray]) -> np.ndarray:
    table_RP = np.zeros((len(pages_R), max(map(len, pages_R))), dtype=np.int32)
    for own_P, pages in zip(table_RP, pages_R, strict=True):
        own_P[: len(pages)] = pages
    return table_RP


def _lengths(segments: Sequence[RowSegment]) -> list[np.ndarray]:
    """Return `num_keys_R`, `first_key_R`, `first_query_R` and `num_queries_R`. A path's tokens come after those of the
    paths before it."""
    counts = [segment.num_tokens for segment in segments]
    if segments[0].nodes is None:
        first_query = [segment.first_query for segment in segments]
    else:
        first_query = [0, *itertools.accumulate(counts[:-1])]
    columns = [s.num_keys for s in segments], [s.first_key for s in segments], first_query, counts
    return [np.array(column, dtype=np.int32) for column in columns]
