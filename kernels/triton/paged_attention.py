"""A step's attention as launches of the kernels: what every layer of one window shares, and what each layer runs.

Legend: T tokens of the step, R rows, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..arguments import AttentionArgs, DecodeAttentionArgs, RowSpan
from ..kv_cache import KvCache
from ..reference.attention import paged_attention
from ..reference.attention_layout import AttentionLayout, attention_layout
from ..transfer import to_device
from .chunk_attention import QueryTiles, chunk_attention
from .launch_configs import FIXED_SPLIT, chunk_tile, num_splits_wanted, split_tile
from .paged_rows import PagedRows
from .row_segments import RowSegment, kernel_inputs, segments_by_kernel
from .split_attention import num_seen, split_attention
from .splits import Splits, fixed_splits, make_splits


class ReferenceRows(NamedTuple):
    """What no kernel takes: the tokens, and their layout for plain torch."""

    tokens_n: torch.Tensor
    layout: AttentionLayout


@dataclass(frozen=True)
class TritonAttention:
    few: tuple[tuple[PagedRows, Splits], ...]
    many: tuple[PagedRows, QueryTiles] | None
    plain: ReferenceRows | None
    deterministic: bool
    padded: bool = False  # some rows may stand for none: their outputs are zeros, not whatever memory held

    def attend(self, q_THD: torch.Tensor, kv: KvCache, scale: float) -> torch.Tensor:
        make = torch.zeros if self.padded else torch.empty
        out_THD = make(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        for rows, splits in self.few:
            split_attention(q_THD, kv, rows, splits, out_THD, scale, fixed=self.deterministic)
        if self.many is not None:
            chunk_attention(q_THD, kv, *self.many, out_THD, scale)
        if self.plain is not None:
            tokens_n, layout = self.plain
            out_THD.index_copy_(0, tokens_n, paged_attention(q_THD[tokens_n], kv, layout, scale))
        return out_THD


def step_attention(args: AttentionArgs, *, deterministic: bool) -> TritonAttention:
    """Assign a step's rows to kernels and build their tables. The arguments are those of `Ops.attention`."""
    kv, device = args.kv, args.kv.k_SKD.device
    K, D = kv.k_SKD.shape[1:]
    group = args.num_heads // K
    most = max(1, split_tile(device, D).queries // group) if deterministic else None
    segments = segments_by_kernel(args.rows, args.window, most=most)
    few, most_keys, many = kernel_inputs(
        segments,
        sum(row.num_tokens for row in args.rows),
        group=group,
        tile=chunk_tile(device, D, kv.k_SKD.dtype),
        page_size=args.page_size,
        window=args.window,
        device=device,
    )
    assert not (deterministic and segments.plain), "a tree has more nodes than a mask has bits"
    splits = (_splits(some, kv, keys, deterministic) for some, keys in zip(few, most_keys, strict=True))
    plain = _reference_rows(segments.plain, args) if segments.plain else None
    return TritonAttention(tuple(zip(few, splits, strict=True)), many, plain, deterministic)


def decode_attention(args: DecodeAttentionArgs, *, deterministic: bool) -> TritonAttention:
    """Prepare attention of rows of one token. The tensors are read when the kernels run, so their values may change."""
    num_keys_R = args.num_keys_R
    R, P = args.page_table_RP.shape
    rows = PagedRows(
        page_table_RP=args.page_table_RP,
        num_keys_R=num_keys_R,
        first_query_R=torch.arange(R, dtype=torch.int32, device=num_keys_R.device),
        num_queries_R=torch.ones_like(num_keys_R),
        positions_T=num_keys_R - 1,
        visible_T=None,
        max_queries=1,
        page_size=args.page_size,
        window=args.window,
    )
    splits = _splits(rows, args.kv, P * args.page_size, deterministic)
    return TritonAttention(((rows, splits),), None, None, deterministic, padded=True)


def _splits(rows: PagedRows, kv: KvCache, most_keys: int, deterministic: bool) -> Splits:
    if deterministic:
        return fixed_splits(rows.num_keys_R, size=FIXED_SPLIT, max_keys=most_keys)
    device = kv.k_SKD.device
    return make_splits(
        num_seen(rows.num_keys_R, rows.num_queries_R, rows.window),
        num_wanted=num_splits_wanted(device, kv.k_SKD.shape[1]),
        tile=split_tile(device, kv.k_SKD.shape[2]).keys,
    )


def _reference_rows(segments: Sequence[RowSegment], args: AttentionArgs) -> ReferenceRows:
    device = args.kv.k_SKD.device
    spans = [RowSpan(s.num_keys - s.num_tokens, s.num_tokens, s.row.pages, s.tree) for s in segments]
    tokens = np.concatenate([np.arange(s.first_query, s.first_query + s.num_tokens) for s in segments])
    return ReferenceRows(
        to_device([tokens], device)[0],
        attention_layout(spans, page_size=args.page_size, window=args.window, dtype=args.dtype, device=device),
    )
