"""Judge: attention in nested loops, one query and one head at a time, over a sequence kept whole."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.kernels import KvCache, RowSpan, attention_layout, paged_attention, store_kv

PAGE_SIZE = 4
CPU = torch.device("cpu")


def naive(q_HD: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, scale: float) -> torch.Tensor:
    """One query, at the last of the L positions."""
    H, K = len(q_HD), k_LKD.shape[1]
    out = []
    for h in range(H):
        k_LD, v_LD = k_LKD[:, h * K // H], v_LKD[:, h * K // H]
        weights = [math.exp(scale * float(torch.dot(q_HD[h], k_D))) for k_D in k_LD]
        out.append(sum(w * v_D for w, v_D in zip(weights, v_LD, strict=True)) / sum(weights))
    return torch.stack(out)


@pytest.mark.exhaustive
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=6),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.sampled_from([2, 6, 16]),
    window=st.none() | st.integers(1, 50),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=60, deadline=None)
def test_attention_over_shuffled_pages_equals_the_naive_loops(
    rows: list[tuple[int, int]], kv_heads: int, group: int, head_dim: int, window: int | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shuffled = random.Random(seed).sample(range(100), 100)
    # Slots that belong to no row hold NaN: padding must not read them.
    k_SKD, v_SKD = torch.full((2, 100 * PAGE_SIZE, kv_heads, head_dim), float("nan"))
    spans, sequences = [], []
    for first, count in rows:
        length = first + count
        pages = np.array([shuffled.pop() for _ in range(-(-length // PAGE_SIZE))])
        k_LKD, v_LKD = torch.randn(2, length, kv_heads, head_dim, generator=generator)
        slots = [int(pages[p // PAGE_SIZE]) * PAGE_SIZE + p % PAGE_SIZE for p in range(length)]
        store_kv(k_LKD, v_LKD, KvCache(k_SKD, v_SKD), torch.tensor(slots))
        spans.append(RowSpan(first, count, pages))
        sequences.append((k_LKD, v_LKD))
    q_THD = torch.randn(sum(n for _, n in rows), kv_heads * group, head_dim, generator=generator)

    layout = attention_layout(spans, page_size=PAGE_SIZE, window=window, dtype=torch.float32, device=CPU)
    got = paged_attention(q_THD, KvCache(k_SKD, v_SKD), layout, scale=0.3)

    want = []
    for (first, count), (k_LKD, v_LKD) in zip(rows, sequences, strict=True):
        for position in range(first, first + count):
            begin = 0 if window is None else max(0, position - window + 1)
            seen = slice(begin, position + 1)
            want.append(naive(q_THD[len(want)], k_LKD[seen], v_LKD[seen], 0.3))
    torch.testing.assert_close(got, torch.stack(want), atol=1e-5, rtol=1e-4)


def test_nan_in_one_row_does_not_reach_another() -> None:
    k_SKD, v_SKD = torch.randn(2, 8 * PAGE_SIZE, 1, 8)
    v_SKD[0] = float("nan")
    spans = [RowSpan(9, 1, np.array([0, 1, 2])), RowSpan(3, 1, np.array([5])), RowSpan(2, 1, np.array([6]))]
    layout = attention_layout(spans, page_size=PAGE_SIZE, window=None, dtype=torch.float32, device=CPU)
    out_THD = paged_attention(torch.randn(3, 2, 8), KvCache(k_SKD, v_SKD), layout, scale=1.0)
    assert out_THD.isnan().any(-1).any(-1).tolist() == [True, False, False]
