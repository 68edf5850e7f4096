"""Writers of Q4_K and Q6_K blocks, which `gguf` only reads; layouts as in ggml-common.h.

Scales span the least to the greatest weight of a sub-block; llama.cpp searches for better ones, so its files are a
little nearer to the dense weights.

Legend: N rows, B blocks of 256 of a row, S sub-blocks of a block.
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
SIZE = 256


def quantize(rows: Floats, kind: Type) -> Bytes:
    """Encode rows. Raises NotImplementedError for other formats."""
    if kind not in (Type.Q4_K, Type.Q6_K):
        raise NotImplementedError(kind)
    blocks = rows.reshape(*rows.shape[:-1], rows.shape[-1] // SIZE, SIZE).astype(np.float32)
    stored = _q4_k(blocks) if kind == Type.Q4_K else _q6_k(blocks)
    return stored.reshape(*rows.shape[:-1], -1)


def _q4_k(blocks: Floats) -> Bytes:
    """Encode eight sub-blocks of 32: weight = scale * code - minimum, both of six bits times one float16 per block."""
    parts = blocks.reshape(*blocks.shape[:-1], 8, 32)
    minimums = np.maximum(-parts.min(-1), 0)
    scales = (np.maximum(parts.max(-1), 0) + minimums) / 15
    scale, scales_BS = _of_bits(scales, 63)
    minimum, minimums_BS = _of_bits(minimums, 63)
    steps = (_float(scale) * scales_BS)[..., None]
    shifted = parts + (_float(minimum) * minimums_BS)[..., None]
    codes = np.rint(np.divide(shifted, steps, out=np.zeros_like(parts), where=steps > 0)).clip(0, 15).astype(np.uint8)
    first, last = scales_BS[..., :4], scales_BS[..., 4:]
    first_minimums, last_minimums = minimums_BS[..., :4], minimums_BS[..., 4:]
    six_bits = (
        first | (last >> 4 << 6),
        first_minimums | (last_minimums >> 4 << 6),
        (last & 15) | ((last_minimums & 15) << 4),
    )
    pairs = codes.reshape(*codes.shape[:-2], 4, 2, 32)
    nibbles = pairs[..., 0, :] | (pairs[..., 1, :] << 4)
    return np.concatenate([scale, minimum, *six_bits, nibbles.reshape(*blocks.shape[:-1], 128)], axis=-1)


def _q6_k(blocks: Floats) -> Bytes:
    """Encode sixteen sub-blocks of 16: weight = scale * (code - 32), eight bits of scale times one float16 per
    block."""
    parts = blocks.reshape(*blocks.shape[:-1], 16, 16)
    scale, scales_BS = _of_bits(np.abs(parts).max(-1) / 31, 127)
    steps = (_float(scale) * scales_BS)[..., None]
    signed = np.rint(np.divide(parts, steps, out=np.zeros_like(parts), where=steps > 0)).clip(-32, 31)
    halves = (signed + 32).astype(np.uint8).reshape(*blocks.shape[:-1], 2, 4, 32)
    low, high = halves & 15, halves >> 4
    nibbles = low[..., :2, :] | (low[..., 2:, :] << 4)
    above = high[..., 0, :] | (high[..., 1, :] << 2) | (high[..., 2, :] << 4) | (high[..., 3, :] << 6)
    flat = blocks.shape[:-1]
    return np.concatenate([nibbles.reshape(*flat, 128), above.reshape(*flat, 64), scales_BS, scale], axis=-1)


def _of_bits(scales: Floats, greatest: int) -> tuple[Bytes, Bytes]:
    """Return the float16 of each block, as two bytes, and the sub-blocks' scales as multiples of it."""
    half = (scales.max(-1, keepdims=True) / greatest).astype(np.float16)
    of_block = half.astype(np.float32)
    multiples = np.divide(scales, of_block, out=np.zeros_like(scales), where=of_block > 0)
    return half.view(np.uint8), np.rint(multiples).clip(0, greatest).astype(np.uint8)


def _float(two_bytes: Bytes) -> Floats:
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)
