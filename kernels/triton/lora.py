"""Low-rank products of adapters in two kernels: the inner products A x, and B (A x) added to the base's output.

A program computes a block of tokens of one adapter, and finds its matrices by their addresses. The inner products are
cut along the inputs, so that steps of few tokens fill the device; the second kernel adds the parts in order.

Legend: as in `kernels.lora`; M tokens of a block, N tokens with an adapter, P parts of the inputs, S sections, R rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..lora import BLOCK_TOKENS, AdapterSegments, LowRankProduct
from .launching import launch

_BLOCK_INPUTS, _BLOCK_OUTPUTS = 128, 128
_WIDE_RANK, _WIDE_BLOCK = 64, 32  # above this rank blocks are smaller, as a multiprocessor has registers for
_PROGRAMS = 256  # of the first kernel, as far as there are inputs to divide
_MAX_SECTIONS = 3


def add_low_rank(y_TO: torch.Tensor, x_TC: torch.Tensor, product: LowRankProduct, segments: AdapterSegments) -> None:
    """Add each adapter's product of its tokens' `x_TC` to `y_TO`, in place. Sums are float32."""
    blocks, table = segments.blocks, product.table
    assert blocks is not None
    assert table is not None
    num_blocks, num_tokens = len(blocks), len(segments.tokens_N)
    most = max((len(part.b_RO) for part in product.by_place if part is not None), default=0)
    if num_blocks == 0 or most == 0:
        return
    assert x_TC.stride(1) == 1
    assert y_TO.stride(1) == 1
    S, C, block_rank = len(product.sizes), x_TC.shape[1], max(16, triton.next_power_of_2(most))
    block_inputs = _BLOCK_INPUTS if block_rank <= _WIDE_RANK else _WIDE_BLOCK
    block_outputs = _BLOCK_OUTPUTS if block_rank <= _WIDE_RANK else _WIDE_BLOCK
    num_parts = max(1, min(triton.cdiv(C, block_inputs), _PROGRAMS // (num_blocks * S)))
    inner_PNSR = torch.empty((num_parts, num_tokens, S, block_rank), dtype=torch.float32, device=x_TC.device)
    launch(
        _inner_products,
        (num_blocks, S, num_parts),
        x_TC,
        table,
        blocks,
        segments.tokens_N,
        inner_PNSR,
        x_TC.stride(0),
        num_tokens,
        triton.cdiv(triton.cdiv(C, block_inputs), num_parts) * block_inputs,
        C=C,
        S=S,
        BLOCK_M=BLOCK_TOKENS,
        BLOCK_R=block_rank,
        BLOCK_C=block_inputs,
        num_warps=4,
    )
    sizes = [*product.sizes, *[0] * (_MAX_SECTIONS - S)]
    tiles = sum(triton.cdiv(size, block_outputs) for size in sizes)
    launch(
        _add_outer_products,
        (num_blocks, tiles),
        y_TO,
        table,
        blocks,
        segments.tokens_N,
        inner_PNSR,
        y_TO.stride(0),
        num_tokens,
        num_parts,
        SIZE_0=sizes[0],
        SIZE_1=sizes[1],
        SIZE_2=sizes[2],
        S=S,
        BLOCK_M=BLOCK_TOKENS,
        BLOCK_R=block_rank,
        BLOCK_O=block_outputs,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_tokens", "per_part"])
def _inner_products(
    x_TC,
    table,
    blocks,
    tokens_N,
    inner_PNSR,
    stride_t,
    num_tokens,
    per_part,
    C: tl.constexpr,
    S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    block, section, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = tl.load(blocks + block * 3).to(tl.int64)
    first = tl.load(blocks + block * 3 + 1)
    end = tl.load(blocks + block * 3 + 2)
    rank = tl.load(table + place * 3 + 2).to(tl.int32)
    # Memory that torch allocates is aligned.
    a_SRC = tl.multiple_of(tl.load(table + place * 3), 16).to(tl.pointer_type(x_TC.dtype.element_ty))
    n, r, c = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    tokens = tl.load(tokens_N + n, mask=n < end, other=0)
    total_MR = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
    if rank > 0:
        start = part * per_part
        for offset in range(0, per_part, BLOCK_C):
            at = start + offset + c
            x_MC = tl.load(
                x_TC + tokens[:, None] * stride_t + at[None, :], mask=(n < end)[:, None] & (at < C)[None, :], other=0.0
            )
            a_CR = tl.load(
                a_SRC + (section * rank + r)[None, :].to(tl.int64) * C + at[:, None],
                mask=(r < rank)[None, :] & (at < C)[:, None],
                other=0.0,
            )
            total_MR = tl.dot(x_MC, a_CR, total_MR, input_precision="ieee")
    row = (part.to(tl.int64) * num_tokens + n) * S + section
    tl.store(inner_PNSR + row[:, None] * BLOCK_R + r[None, :], total_MR, mask=(n < end)[:, None])


@triton.jit(do_not_specialize=["num_tokens", "num_parts"])
def _add_outer_products(
    y_TO,
    table,
    blocks,
    tokens_N,
    inner_PNSR,
    stride_t,
    num_tokens,
    num_parts,
    SIZE_0: tl.constexpr,
    SIZE_1: tl.constexpr,
    SIZE_2: tl.constexpr,
    S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    block, tile = tl.program_id(0), tl.program_id(1)
    place = tl.load(blocks + block * 3).to(tl.int64)
    first = tl.load(blocks + block * 3 + 1)
    end = tl.load(blocks + block * 3 + 2)
    rank = tl.load(table + place * 3 + 2).to(tl.int32)
    if rank == 0:
        return
    b_RO = tl.multiple_of(tl.load(table + place * 3 + 1), 16).to(tl.pointer_type(y_TO.dtype.element_ty))
    # The tile's section, and the outputs of that.
    tiles_0: tl.constexpr = (SIZE_0 + BLOCK_O - 1) // BLOCK_O
    tiles_1: tl.constexpr = (SIZE_1 + BLOCK_O - 1) // BLOCK_O
    section = (tile >= tiles_0).to(tl.int32) + (tile >= tiles_0 + tiles_1).to(tl.int32)
    own = tile - tl.where(section > 0, tiles_0, 0) - tl.where(section > 1, tiles_1, 0)
    start = tl.where(section > 0, SIZE_0, 0) + tl.where(section > 1, SIZE_1, 0)
    size = tl.where(section == 0, SIZE_0, tl.where(section == 1, SIZE_1, SIZE_2))
    n, r, o = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_R), own * BLOCK_O + tl.arange(0, BLOCK_O)
    inner_MR = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
    for part in range(num_parts):
        row = (n.to(tl.int64) + part * num_tokens) * S + section
        inner_MR += tl.load(inner_PNSR + row[:, None] * BLOCK_R + r[None, :], mask=(n < end)[:, None], other=0.0)
    b = tl.load(
        b_RO + r[:, None].to(tl.int64) * (SIZE_0 + SIZE_1 + SIZE_2) + (start + o)[None, :],
        mask=(r < rank)[:, None] & (o < size)[None, :],
        other=0.0,
    )
    delta_MO = tl.dot(inner_MR.to(b.dtype), b, input_precision="ieee")
    tokens = tl.load(tokens_N + n, mask=n < end, other=0)
    at = y_TO + tokens[:, None] * stride_t + (start + o)[None, :]
    mask = (n < end)[:, None] & (o < size)[None, :]
    y_MO = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, (y_MO + delta_MO).to(y_TO.dtype.element_ty), mask=mask)
