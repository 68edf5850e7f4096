"""Mixture-of-experts kernels: the products of all experts in one launch, and the weighted sum of their outputs.

Legend: T tokens, N experts, K experts of a token, P = T * K pairs of the two, grouped by expert, O outputs, C inputs,
E hidden size; M, O, C blocks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..reference.experts import Routing
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


def route(scores_TN: torch.Tensor, num_chosen: int, normalised: bool) -> Routing:
    """Return the experts of each token, as `reference.experts.route` does, by two kernels: softmax and choice, and the
    sort. Of equal scores the first ones are chosen."""
    T, N = scores_TN.shape
    device = scores_TN.device
    weights_TK = torch.empty((T, num_chosen), dtype=torch.float32, device=device)
    experts_P = torch.empty(T * num_chosen, dtype=torch.int32, device=device)
    tokens_P, place_P = (torch.empty(T * num_chosen, dtype=torch.int64, device=device) for _ in range(2))
    ends_N = torch.empty(N, dtype=torch.int64, device=device)
    if T == 0:
        return Routing(weights_TK, tokens_P, place_P, ends_N.zero_())
    block = triton.next_power_of_2(N)
    launch(
        _choose_experts,
        (T,),
        scores_TN,
        weights_TK,
        experts_P,
        scores_TN.stride(0),
        N=N,
        K=num_chosen,
        BLOCK_K=triton.next_power_of_2(num_chosen),
        NORMALISED=normalised,
        BLOCK=block,
        num_warps=1 if block <= 256 else 4,
    )
    launch(
        _sort_pairs, (N,), experts_P, tokens_P, place_P, ends_N, T * num_chosen, K=num_chosen, BLOCK=1024, num_warps=4
    )
    return Routing(weights_TK, tokens_P, place_P, ends_N)


def combine_experts(y_PE: torch.Tensor, place_P: torch.Tensor, weights_TK: torch.Tensor) -> torch.Tensor:
    """Return [T, E], the weighted sum of each token's rows in the order of its experts. The row of pair p is
    `place_P[p]`."""
    T, K = weights_TK.shape
    E = y_PE.shape[1]
    out_TE = torch.empty((T, E), dtype=y_PE.dtype, device=y_PE.device)
    if T == 0:
        return out_TE
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
def _choose_experts(
    scores_TN,
    weights_TK,
    experts_P,
    stride_t,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORMALISED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    n, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    score_N = tl.load(scores_TN + token * stride_t + n, mask=n < N, other=float("-inf")).to(tl.float32)
    share_N = tl.exp(score_N - tl.max(score_N, 0))
    share_N = share_N / tl.sum(share_N, 0)
    left_N = tl.where(n < N, share_N, -1.0)
    weight_K = tl.zeros([BLOCK_K], dtype=tl.float32)
    expert_K = tl.zeros([BLOCK_K], dtype=tl.int32)
    for index in tl.static_range(K):
        largest, expert = tl.max(left_N, 0), tl.argmax(left_N, 0)
        weight_K = tl.where(k == index, largest, weight_K)
        expert_K = tl.where(k == index, expert, expert_K)
        left_N = tl.where(n == expert, -1.0, left_N)
    if NORMALISED:
        weight_K = weight_K / tl.sum(weight_K, 0)
    tl.store(weights_TK + token * K + k, weight_K, mask=k < K)
    tl.store(experts_P + token * K + k, expert_K, mask=k < K)


@triton.jit(do_not_specialize=["num_pairs"])
def _sort_pairs(experts_P, tokens_P, place_P, ends_N, num_pairs, K: tl.constexpr, BLOCK: tl.constexpr):
    """Place the pairs of one expert, in their order, behind those of the experts before it."""
    expert = tl.program_id(0)
    place = 0
    for begin in range(0, num_pairs, BLOCK):
        p_B = begin + tl.arange(0, BLOCK)
        place += tl.sum((tl.load(experts_P + p_B, mask=p_B < num_pairs, other=2**30) < expert).to(tl.int32), 0)
    for begin in range(0, num_pairs, BLOCK):
        p_B = begin + tl.arange(0, BLOCK)
        mine_B = tl.load(experts_P + p_B, mask=p_B < num_pairs, other=-1) == expert
        place_B = place + tl.cumsum(mine_B.to(tl.int32), 0) - 1
        tl.store(place_P + p_B, place_B.to(tl.int64), mask=mine_B)
        tl.store(tokens_P + place_B, (p_B // K).to(tl.int64), mask=mine_B)
        place += tl.sum(mine_B.to(tl.int32), 0)
    tl.store(ends_N + expert, place.to(tl.int64))


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
