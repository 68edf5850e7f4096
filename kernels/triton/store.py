"""Rotary embedding of queries and keys, and storing of keys and values, in one pass over the projections' output.

Legend: T tokens, H query heads, K key/value heads, D head size, S slots, N heads of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..arguments import RopeAndStoreArgs
from ..kv_cache import KvCache
from ..reference.quantise import QUANTISED_MAX, rotation_size
from .launching import launch
from .rotation import rotate_rows
from .scaled_codes import FORMATS, angles_of, key_offsets, store_scaled

# 1.5 * 2**23, whose float32 neighbours are integers: adding it rounds a number to the nearest integer, ties to even.
ROUNDER = tl.constexpr(12582912.0)
E5M2_MAX = tl.constexpr(57344.0)


def rope_and_store(
    qkv_TND: torch.Tensor, kv: KvCache, qk_norm_HD: torch.Tensor | None, args: RopeAndStoreArgs
) -> torch.Tensor:
    """Return the rotated queries [T, H, D]; write rotated keys, and values, to the cache.

    In a quantised cache they are divided by their head's scale, or with a basis packed as `reference.scaled_codes`
    says. A token with slot -1 is not written. The arguments are those of `Ops.rope_and_store`.
    """
    T, N, D = qkv_TND.shape
    num_heads = args.num_heads
    K = kv.k_SKD.shape[1]
    q_THD = torch.empty((T, num_heads, D), dtype=qkv_TND.dtype, device=qkv_TND.device)
    block_n = min(triton.next_power_of_2(N), 16)
    stored, basis = kv.k_SKD.dtype, kv.basis
    k_memory, v_memory = kv.k_SKD, kv.v_SKD
    high_PD = low_PD = None
    if basis is not None:
        assert args.positions_T is not None, "keys are stored relative to statistics that depend on positions"
        k_memory, v_memory = k_memory.view(torch.uint8), v_memory.view(torch.uint8)
        high_PD, low_PD = angles_of(basis.frequencies)
    launch(
        _rope_and_store,
        (T, triton.cdiv(N, block_n)),
        qkv_TND,
        args.cos_T1D,
        args.sin_T1D,
        k_memory,
        v_memory,
        kv.k_scale_K,
        kv.v_scale_K,
        None if basis is None else basis.mean_KD,
        None if basis is None else basis.first_KD,
        None if basis is None else basis.factor_KD,
        high_PD,
        low_PD,
        None if basis is None else args.positions_T,
        0 if high_PD is None else high_PD.shape[0],
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
        ROTATION=1 if basis is None else rotation_size(D),
        FACTOR=1.0 if basis is None else rotation_size(D) ** -0.5,
        FORMAT="" if basis is None else FORMATS[stored],
        num_warps=4,
    )
    return q_THD


@triton.jit
def quantise(x, scale, LIMIT: tl.constexpr, dtype: tl.constexpr):
    x = tl.minimum(tl.maximum(x / scale, -LIMIT), LIMIT)
    if dtype == tl.int8:
        x = (x + ROUNDER) - ROUNDER
    return x.to(dtype)


@triton.jit(do_not_specialize=["num_positions"])
def _rope_and_store(
    qkv_TND,
    cos_TD,
    sin_TD,
    k_SKD,
    v_SKD,
    k_scale_K,
    v_scale_K,
    mean_KD,
    first_KD,
    factor_KD,
    high_PD,
    low_PD,
    positions_T,
    num_positions,
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
    FORMAT: tl.constexpr,  # of scaled codes; "": the dtype says how keys and values are stored
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
    if FORMAT != "":
        # Not rounded first: what is left of a key without its offset must not be its rounding.
        stored_ND = tl.where(is_v[:, None], x_ND, rotated_ND)
        position = tl.load(positions_T + token)
        offset_ND = key_offsets(
            mean_KD, first_KD, high_PD, low_PD, position, num_positions, n - H, is_k, BLOCK_N, BLOCK_D, D
        )
        factor_ND = tl.load(factor_KD + (n - H)[:, None] * D + d[None, :], mask=is_k[:, None] & valid_ND, other=1.0)
        stored_ND = rotate_rows((stored_ND - offset_ND) / factor_ND, BLOCK_N, BLOCK_D, ROTATION, FACTOR)
        store_scaled(stored_ND, slot, n - H, is_k, k_SKD, FORMAT, BLOCK_N, BLOCK_D, D)
        store_scaled(stored_ND, slot, n - H - K, is_v, v_SKD, FORMAT, BLOCK_N, BLOCK_D, D)
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
