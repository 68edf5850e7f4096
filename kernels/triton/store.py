"""Rotary embedding of queries and keys, and storing of keys and values, in one pass over the projections' output.

Legend: T tokens, H query heads, K key/value heads, D head size, S slots, N heads of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..arguments import RopeAndStoreArgs
from ..kv_cache import KvCache
from ..reference.quantise import CLIP, PACKED_INT4, QUANTISED_MAX, rotation_size
from .launching import launch

# 1.5 * 2**23, whose float32 neighbours are integers: adding it rounds a number to the nearest integer, ties to even.
ROUNDER = tl.constexpr(12582912.0)
E5M2_MAX = tl.constexpr(57344.0)
_STEP = tl.constexpr(CLIP / 7.5)  # of four-bit codes, where the largest number is 1
_LEAST_SCALE = tl.constexpr(2.0**-100)


def rope_and_store(
    qkv_TND: torch.Tensor, kv: KvCache, qk_norm_HD: torch.Tensor | None, args: RopeAndStoreArgs
) -> torch.Tensor:
    """Return the rotated queries [T, H, D]; write rotated keys, and values, to the cache.

    In a quantised cache they are divided by their head's scale, or packed as by `pack_int4`. A token with slot -1 is
    not written. The arguments are those of `Ops.rope_and_store`; keys are always rotated.
    """
    assert args.rotate_keys, "Triton kernels do not rotate keys when they read them"
    T, N, D = qkv_TND.shape
    num_heads = args.num_heads
    K = kv.k_SKD.shape[1]
    q_THD = torch.empty((T, num_heads, D), dtype=qkv_TND.dtype, device=qkv_TND.device)
    block_n = min(triton.next_power_of_2(N), 16)
    stored = kv.k_SKD.dtype
    launch(
        _rope_and_store,
        (T, triton.cdiv(N, block_n)),
        qkv_TND,
        args.cos_T1D,
        args.sin_T1D,
        kv.k_SKD,
        kv.v_SKD,
        kv.k_scale_K,
        kv.v_scale_K,
        args.slots_T,
        q_THD,
        qk_norm_HD,
        args.eps,
        qkv_TND.stride(0),
        kv.k_SKD.stride(0),
        H=num_heads,
        K=K,
        D=D,
        BLOCK_N=block_n,
        BLOCK_D=triton.next_power_of_2(D),
        LIMIT=QUANTISED_MAX.get(stored, 0.0),
        ROTATION=rotation_size(D) if stored == PACKED_INT4 else 1,
        FACTOR=rotation_size(D) ** -0.5 if stored == PACKED_INT4 else 1.0,
        num_warps=4,
    )
    return q_THD


def rotate(x_THD: torch.Tensor, scale_KD: torch.Tensor | None = None) -> torch.Tensor:
    """Return each head's numbers, times the scales of its key head's channels, rotated as `reference.quantise.rotate`
    does."""
    T, H, D = x_THD.shape
    out_THD = torch.empty((T, H, D), dtype=x_THD.dtype, device=x_THD.device)
    block_n = min(triton.next_power_of_2(H), 16)
    launch(
        _rotate_heads,
        (T, triton.cdiv(H, block_n)),
        x_THD,
        scale_KD,
        out_THD,
        x_THD.stride(0),
        x_THD.stride(1),
        H=H,
        GROUP=1 if scale_KD is None else H // len(scale_KD),
        D=D,
        BLOCK_N=block_n,
        BLOCK_D=triton.next_power_of_2(D),
        ROTATION=rotation_size(D),
        FACTOR=rotation_size(D) ** -0.5,
        num_warps=4,
    )
    return out_THD


@triton.jit
def _sums_and_differences(x_ND, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, APART: tl.constexpr, SIZE: tl.constexpr):
    """Replace each pair of numbers APART from each other, within matrices of SIZE, by its sum and its difference."""
    if APART < SIZE:
        pairs = tl.reshape(x_ND, [BLOCK_N, BLOCK_D // (2 * APART), 2, APART])
        a, b = tl.split(tl.permute(pairs, [0, 1, 3, 2]))
        x_ND = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 1, 3, 2]), [BLOCK_N, BLOCK_D])
    return x_ND


@triton.jit
def _rotate(x_ND, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SIZE: tl.constexpr, FACTOR: tl.constexpr):
    """Multiply by Hadamard matrices of SIZE along the diagonal: the sums are those of the plain torch, in its order."""
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 1, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 2, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 4, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 8, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 16, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 32, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 64, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 128, SIZE)
    return x_ND * FACTOR


@triton.jit
def _rotate_heads(
    x_THD,
    scale_KD,
    out_THD,
    stride_t,
    stride_h,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROTATION: tl.constexpr,
    FACTOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    valid_ND = (n < H)[:, None] & (d < D)[None, :]
    x_ND = tl.load(x_THD + token * stride_t + n[:, None] * stride_h + d[None, :], mask=valid_ND, other=0.0)
    x_ND = x_ND.to(tl.float32)
    if scale_KD is not None:
        x_ND *= tl.load(scale_KD + (n // GROUP)[:, None] * D + d[None, :], mask=valid_ND, other=0.0)
    x_ND = _rotate(x_ND, BLOCK_N, BLOCK_D, ROTATION, FACTOR)
    at_ND = (token * H + n)[:, None] * D + d[None, :]
    tl.store(out_THD + at_ND, x_ND.to(out_THD.dtype.element_ty), mask=valid_ND)


@triton.jit
def _store_packed(x_ND, at_N, valid_N, memory, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr):
    """Write rotated keys or values from `at_N` on: the two bytes of a bfloat16 scale, then the codes of channels d, in
    the low halves of bytes, and d + D / 2."""
    d = tl.arange(0, BLOCK_D)
    HALF: tl.constexpr = D // 2
    largest_N = tl.max(tl.abs(x_ND), 1)
    scale_N = tl.maximum(largest_N * _STEP, _LEAST_SCALE).to(tl.bfloat16)
    bits_N = scale_N.to(tl.int16, bitcast=True).to(tl.int32)
    tl.store(memory + at_N, (bits_N & 255).to(tl.uint8), mask=valid_N)
    tl.store(memory + at_N + 1, ((bits_N >> 8) & 255).to(tl.uint8), mask=valid_N)
    codes_ND = ((x_ND / scale_N.to(tl.float32)[:, None] + 7.5) + ROUNDER) - ROUNDER
    codes_ND = tl.minimum(tl.maximum(codes_ND, 0.0), 15.0).to(tl.int32)
    # Channel d + D / 2 belongs into the byte of channel d: the codes are gathered along the row.
    partner_ND = tl.broadcast_to(tl.where(d < HALF, d + HALF, d)[None, :], [BLOCK_N, BLOCK_D])
    high_ND = tl.gather(codes_ND, partner_ND, 1)
    at_ND = at_N[:, None] + 2 + d[None, :]
    tl.store(memory + at_ND, (codes_ND | (high_ND << 4)).to(tl.uint8), mask=valid_N[:, None] & (d < HALF)[None, :])


@triton.jit
def quantise(x, scale, LIMIT: tl.constexpr, dtype: tl.constexpr):
    x = tl.minimum(tl.maximum(x / scale, -LIMIT), LIMIT)
    if dtype == tl.int8:
        x = (x + ROUNDER) - ROUNDER
    return x.to(dtype)


@triton.jit
def _rope_and_store(
    qkv_TND,
    cos_TD,
    sin_TD,
    k_SKD,
    v_SKD,
    k_scale_K,
    v_scale_K,
    slots_T,
    q_THD,
    qk_norm_HD,
    eps,
    stride_t,
    stride_slot,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LIMIT: tl.constexpr,
    ROTATION: tl.constexpr,
    FACTOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    valid_D = d < D
    valid_ND = (n < H + 2 * K)[:, None] & valid_D[None, :]
    is_q = n < H
    is_k = (n >= H) & (n < H + K)
    is_v = (n >= H + K) & (n < H + 2 * K)
    source = qkv_TND + token * stride_t + n[:, None] * D
    x_ND = tl.load(source + d[None, :], mask=valid_ND, other=0.0).to(tl.float32)
    other_D = (d + D // 2) % D
    swapped_ND = tl.load(source + other_D[None, :], mask=valid_ND, other=0.0).to(tl.float32)
    if qk_norm_HD is not None:
        normed = (n < H + K)[:, None] & valid_D[None, :]
        weight_ND = tl.load(qk_norm_HD + n[:, None] * D + d[None, :], mask=normed, other=1.0).to(tl.float32)
        swapped_weight_ND = tl.load(qk_norm_HD + n[:, None] * D + other_D[None, :], mask=normed, other=1.0)
        inverse_N = tl.where(n < H + K, tl.rsqrt(tl.sum(x_ND * x_ND, 1) / D + eps), 1.0)[:, None]
        # Rounded between norm and rotation, as two separate ops would.
        dtype_in: tl.constexpr = qkv_TND.dtype.element_ty
        x_ND = (x_ND * inverse_N * weight_ND).to(dtype_in).to(tl.float32)
        swapped_ND = (swapped_ND * inverse_N * swapped_weight_ND.to(tl.float32)).to(dtype_in).to(tl.float32)
    cos_D = tl.load(cos_TD + token * D + d, mask=valid_D, other=0.0).to(tl.float32)
    sin_D = tl.load(sin_TD + token * D + d, mask=valid_D, other=0.0).to(tl.float32)
    rotated_ND = x_ND * cos_D[None, :] + swapped_ND * sin_D[None, :]

    index_q = (token * H + n)[:, None] * D + d[None, :]
    tl.store(q_THD + index_q, rotated_ND.to(q_THD.dtype.element_ty), mask=is_q[:, None] & valid_D[None, :])
    slot = tl.load(slots_T + token).to(tl.int64) * stride_slot
    if slot < 0:
        return
    index_k = slot + (n - H)[:, None] * D + d[None, :]
    index_v = slot + (n - H - K)[:, None] * D + d[None, :]
    dtype: tl.constexpr = k_SKD.dtype.element_ty
    if dtype == tl.uint8:
        stored_ND = tl.where(is_v[:, None], x_ND, rotated_ND).to(qkv_TND.dtype.element_ty).to(tl.float32)
        if k_scale_K is not None:
            channel_ND = tl.load(
                k_scale_K + (n - H)[:, None] * D + d[None, :], mask=is_k[:, None] & valid_ND, other=1.0
            )
            stored_ND /= channel_ND
        stored_ND = _rotate(stored_ND, BLOCK_N, BLOCK_D, ROTATION, FACTOR).to(qkv_TND.dtype.element_ty).to(tl.float32)
        WIDTH: tl.constexpr = D // 2 + 2
        _store_packed(stored_ND, slot + (n - H) * WIDTH, is_k, k_SKD, BLOCK_N, BLOCK_D, D)
        _store_packed(stored_ND, slot + (n - H - K) * WIDTH, is_v, v_SKD, BLOCK_N, BLOCK_D, D)
    elif k_scale_K is not None:
        k_scale_N = tl.load(k_scale_K + n - H, mask=is_k, other=1.0)
        v_scale_N = tl.load(v_scale_K + n - H - K, mask=is_v, other=1.0)
        rotated_ND = rotated_ND.to(qkv_TND.dtype.element_ty).to(tl.float32)
        tl.store(k_SKD + index_k, quantise(rotated_ND, k_scale_N[:, None], LIMIT, dtype), mask=is_k[:, None] & valid_ND)
        tl.store(v_SKD + index_v, quantise(x_ND, v_scale_N[:, None], LIMIT, dtype), mask=is_v[:, None] & valid_ND)
    else:
        if dtype == tl.float8e5:
            rotated_ND = tl.minimum(tl.maximum(rotated_ND, -E5M2_MAX), E5M2_MAX)
            x_ND = tl.minimum(tl.maximum(x_ND, -E5M2_MAX), E5M2_MAX)
        tl.store(k_SKD + index_k, rotated_ND.to(dtype), mask=is_k[:, None] & valid_ND)
        tl.store(v_SKD + index_v, x_ND.to(dtype), mask=is_v[:, None] & valid_ND)
