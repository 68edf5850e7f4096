"""The kernels and the plain torch share a quantised cache: what one stores, the other reads. Judge: the plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ramiform.kernels import (
    AttentionArgs,
    KvCache,
    RopeAndStoreArgs,
    RowSpan,
    attention_layout,
    paged_attention,
    store_kv,
)
from ramiform.kernels.reference.layers import apply_rope
from ramiform.kernels.reference.quantise import E5M2
from ramiform.kernels.triton import store
from ramiform.kernels.triton.attention.chunk_attention import chunk_attention, query_tiles
from ramiform.kernels.triton.attention.paged_attention import step_attention
from ramiform.kernels.triton.attention.paged_rows import PagedRows
from ramiform.kernels.triton.attention.split_attention import split_attention
from ramiform.kernels.triton.attention.splits import make_splits
from ramiform.kernels.triton.launch_configs import chunk_tile

PAGE_SIZE = 16
H, K, D = 6, 2, 32
LENGTHS = (40, 19)
SCALE = D**-0.5
QUANTISED = pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn], ids=str)


def empty(stored: torch.dtype, device: torch.device) -> KvCache:
    scales = torch.tensor([0.02, 0.01], device=device), torch.tensor([0.03, 0.015], device=device)
    codes = torch.zeros(2, 8 * PAGE_SIZE, K, D, dtype=torch.int8, device=device)
    return KvCache(*codes.view(stored), *scales)


@QUANTISED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_kernels_and_plain_torch_store_the_same_codes(
    stored: torch.dtype, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(9, H + 2 * K, D, device=device).to(dtype)
    # Halfway between two codes of the first value head.
    qkv[0, H + K] = ((torch.arange(D) - D // 2 + 0.5) * 0.03125).to(dtype).to(device)
    angles = torch.zeros(9, 1, D // 2, device=device)  # no rotation, hence no rounding of its own
    cos, sin = (
        torch.cat([x, y], -1).to(dtype) for x, y in ((angles.cos(), angles.cos()), (-angles.sin(), angles.sin()))
    )
    slots = torch.randperm(8 * PAGE_SIZE, device=device)[:9]
    ours, theirs = empty(stored, device), empty(stored, device)
    scale_K = torch.tensor([0.03125, 0.015625], device=device)
    ours, theirs = (KvCache(kv.k_SKD, kv.v_SKD, scale_K, scale_K) for kv in (ours, theirs))
    store.rope_and_store(qkv, ours, None, RopeAndStoreArgs(cos, sin, slots, H, eps=0.0))
    store_kv(apply_rope(qkv[:, H : H + K], cos, sin), qkv[:, H + K :], theirs, slots)
    assert torch.equal(ours.k_SKD.view(torch.int8), theirs.k_SKD.view(torch.int8))
    assert torch.equal(ours.v_SKD.view(torch.int8), theirs.v_SKD.view(torch.int8))


@pytest.mark.slow
@QUANTISED
@pytest.mark.parametrize("num_queries", [1, 5])
@pytest.mark.parametrize("window", [None, 12])
def test_kernels_and_plain_torch_read_the_same_from_a_cache(
    stored: torch.dtype, num_queries: int, window: int | None, device: torch.device
) -> None:
    torch.manual_seed(1)
    kv = empty(stored, device)
    slots = torch.arange(8 * PAGE_SIZE, device=device)
    store_kv(*torch.randn(2, 8 * PAGE_SIZE, K, D, device=device), kv, slots)
    q_THD = torch.randn(2 * num_queries, H, D, device=device)
    pages = [np.array([3, 0, 6]), np.array([5, 2])]
    spans = [RowSpan(n - num_queries, num_queries, p) for n, p in zip(LENGTHS, pages, strict=True)]
    layout = attention_layout(spans, page_size=PAGE_SIZE, window=window, dtype=torch.float32, device=device)
    want = paged_attention(q_THD, kv, layout, SCALE)

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    rows = PagedRows(
        page_table_RP=ints([3, 0, 6, 5, 2, 0]).view(2, 3),
        num_keys_R=ints(list(LENGTHS)),
        first_query_R=ints([0, num_queries]),
        num_queries_R=ints([num_queries] * 2),
        positions_T=ints([n - num_queries + i for n in LENGTHS for i in range(num_queries)]),
        visible_T=None,
        max_queries=num_queries,
        page_size=PAGE_SIZE,
        window=window,
    )
    got = torch.empty_like(q_THD)
    if num_queries == 1:
        num_seen_R = rows.num_keys_R if window is None else rows.num_keys_R.clamp(max=window)
        split_attention(q_THD, kv, rows, make_splits(num_seen_R, num_wanted=4, tile=64), got, SCALE)
    else:
        tile = chunk_tile(device, D, stored)
        tiles = query_tiles([num_queries] * 2, LENGTHS, group=H // K, tile=tile, device=device)
        chunk_attention(q_THD, kv, rows, tiles, got, SCALE)
    torch.testing.assert_close(got, want, atol=3e-3, rtol=3e-3)  # the kernels multiply in float16


@pytest.mark.slow
def test_kernels_store_e5m2_as_plain_torch_does_and_attend_to_it(device: torch.device) -> None:
    torch.manual_seed(4)
    codes = torch.zeros(4, 8 * PAGE_SIZE, K, D, dtype=torch.int8, device=device).view(E5M2)
    ours, theirs = KvCache(*codes[:2]), KvCache(*codes[2:].clone())
    qkv = torch.randn(9, H + 2 * K, D, device=device)
    qkv[0, H] *= 1e5  # out of range
    cos, sin, slots = torch.ones(9, 1, D), torch.zeros(9, 1, D), torch.arange(16, 25, device=device)
    q_THD = store.rope_and_store(qkv, ours, None, RopeAndStoreArgs(cos, sin, slots, H, eps=0.0))
    store_kv(qkv[:, H : H + K], qkv[:, H + K :], theirs, slots)
    assert torch.equal(ours.k_SKD.view(torch.int8), theirs.k_SKD.view(torch.int8))
    assert torch.equal(ours.v_SKD.view(torch.int8), theirs.v_SKD.view(torch.int8))
    spans = [RowSpan(1, 8, np.array([1]))]
    args = AttentionArgs(spans, ours, H, PAGE_SIZE, None, torch.float32)
    got = step_attention(args, deterministic=False).attend(q_THD[1:], ours, SCALE)
    layout = attention_layout(spans, page_size=PAGE_SIZE, window=None, dtype=torch.float32, device=device)
    torch.testing.assert_close(got, paged_attention(q_THD[1:], theirs, layout, SCALE), atol=5e-3, rtol=5e-3)
