"""Mixture-of-experts kernels: the products of all experts in one launch, and the weighted sum of their outputs.

Legend: T tokens, N experts, K experts of a token, P = T * K pairs of the two, grouped by expert, O outputs, C inputs,
E hidden size; M, O, C blocks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch_configs
from .launching import launch

MEAN_ROWS = (1, 17, 129)  # rows of an expert on average, one number for each of `launch_configs.expert_tile`'s tiles


def grouped_matmul(
    x: torch.Tensor,
    weight_NOC: torch.Tensor,
    ends_N: torch.Tensor,
    rows_P: torch.Tensor | None = None,
    *,
    fixed: bool = False,
) -> torch.Tensor:
    """Return [P, O]: row p is the product of expert n's weight and `x[rows_P[p]]`, or `x[p]` when `rows_P` is None.

    Expert n has the rows [ends_N[n - 1], ends_N[n]). `fixed` uses tiles of one shape for any P, so that a row's bits do
    not depend on the other rows.

    Nothing is read back from the device, so the grid has a program for each tile that there can be: the tiles of P rows
    and one more for each expert, whose last tile may be short, but no more than P. A program finds its expert by
    counting those whose tiles end before it.
    """
    N, O, C = weight_NOC.shape  # noqa: E741
    P = x.shape[0] if rows_P is None else rows_P.shape[0]
    out_PO = torch.empty((P, O), dtype=x.dtype, device=x.device)
    if P == 0:
        return out_PO
    assert x.stride(-1) == 1
    assert weight_NOC.is_contiguous()
    tile = launch_configs.expert_tile(
        x.device, launch_configs.DETERMINISTIC_MEAN_ROWS if fixed else -(-P // N), x.dtype
    )
    tiles = min(P, triton.cdiv(P, tile.rows) + N)
    launch(
        _grouped_matmul,
        (triton.cdiv(O, tile.outputs), tiles),
        x,
        weight_NOC,
        ends_N,
        rows_P,
        out_PO,
        x.stride(0),
        N=N,
        O=O,
        C=C,
        BLOCK_N=triton.next_power_of_2(N),
        BLOCK_M=tile.rows,
        BLOCK_O=tile.outputs,
        BLOCK_C=tile.inputs,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out_PO


def combine_experts(y_PE: torch.Tensor, order_P: torch.Tensor, weights_TK: torch.Tensor) -> torch.Tensor:
    """Return [T, E], the weighted sum of each token's rows in the order of its experts. Row p is of pair
    `order_P[p]`."""
    T, K = weights_TK.shape
    E = y_PE.shape[1]
    out_TE = torch.empty((T, E), dtype=y_PE.dtype, device=y_PE.device)
    if T == 0:
        return out_TE
    place_P = torch.empty_like(order_P)
    place_P[order_P] = torch.arange(T * K, device=order_P.device)
    block = min(1024, triton.next_power_of_2(E))
    launch(
        _combine_experts,
        (T, triton.cdiv(E, block)),
        y_PE,
        place_P,
        weights_TK,
        out_TE,
        K=K,
        E=E,
        BLOCK=block,
        num_warps=4,
    )
    return out_TE


@triton.jit
def _grouped_matmul(
    x_TC,
    weight_NOC,
    ends_N,
    rows_P,
    out_PO,
    stride_t,
    N: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    n = tl.arange(0, BLOCK_N)
    end_N = tl.load(ends_N + n, mask=n < N, other=0)
    start_N = tl.load(ends_N + n - 1, mask=(n > 0) & (n < N), other=0)
    tiles_N = tl.where(n < N, (end_N - start_N + BLOCK_M - 1) // BLOCK_M, 0)
    last_N = tl.cumsum(tiles_N, 0)
    tile = tl.program_id(1)
    expert = tl.sum((last_N <= tile).to(tl.int32))  # the expert of this tile; BLOCK_N: the program has no tile
    if expert >= N:
        return
    mine = n == expert
    start = tl.sum(tl.where(mine, start_N, 0))
    end = tl.sum(tl.where(mine, end_N, 0))
    first = start + (tile - tl.sum(tl.where(mine, last_N - tiles_N, 0))) * BLOCK_M

    p_M = first + tl.arange(0, BLOCK_M)
    valid_M = p_M < end
    row_M = p_M.to(tl.int64)
    if rows_P is not None:
        row_M = tl.load(rows_P + p_M, mask=valid_M, other=0).to(tl.int64)
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    weights = weight_NOC + expert.to(tl.int64) * O * C + o[None, :] * C
    acc_MO = tl.zeros((BLOCK_M, BLOCK_O), dtype=tl.float32)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        x_MC = tl.load(
            x_TC + row_M[:, None] * stride_t + c[None, :], mask=valid_M[:, None] & (c < C)[None, :], other=0.0
        )
        weight_CO = tl.load(weights + c[:, None], mask=(c < C)[:, None] & (o < O)[None, :], other=0.0)
        acc_MO = tl.dot(x_MC, weight_CO, acc_MO, input_precision="ieee")
    at_MO = p_M.to(tl.int64)[:, None] * O + o[None, :]
    tl.store(out_PO + at_MO, acc_MO.to(out_PO.dtype.element_ty), mask=valid_M[:, None] & (o < O)[None, :])


@triton.jit
def _combine_experts(y_PE, place_P, weights_TK, out_TE, K: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = e < E
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(K):
        place = tl.load(place_P + token * K + k)
        weight = tl.load(weights_TK + token * K + k)
        acc += weight * tl.load(y_PE + place * E + e, mask=valid, other=0.0).to(tl.float32)
    tl.store(out_TE + token * E + e, acc.to(out_TE.dtype.element_ty), mask=valid)
