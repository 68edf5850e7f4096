"""Products of many rows with 4-bit weights, which are dequantised to bfloat16 block by block.

torch's own product multiplies in float32 for any number of rows, at half of a CPU's bfloat16 rate. From `MIN_ROWS` on
it is cheaper to dequantise blocks that stay in the cache. The order in which torch packs codes is that of its
aten/src/ATen/native/cpu/int4mm_kernel.cpp; `is_supported` checks it on this machine.

Legend: T tokens, N outputs, C inputs, G groups of a row's C, B blocks of outputs, H half a block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from .compiled import compiled

MIN_ROWS = 32  # for each of torch's threads: one thread alone dequantises
_BLOCK = 512  # outputs dequantised at a time: with a few thousand inputs they stay in a core's cache


def is_supported() -> bool:
    """Return True if `matmul` takes codes as this machine's torch packs them; its loop is compiled then."""
    if half := _half_block():
        _compiled_for(half)
    return half > 0


def compile_ahead() -> None:
    """Compile the loop for the order in which this machine's torch packs codes."""
    is_supported()


def matmul(x_TC: torch.Tensor, codes: torch.Tensor, groups_GN2: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return `torch._weight_int4pack_mm_for_cpu(x_TC, codes, group_size, groups_GN2)`, bfloat16 [T, N], of weights that
    are rounded to bfloat16.

    `codes` are packed by `torch._convert_weight_to_int4pack_for_cpu`.
    """
    half = _half_block()
    N, C = codes.shape[0], 2 * codes.shape[1]
    whole = N // (2 * half) * 2 * half  # codes behind the last whole block lie in another order
    codes_BCH = codes.view(-1)[: whole * C // 2].view(-1, C, half).numpy()
    groups = groups_GN2.view(torch.uint16).numpy()
    dense_CM = _scratch(C)
    dequantise = _compiled_for(half)
    parts = []
    for first in range(0, whole, _BLOCK):
        last = min(first + _BLOCK, whole)
        blocks = codes_BCH[first // (2 * half) : last // (2 * half)]
        dequantise(blocks, groups, group_size, first, dense_CM.view(torch.uint16).numpy())
        parts.append(torch.mm(x_TC, dense_CM[:, : last - first]))
    if whole < N:
        rest = groups_GN2[:, whole:].contiguous()
        parts.append(torch._weight_int4pack_mm_for_cpu(x_TC, codes[whole:], group_size, rest))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


@cache
def _compiled_for(
    half: int,
) -> Callable[[NDArray[np.uint8], NDArray[np.uint16], int, int, NDArray[np.uint16]], None]:
    """Compile the loop that dequantises blocks; half a block must be a constant of it to be vectorised."""

    @compiled("void(uint8[:,:,::1], uint16[:,:,::1], int64, int64, uint16[:,::1])")
    def dequantise(
        codes_BCH: NDArray[np.uint8],
        groups_GN2: NDArray[np.uint16],
        group_size: int,
        first: int,
        dense_CM: NDArray[np.uint16],
    ) -> None:
        """Write the weights of blocks whose first output is `first`, as the bits of bfloat16."""
        scale, base = np.empty(2 * half, np.float32), np.empty(2 * half, np.float32)
        for b in range(codes_BCH.shape[0]):
            start = 2 * half * b
            for g in range(codes_BCH.shape[1] // group_size):
                for n in range(2 * half):
                    of_one = np.int32(np.int32(groups_GN2[g, first + start + n, 0]) << np.int32(16))
                    of_eight = np.int32(np.int32(groups_GN2[g, first + start + n, 1]) << np.int32(16))
                    scale[n] = of_one.view(np.float32)
                    base[n] = of_eight.view(np.float32) - np.float32(8) * of_one.view(np.float32)
                for c in range(g * group_size, (g + 1) * group_size):
                    # Byte h has the codes of the block's outputs h, below, and half + h.
                    codes_H, dense_M = codes_BCH[b, c], dense_CM[c, start : start + 2 * half]
                    for h in range(half):
                        w = np.float32(np.float32(codes_H[h] & np.uint8(15)) * scale[h] + base[h])
                        dense_M[h] = np.uint16((w.view(np.int32) + np.int32(0x8000)) >> np.int32(16))
                    for h in range(half):
                        w = np.float32(np.float32(codes_H[h] >> np.uint8(4)) * scale[half + h] + base[half + h])
                        dense_M[half + h] = np.uint16((w.view(np.int32) + np.int32(0x8000)) >> np.int32(16))

    return dequantise


@cache
def _half_block() -> int:
    """Return half of a block's outputs: 32 where torch uses AVX-512, 16 for AVX2, 0 if it packs codes otherwise."""
    rows = torch.arange(64, dtype=torch.int32)[:, None].expand(64, 2)
    packed = [torch._convert_weight_to_int4pack_for_cpu((rows >> shift & 15).contiguous(), 1) for shift in (0, 4)]
    low, high = (packed[0] & 15) + ((packed[1] & 15) << 4), (packed[0] >> 4) + (packed[1] >> 4 << 4)
    for half in (32, 16):
        blocks = rows[:, 0].view(-1, 2, 1, half).expand(-1, 2, 2, half)  # B, low or high, C, H
        if torch.equal(low.flatten(), blocks[:, 0].flatten()) and torch.equal(high.flatten(), blocks[:, 1].flatten()):
            return half
    return 0


_OWN = threading.local()


def _scratch(num_inputs: int) -> torch.Tensor:
    """Return the thread's buffer, bfloat16 [num_inputs, _BLOCK]; fresh memory is slow to write to."""
    held: torch.Tensor | None = getattr(_OWN, "dense", None)
    if held is None or len(held) < num_inputs:
        held = _OWN.dense = torch.empty((num_inputs, _BLOCK), dtype=torch.bfloat16)
    return held[:num_inputs]
