"""A step's attention on Triton: the tables that all layers of one window share, and the kernel launches of a layer.

Legend: T tokens of the step, R rows, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ...arguments import AttentionArgs, DecodeAttentionArgs, QueryTensors, RowSpan
from ...attention_groups import LEVELS, PIECE_TOKENS, SHARED_KEYS, SharedTokens, pieces_of, shared_tokens
from ...kv_cache import KvCache
from ...reference.attention import paged_attention
from ...reference.attention_layout import AttentionLayout, attention_layout
from ...transfer import to_device
from ..launch_configs import DETERMINISTIC_SPLIT_KEYS, SPLIT_KEYS, chunk_tile, most_split_queries, num_splits_wanted
from ..rotation import rotate
from ..scaled_codes import scaled_queries
from .chunk_attention import QueryTiles, chunk_attention
from .latent_attention import attend_chunks
from .paged_rows import PagedRows
from .row_segments import RowSegment, kernel_inputs, piece_rows, segments_by_kernel
from .split_attention import Merge, SharedPass, attend_shared, split_attention
from .splits import Splits, fixed_splits, make_splits, num_seen

_LATENT_QUERIES = 8  # tokens of a segment with latents in deterministic mode


class ReferenceRows(NamedTuple):
    """Tokens that no kernel takes, and their layout for plain torch."""

    tokens_n: torch.Tensor
    layout: AttentionLayout


@dataclass(frozen=True)
class TritonAttention:
    """Launches of one step and window: rows of few tokens by splits, of many by tiles, the rest by plain torch. Keys
    that rows share come before."""

    few: tuple[tuple[PagedRows, Splits], ...]
    many: tuple[PagedRows, QueryTiles] | None
    plain: ReferenceRows | None
    shared: SharedPass | None
    deterministic: bool
    num_positions: int  # keys have positions below it
    soft_cap: float | None = None

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        shape, dtype = (*q_THD.shape[:2], kv.value_dim), q_THD.dtype
        cap, fixed, scaled = self.soft_cap, self.deterministic, None
        if kv.basis is not None:  # the kernels' output is rotated
            scaled = scaled_queries(q_THD, kv.basis, self.num_positions)
        out_THD = torch.empty(shape, dtype=dtype if scaled is None else torch.float32, device=q_THD.device)
        options = {"fixed": fixed, "scaled": scaled}
        merge = None
        if self.shared is not None:
            most = max(splits.num_max * rows.max_queries for rows, splits in self.few)
            merge = Merge.empty(self.shared, most, q_THD, kv)
            attend_shared(q_THD, kv, merge, scale, cap, **options)
        for rows, splits in self.few:
            split_attention(q_THD, kv, rows, splits, out_THD, scale, cap, sinks_H=sinks_H, merge=merge, **options)
        if self.many is not None and kv.is_latent:
            attend_chunks(q_THD, kv, self.many[0], out_THD, scale)
        elif self.many is not None:
            chunk_attention(q_THD, kv, *self.many, out_THD, scale, cap, sinks_H=sinks_H, scaled=scaled)
        if scaled is not None:
            out_THD = rotate(out_THD, dtype)
        if self.plain is not None:
            tokens_n, layout = self.plain
            out_THD.index_copy_(0, tokens_n, paged_attention(q_THD[tokens_n], kv, layout, scale, cap, sinks_H))
        return out_THD


def step_attention(args: AttentionArgs, *, deterministic: bool, soft_cap: float | None = None) -> TritonAttention:
    """Assign a step's rows to kernels and build their tables. The arguments are those of `Ops.attention`."""
    kv, device = args.kv, args.kv.k_SKD.device
    K, D = kv.k_SKD.shape[1], kv.head_dim
    group = args.num_heads // K
    most = None
    if deterministic:
        most = _LATENT_QUERIES if kv.is_latent else max(1, most_split_queries(device, D) // group)
    num_tokens = sum(row.num_tokens for row in args.rows)
    groups, first_key_R, path_key_R = _shared_keys(args, deterministic)
    shared = pieces_of(groups, num_tokens) if groups else None
    segments = segments_by_kernel(args.rows, args.window, first_key_R=first_key_R, path_key_R=path_key_R, most=most)
    few, most_keys, many, pieces = kernel_inputs(
        segments,
        num_tokens,
        shared=shared,
        group=group,
        tile=chunk_tile(device, D, kv.k_SKD.dtype, scaled=kv.basis is not None),
        page_size=args.page_size,
        window=args.window,
        device=device,
    )
    splits = (_splits(some, kv, keys, deterministic) for some, keys in zip(few, most_keys, strict=True))
    plain = _reference_rows(segments.plain, args) if segments.plain else None
    shared_pass = None
    if shared is not None and pieces is not None:
        longest = int((shared.num_keys_G - shared.first_key_G).max())
        shared_pass = SharedPass(pieces[0], _splits(pieces[0], kv, longest, deterministic), pieces[1])
    num_positions = max((row.first_position + row.num_tokens for row in args.rows), default=0)
    launches = tuple(zip(few, splits, strict=True))
    return TritonAttention(launches, many, plain, shared_pass, deterministic, num_positions, soft_cap)


def _shared_keys(args: AttentionArgs, deterministic: bool) -> tuple[list[SharedTokens], list[int], list[int]]:
    """Return the groups of tokens that share keys, and where each row's own keys begin: those of its tokens, and those
    of its tree's nodes, which differ in deterministic mode, where paths share all whole blocks before the tree."""
    rows, window, page_size = args.rows, args.window, args.page_size
    most = min(PIECE_TOKENS, window or PIECE_TOKENS)
    starts_R = [0, *itertools.accumulate(row.num_tokens for row in rows)][:-1]
    groups, first_key_R = shared_tokens(
        [row.pages[: row.first_position // page_size if row.num_tokens <= most else 0] for row in rows],
        starts_R,
        [row.num_tokens for row in rows],
        [0 if window is None else max(0, row.first_position - window + 1) for row in rows],
        page_size=page_size,
        keys=DETERMINISTIC_SPLIT_KEYS if deterministic else SHARED_KEYS,
        levels=LEVELS - 1 if deterministic else LEVELS,  # one is left for a tree
    )
    path_key_R = list(first_key_R)
    if deterministic:
        block = max(DETERMINISTIC_SPLIT_KEYS, page_size)
        for index, row in enumerate(rows):
            end_row = row.first_position + row.num_tokens
            first_key, end_key = first_key_R[index], (end_row - len(row.tree)) // block * block
            if row.tree and end_key > first_key:
                nodes = range(starts_R[index] + row.num_tokens)[-len(row.tree) :]
                level = sum(starts_R[index] in group.tokens for group in groups)
                pages = row.pages[first_key // page_size : end_key // page_size]
                groups.append(SharedTokens(list(nodes), pages, first_key, end_key, level))
                path_key_R[index] = end_key
    return groups, first_key_R, path_key_R


def decode_attention(
    args: DecodeAttentionArgs, *, deterministic: bool, soft_cap: float | None = None
) -> TritonAttention:
    """Prepare attention of rows of few tokens. The kernels read the tensors when they run, so values may change."""
    num_keys_R, shared = args.num_keys_R, args.shared
    R, P = args.page_table_RP.shape
    queries = args.queries or QueryTensors(
        torch.arange(R, dtype=torch.int32, device=num_keys_R.device),
        torch.ones_like(num_keys_R),
        num_keys_R - 1,
        None,
        1,
    )
    rows = PagedRows(
        page_table_RP=args.page_table_RP,
        num_keys_R=num_keys_R,
        first_query_R=queries.first_query_R,
        num_queries_R=queries.num_queries_R,
        positions_T=queries.positions_T,
        visible_T=queries.visible_T,
        max_queries=queries.max_queries,
        page_size=args.page_size,
        window=args.window,
        first_key_R=args.first_key_R,
    )
    splits = _splits(rows, args.kv, P * args.page_size, deterministic)
    shared_pass, num_pages = None, P
    if shared is not None:
        num_pages += LEVELS * shared.page_table_GP.shape[1]
        pieces = piece_rows(shared, rows.positions_T, page_size=args.page_size, window=args.window)
        longest = shared.page_table_GP.shape[1] * args.page_size
        shared_pass = SharedPass(pieces, _splits(pieces, args.kv, longest, deterministic), shared.places_TL)
    num_positions = num_pages * args.page_size
    return TritonAttention(((rows, splits),), None, None, shared_pass, deterministic, num_positions, soft_cap)


def _splits(rows: PagedRows, kv: KvCache, most_keys: int, deterministic: bool) -> Splits:
    if deterministic:
        return fixed_splits(rows.num_listed, size=DETERMINISTIC_SPLIT_KEYS, max_keys=most_keys)
    device = kv.k_SKD.device
    return make_splits(
        num_seen(rows),
        num_wanted=num_splits_wanted(device, kv.k_SKD.shape[1]) // (4 if kv.is_latent else 1),  # heads are tiles too
        tile=SPLIT_KEYS,
    )


def _reference_rows(segments: Sequence[RowSegment], args: AttentionArgs) -> ReferenceRows:
    device = args.kv.k_SKD.device
    spans = [RowSpan(s.num_keys - s.num_tokens, s.num_tokens, s.row.pages, s.tree) for s in segments]
    tokens = np.concatenate([np.arange(s.first_query, s.first_query + s.num_tokens) for s in segments])
    return ReferenceRows(
        to_device([tokens], device)[0],
        attention_layout(spans, page_size=args.page_size, window=args.window, dtype=args.dtype, device=device),
    )
