"""Judge: the plain torch of the same name."""

from __future__ import annotations

import pytest
import torch

from ramiform.kernels import KvCache, RopeAndStoreArgs
from ramiform.kernels.reference import layers as reference
from ramiform.kernels.reference.logits import apply_token_bitmask
from ramiform.kernels.triton import layers, logits, store

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


@DTYPES
@pytest.mark.parametrize("width", [1, 100, 1024])
def test_a_norm_equals_the_reference(dtype: torch.dtype, width: int, device: torch.device) -> None:
    torch.manual_seed(width)
    x, residual = torch.randn(2, 5, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    near(layers.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    normed, kept = layers.add_rms_norm(x, residual, weight, 1e-5)
    wanted, wanted_kept = reference.add_rms_norm(x, residual, weight, 1e-5)
    near(normed, wanted)
    assert torch.equal(kept, wanted_kept)


@DTYPES
def test_each_head_may_have_a_norm_of_its_own_inside_a_larger_tensor(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(4, 7, 24, device=device).to(dtype)
    weight = torch.randn(5, 24, device=device).to(dtype)
    near(layers.rms_norm(qkv[:, :5], weight, 1e-6), reference.rms_norm(qkv[:, :5], weight, 1e-6))


@DTYPES
@pytest.mark.parametrize("size", [1, 95, 2049])
def test_the_gated_activation_equals_the_reference(dtype: torch.dtype, size: int, device: torch.device) -> None:
    torch.manual_seed(size)
    gate_up = torch.randn(3, 2 * size, device=device).to(dtype)
    near(layers.silu_and_mul(gate_up), reference.silu_and_mul(gate_up))
    near(layers.clamped_swiglu(4 * gate_up, 1.702, 7.0), reference.clamped_swiglu(4 * gate_up, 1.702, 7.0))
    gate_up[1] = float("nan")  # a broken checkpoint must not look like a working one
    assert layers.clamped_swiglu(gate_up, 1.702, 7.0)[1].isnan().all()


@pytest.mark.parametrize("vocab_size", [31, 32, 5003])
def test_a_token_passes_where_its_bit_is_set(vocab_size: int, device: torch.device) -> None:
    torch.manual_seed(vocab_size)
    logits_RV = torch.randn(3, vocab_size, device=device)
    bitmask_RW = torch.randint(-(2**31), 2**31, (3, -(-vocab_size // 32)), dtype=torch.int32, device=device)
    assert torch.equal(logits.apply_token_bitmask(logits_RV, bitmask_RW), apply_token_bitmask(logits_RV, bitmask_RW))


@DTYPES
def test_keys_are_rotated_and_stored_and_queries_rotated(dtype: torch.dtype, device: torch.device) -> None:
    qkv, cos, sin, slots = _projected(dtype, device)
    k, v = torch.zeros(2, 64, 2, 48, device=device, dtype=dtype)
    q = store.rope_and_store(qkv, KvCache(k, v), None, RopeAndStoreArgs(cos, sin, slots, num_heads=6, eps=0.0))
    turned = reference.apply_rope(qkv[:, :8], cos, sin)
    near(q, turned[:, :6])
    near(k[slots], turned[:, 6:])
    assert torch.equal(v[slots], qkv[:, 8:])
    untouched = torch.ones(64, dtype=torch.bool, device=device).index_fill_(0, slots, False)
    assert not k[untouched].any()
    assert not v[untouched].any()


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_eight_bit_codes_are_the_nearest(stored: torch.dtype, device: torch.device) -> None:
    qkv, cos, sin, slots = _projected(torch.float32, device)
    k, v = torch.zeros(2, 64, 2, 48, device=device).to(stored)
    scale_K = torch.tensor([0.005, 0.03], device=device)  # the first is too small for some
    args = RopeAndStoreArgs(cos, sin, slots, num_heads=6, eps=0.0)
    store.rope_and_store(qkv, KvCache(k, v, scale_K, scale_K), None, args)
    largest = 127 if stored == torch.int8 else 448
    for cache, meant in [(k, reference.apply_rope(qkv[:, :8], cos, sin)[:, 6:]), (v, qkv[:, 8:])]:
        scaled = (meant / scale_K[:, None]).clamp(-largest, largest)
        nearest = scaled.round() if stored == torch.int8 else scaled.to(stored).float()
        # A value that lies halfway may be rounded either way.
        assert ((cache[slots].float() - nearest) != 0).float().mean() < 1e-3
        assert (cache[slots].float() - scaled).abs().max() <= (0.5 if stored == torch.int8 else 16)


def _projected(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return heads of queries, keys and values of five tokens, cos, sin, and slots."""
    torch.manual_seed(0)
    qkv = torch.randn(5, 10, 48, device=device).to(dtype)
    angles = torch.randn(5, 1, 24, device=device)
    cos = torch.cat([angles.cos(), angles.cos()], -1).to(dtype)
    sin = torch.cat([-angles.sin(), angles.sin()], -1).to(dtype)
    return qkv, cos, sin, torch.randperm(64, device=device)[:5]
