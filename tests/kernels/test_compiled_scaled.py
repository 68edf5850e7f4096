"""Compiled attention over codes with scales of their own. Judge: the plain torch that defines it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ramiform.kernels import AttentionArgs, KvCache, RowSpan, attention_layout, for_device, paged_attention, store_kv
from ramiform.kernels.cpu.attention.basis import SPAN, arrays_of, find_angles
from ramiform.kernels.cpu.attention.blocks import kv_descriptor
from ramiform.kernels.cpu.attention.paged import CompiledAttention
from ramiform.kernels.cpu.attention.scaled import store_scaled
from ramiform.kernels.reference.attention_layout import ancestors
from ramiform.kernels.reference.quantise import E4M3, E5M2, PACKED_INT4, to_e5m2
from ramiform.kernels.reference.scaled_codes import pack_keys, pack_values, scaled_size, unpack, unpack_keys

from .test_scaled_codes import some_basis

PAGE, K, H = 16, 2, 6
CPU = torch.device("cpu")
FORMATS = pytest.mark.parametrize(
    ("dtype", "D"), [(torch.int8, 64), (E4M3, 64), (PACKED_INT4, 64), (torch.int8, 80), (PACKED_INT4, 80)], ids=str
)
ROWS = [
    RowSpan(0, 70, np.arange(5)),
    RowSpan(100, 1, np.array([0, 1, 2, 3, 6, 7, 8])),
    RowSpan(64, 8, np.array([0, 1, 2, 3, 12]), tree=(-1, 0, 0, -1, 2)),
    RowSpan(5, 1, np.array([20])),
    RowSpan(SPAN - 6, 20, np.arange(25, 42)),  # some of its queries meet a second span
]
NUM_TOKENS = sum(row.num_tokens for row in ROWS)


def filled(dtype: torch.dtype, D: int) -> KvCache:
    kv = KvCache(*torch.zeros(2, 42 * PAGE, K, scaled_size(D, dtype)).to(dtype), basis=some_basis(K, D))
    assert kv.basis is not None
    for row in ROWS:
        places = torch.arange(row.first_position + row.num_tokens)
        slots, positions = torch.from_numpy(row.pages)[places // PAGE] * PAGE + places % PAGE, places.clone()
        if row.tree:
            first_node = len(places) - len(row.tree)
            positions[first_node:] = first_node - 1 + torch.from_numpy(ancestors(row.tree)[1])
        k_TKD = torch.randn(len(places), K, D) + kv.basis.offsets(positions)
        store_kv(k_TKD, torch.randn(len(places), K, D), kv, slots, positions)
    return kv


def compiled(
    q_THD: torch.Tensor, kv: KvCache, rows: list[RowSpan], window: int | None = None, cap: float | None = None,
    sinks_H: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    args = AttentionArgs(rows, kv, H, PAGE, window, q_THD.dtype)
    attention = for_device(CPU, attention_cap=cap).attention(args)
    assert isinstance(attention, CompiledAttention)
    return attention.attend(q_THD, kv, 0.02, sinks_H)


@FORMATS
@pytest.mark.parametrize("model", [torch.float32, torch.bfloat16], ids=str)
def test_scores_take_the_offset_and_bits_are_a_query_s_own(dtype: torch.dtype, D: int, model: torch.dtype) -> None:
    torch.manual_seed(D)
    kv, q_THD, sinks_H = filled(dtype, D), torch.randn(NUM_TOKENS, H, D).to(model), torch.randn(H)
    for window in (None, 7):
        for cap, sinks in ((None, None), (20.0, sinks_H)):
            layout = attention_layout(ROWS, page_size=PAGE, window=window, dtype=model, device=CPU)
            want = paged_attention(q_THD, kv, layout, 0.02, cap, sinks)
            got = compiled(q_THD, kv, ROWS, window, cap, sinks)
            tolerance = 1e-3 if model == torch.float32 else 1e-2
            torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
    alone, together = compiled(q_THD[70:71], kv, ROWS[1:2]), compiled(q_THD, kv, ROWS)
    assert torch.equal(alone[0], together[70])


@FORMATS
def test_loops_store_what_plain_torch_stores(dtype: torch.dtype, D: int) -> None:
    torch.manual_seed(D)
    kv = KvCache(*torch.zeros(2, 8, K, scaled_size(D, dtype)).to(dtype), basis=some_basis(K, D))
    assert kv.basis is not None
    positions, slots = torch.tensor([0, 1, 63, 64, 5000, 70000]), [3, 0, 7, 1, 4, 6]
    k_TKD, v_TKD = torch.randn(2, len(slots), K, D)
    k_TKD += kv.basis.offsets(positions)
    v_TKD[2] = 0
    v_TKD[3, 0, 5], v_TKD[4, 1, 3] = float("nan"), float("inf")
    descriptor, scratch = kv_descriptor(kv, torch.float32), torch.empty(3 * D + 64)
    for t, slot in enumerate(slots):
        both = torch.cat((k_TKD[t], v_TKD[t])).contiguous()
        store_scaled(both.data_ptr(), descriptor, int(positions[t]), slot, scratch.data_ptr())
    stored = kv.k_SKD.view(torch.int8)[slots].view(dtype)
    # Positions of thousands: angles in float32 differ in the last digits.
    got, want = (
        unpack_keys(one, positions, kv.basis, torch.float64)
        for one in (stored, pack_keys(k_TKD, positions, kv.basis, dtype))
    )
    exact = k_TKD.double()
    assert (got - exact).square().sum() <= (want - exact).square().sum() * 1.01
    assert ((got - want).abs() < 1e-3).double().mean() > 0.98
    got, want = (
        unpack(kv.v_SKD.view(torch.int8)[slots].view(dtype), torch.float32),
        unpack(pack_values(v_TKD, dtype), torch.float32),
    )
    assert torch.equal(got.isfinite(), want.isfinite())
    finite = want.isfinite()
    assert ((got[finite] - want[finite]).abs() < 1e-6).double().mean() > 0.98


def test_angles_of_far_spans_are_computed() -> None:
    basis, found = some_basis(K, 64), torch.empty(64)
    words = arrays_of(basis).words.ctypes.data
    for span in (0, 3, 255, 256, 10000):
        find_angles(words, 64, span, found.data_ptr())
        phase = basis.frequencies.double() * SPAN * span
        torch.testing.assert_close(found.double(), torch.cat((phase.cos(), phase.sin())), atol=1e-6, rtol=0)


def test_e5m2_has_compiled_attention() -> None:
    torch.manual_seed(0)
    kv = KvCache(*to_e5m2(torch.randn(2, 42 * PAGE, K, 64)))
    q_THD = torch.randn(NUM_TOKENS, H, 64)
    layout = attention_layout(ROWS, page_size=PAGE, window=None, dtype=torch.float32, device=CPU)
    torch.testing.assert_close(
        compiled(q_THD, kv, ROWS), paged_attention(q_THD, kv, layout, 0.02), atol=1e-5, rtol=1e-5
    )
    assert kv.k_SKD.dtype == E5M2
