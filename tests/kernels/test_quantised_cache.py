"""Judges: torch's own conversion to and from e4m3, and attention over the dequantised numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from ramiform.kernels import KvCache, RowSpan, attention_layout, paged_attention, store_kv
from ramiform.kernels.cpu.attention.blocks import kv_descriptor
from ramiform.kernels.cpu.step.store import store_token
from ramiform.kernels.reference.quantise import (
    E4M3,
    E5M2,
    QUANTISED_MAX,
    expand_e4m3,
    quantise,
    rotate,
    rotation_size,
)

PAGE_SIZE = 4
CPU = torch.device("cpu")
QUANTISED = pytest.mark.parametrize("stored", [torch.int8, E4M3], ids=str)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_code_of_e4m3_is_the_number_that_torch_says(dtype: torch.dtype) -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8)
    wanted = codes.view(E4M3).to(dtype)
    numbers = ~wanted.isnan()
    assert torch.equal(expand_e4m3(codes, dtype)[numbers], wanted[numbers])


@QUANTISED
def test_quantisation_rounds_to_the_nearest_code_and_ties_to_even(stored: torch.dtype) -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).view(stored).double()
    codes = codes[codes.abs() <= QUANTISED_MAX[stored]].unique()
    halfway = (codes[1:] + codes[:-1]) / 2
    numbers = torch.cat([codes, halfway, torch.randn(500) * 30, torch.tensor([1e9, -1e9])]).float()
    got = quantise(numbers[:, None, None], torch.ones(1), stored)[:, 0, 0].double()
    distance = (got - numbers).abs()
    nearest = (codes[None] - numbers[:, None]).abs().amin(1)
    assert torch.equal(distance, nearest)
    ties = got[len(codes) : len(codes) + len(halfway)]
    places = torch.searchsorted(codes, ties)
    zero = int(torch.searchsorted(codes, 0.0))
    assert ((places - zero) % 2 == 0).all()


@pytest.mark.parametrize("stored", [torch.int8, E4M3, E5M2], ids=str)
def test_loops_store_the_bytes_that_plain_torch_stores(stored: torch.dtype) -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).view(stored).double()
    codes = codes[codes.isfinite()].unique()
    halfway = (codes[1:] + codes[:-1]) / 2
    edges = torch.tensor([0.0, -0.0, 1e9, -1e9, torch.inf, -torch.inf, 448, 464, 57344, 61440, 1e-12])
    wide = torch.randn(400) * 10.0 ** torch.randint(-7, 6, (400,))
    numbers = torch.cat([codes, halfway, halfway * (1 + 1e-6), wide, edges]).float()
    K, D = 3, 16
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % (K * D))).view(-1, K, D)
    scales = (None, None) if stored == E5M2 else (torch.tensor([1.0, 0.3, 7.0]), torch.tensor([0.5, 1.0, 2.0]))
    loops, plain = (KvCache(*torch.zeros(2, len(numbers), K, D).to(stored), *scales) for _ in range(2))
    slots = torch.randperm(len(numbers))
    store_kv(numbers, numbers.flip(0), plain, slots, slots)
    descriptor = kv_descriptor(loops, torch.float32)
    for slot, k_KD, v_KD in zip(slots.tolist(), numbers, numbers.flip(0), strict=True):
        store_token(k_KD.data_ptr(), v_KD.contiguous().data_ptr(), descriptor, 0, slot, 0)
    for mine, theirs in ((loops.k_SKD, plain.k_SKD), (loops.v_SKD, plain.v_SKD)):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


@QUANTISED
def test_each_head_has_a_scale_of_its_own(stored: torch.dtype) -> None:
    x_TKD = torch.randn(50, 3, 8) * torch.tensor([0.01, 1.0, 300.0])[:, None]
    scale_K = x_TKD.abs().amax((0, 2)) / QUANTISED_MAX[stored]
    meant = quantise(x_TKD, scale_K, stored).float() * scale_K[:, None]
    error_K = (meant - x_TKD).abs().amax((0, 2)) / x_TKD.abs().amax((0, 2))
    assert (error_K <= (1 / 28 if stored == E4M3 else 1 / 254) * 1.001).all()


@QUANTISED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 7])
def test_attention_over_codes_equals_attention_over_dequantised_numbers(
    stored: torch.dtype, dtype: torch.dtype, window: int | None
) -> None:
    torch.manual_seed(0)
    spans = [RowSpan(9, 1, np.array([0, 1, 2])), RowSpan(3, 5, np.array([5, 4])), RowSpan(0, 6, np.array([7, 6]))]
    kv, meant = _filled(stored, dtype)
    q_THD = torch.randn(12, 4, 8).to(dtype)
    layout = attention_layout(spans, page_size=PAGE_SIZE, window=window, dtype=dtype, device=CPU)
    got = paged_attention(q_THD, kv, layout, scale=0.3)
    want = paged_attention(q_THD, meant, layout, scale=0.3)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
    assert got.dtype == dtype


@QUANTISED
def test_slots_of_no_row_are_not_written(stored: torch.dtype) -> None:
    kv, _ = _filled(stored, torch.float32)
    before = kv.k_SKD.view(torch.int8).clone()
    store_kv(torch.randn(2, 2, 8), torch.randn(2, 2, 8), kv, torch.tensor([5, 17]))
    changed = (kv.k_SKD.view(torch.int8) != before).any(-1).any(-1)
    assert changed.nonzero().flatten().tolist() == [5, 17]


@pytest.mark.parametrize(
    ("stored", "dtype"),
    list(itertools.permutations([torch.float32, torch.bfloat16, torch.float16], 2)),
    ids=str,
)
def test_a_cache_may_have_another_dtype_than_the_model(stored: torch.dtype, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    k_LKD, v_LKD = torch.randn(2, 8, 2, 8).to(dtype)
    kv = KvCache(*torch.zeros(2, 8, 2, 8, dtype=stored))
    store_kv(k_LKD, v_LKD, kv, torch.arange(8))
    meant = KvCache(kv.k_SKD.to(dtype), kv.v_SKD.to(dtype))
    layout = attention_layout(
        [RowSpan(3, 5, np.array([0, 1]))], page_size=PAGE_SIZE, window=None, dtype=dtype, device=CPU
    )
    q_THD = torch.randn(5, 4, 8).to(dtype)
    assert torch.equal(paged_attention(q_THD, kv, layout, scale=0.3), paged_attention(q_THD, meant, layout, scale=0.3))
    torch.testing.assert_close(kv.k_SKD.to(dtype), k_LKD, atol=0.02, rtol=0.02)


def _filled(stored: torch.dtype, dtype: torch.dtype) -> tuple[KvCache, KvCache]:
    """Return a cache of codes, and one of the dequantised numbers."""
    k_SKD, v_SKD = torch.randn(2, 8 * PAGE_SIZE, 2, 8)
    scales = torch.tensor([0.03, 0.01]), torch.tensor([0.02, 0.05])
    kv = KvCache(*torch.zeros(2, 8 * PAGE_SIZE, 2, 8, dtype=torch.int8).view(stored), *scales)
    store_kv(k_SKD.to(dtype), v_SKD.to(dtype), kv, torch.arange(8 * PAGE_SIZE))
    numbers = (
        (codes.float() * scale_K[:, None]).to(dtype)
        for codes, scale_K in zip((kv.k_SKD, kv.v_SKD), scales, strict=True)
    )
    return kv, KvCache(*numbers)


@pytest.mark.parametrize("head_dim", [64, 24])
def test_the_rotation_is_sylvester_s_matrix_in_blocks_and_its_own_inverse(head_dim: int) -> None:
    size = rotation_size(head_dim)
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    x = torch.randn(5, 2, head_dim)
    want = (x.unflatten(-1, (-1, size)) @ (matrix * size**-0.5)).flatten(-2)
    torch.testing.assert_close(rotate(x), want)
    torch.testing.assert_close(rotate(rotate(x)), x)
    assert torch.equal(rotate(x)[3:4], rotate(x[3:4])), "a row's bits depend on other rows"
