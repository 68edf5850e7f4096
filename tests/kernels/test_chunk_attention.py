"""Judge: torch's fused attention in float64, with a mask of what each query sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ramiform.kernels import KvCache, RowSpan, attention_layout, paged_attention, store_kv

PAGE_SIZE = 16
CPU = torch.device("cpu")


def judge(q_THD: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, first: int, scale: float) -> torch.Tensor:
    positions_T, positions_L = first + torch.arange(len(q_THD)), torch.arange(len(k_LKD))
    q_HTD, k_KLD, v_KLD = (x.double().transpose(0, 1)[None] for x in (q_THD, k_LKD, v_LKD))
    visible_TL = positions_L <= positions_T[:, None]
    out = F.scaled_dot_product_attention(q_HTD, k_KLD, v_KLD, attn_mask=visible_TL, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("kv_heads", "group", "head_dim"), [(2, 2, 64), (1, 7, 64), (3, 1, 10), (1, 33, 8)])
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 32)],
        [(5, 33)],
        [(0, 300)],
        [(263, 161)],
        [(700, 64), (0, 1), (90, 1)],
        [(0, 128), (16, 130), (7, 140), (40, 40), (41, 41), (3, 2)],
    ],
    ids=str,
)
@torch.inference_mode()
def test_long_chunks_over_shuffled_pages_see_their_own_keys(
    rows: list[tuple[int, int]], kv_heads: int, group: int, head_dim: int, dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(len(rows))
    pages = iter(torch.randperm(120, generator=draw).tolist())
    # Slots that belong to no row hold NaN: none of it may enter a sum.
    kv = KvCache(*torch.full((2, 120 * PAGE_SIZE, kv_heads, head_dim), float("nan"), dtype=dtype))
    spans, want = [], []
    for first, count in rows:
        length = first + count
        own = np.array([next(pages) for _ in range(-(-length // PAGE_SIZE))])
        k_LKD, v_LKD = torch.randn(2, length, kv_heads, head_dim, generator=draw).to(dtype)
        places = np.arange(length)
        store_kv(k_LKD, v_LKD, kv, torch.from_numpy(own[places // PAGE_SIZE] * PAGE_SIZE + places % PAGE_SIZE))
        q_THD = torch.randn(count, kv_heads * group, head_dim, generator=draw).to(dtype)
        spans.append(RowSpan(first, count, own))
        want.append((q_THD, judge(q_THD, k_LKD, v_LKD, first, 0.2)))
    layout = attention_layout(spans, page_size=PAGE_SIZE, window=None, dtype=dtype, device=CPU)
    got_THD = paged_attention(torch.cat([q_THD for q_THD, _ in want]), kv, layout, scale=0.2)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}[dtype]
    expected = torch.cat([expected for _, expected in want])
    torch.testing.assert_close(got_THD.double(), expected, atol=tolerance, rtol=tolerance)
    assert got_THD.is_contiguous()
