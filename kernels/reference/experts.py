"""Mixture-of-experts ops: routing, one product per expert, and the weighted sum.

Legend: T tokens, N experts, K experts of a token, P = T * K pairs of a token and one of its experts, O outputs,
C inputs, E hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..arguments import GroupRouting
from .fixed_rows import FIXED_ROWS, in_fixed_rows


def choose_experts(scores_TN: torch.Tensor, num_chosen: int, normalised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's weights, float32 [T, K], and experts, int64 [T, K]: the top K of the scores' softmax.

    `normalised` divides the weights by their sum, which gives the softmax of the chosen scores alone.
    """
    shares_TN = scores_TN.softmax(-1, dtype=torch.float32)
    weights_TK, experts_TK = shares_TN.topk(num_chosen, dim=-1)
    if normalised:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return weights_TK, experts_TK


class Routing(NamedTuple):
    """The experts of a step's tokens. Pair t * K + k is token t with its k-th expert; place p is in the order of
    experts."""

    weights_TK: torch.Tensor  # float32
    tokens_P: torch.Tensor  # int64, the token of each place
    place_P: torch.Tensor  # int64, the place of each pair
    ends_N: torch.Tensor  # int64, where each expert's places end


def route(scores_TN: torch.Tensor, num_chosen: int, normalised: bool) -> Routing:
    """Choose each token's experts by `choose_experts`, and sort the pairs by `group_by_expert`."""
    return _sorted_by_expert(*choose_experts(scores_TN, num_chosen, normalised), scores_TN.shape[1])


def route_by_groups(scores_TN: torch.Tensor, bias_N: torch.Tensor | None, args: GroupRouting) -> Routing:
    """Choose each token's experts by `choose_in_groups`, and sort the pairs by `group_by_expert`."""
    return _sorted_by_expert(*choose_in_groups(scores_TN, bias_N, args), scores_TN.shape[1])


def deterministic_route_by_groups(scores_TN: torch.Tensor, bias_N: torch.Tensor | None, args: GroupRouting) -> Routing:
    """Compute `route_by_groups` so that a row's bits do not depend on the number of rows."""
    T, N = scores_TN.shape
    blocks = F.pad(scores_TN, (0, 0, 0, -T % FIXED_ROWS)).split(FIXED_ROWS)
    weights, experts = zip(*(choose_in_groups(block, bias_N, args) for block in blocks), strict=True)
    return _sorted_by_expert(torch.cat(weights)[:T], torch.cat(experts)[:T], N)


def choose_in_groups(
    scores_TN: torch.Tensor, bias_N: torch.Tensor | None, args: GroupRouting
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's weights, float32 [T, K], and experts, int64 [T, K]: the best of its best groups."""
    scores_TN = scores_TN.float()
    affinity_TN = scores_TN.sigmoid() if args.sigmoid else scores_TN.softmax(-1)
    choice_TN = affinity_TN if bias_N is None else affinity_TN + bias_N
    if args.num_groups > 1:
        groups_TGN = choice_TN.unflatten(1, (args.num_groups, -1))
        best_TG = groups_TGN.topk(2, dim=-1)[0].sum(-1) if args.sigmoid else groups_TGN.amax(-1)
        kept_TG = torch.zeros_like(best_TG, dtype=torch.bool)
        kept_TG.scatter_(1, best_TG.topk(args.kept_groups, dim=-1)[1], True)
        choice_TN = groups_TGN.masked_fill(~kept_TG[:, :, None], float("-inf")).flatten(1)
    experts_TK = choice_TN.topk(args.num_chosen, dim=-1)[1]
    weights_TK = affinity_TN.gather(1, experts_TK)
    if args.normalised:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
    return weights_TK * args.scale, experts_TK


def _sorted_by_expert(weights_TK: torch.Tensor, experts_TK: torch.Tensor, num_experts: int) -> Routing:
    order_P, ends_N = group_by_expert(experts_TK, num_experts)
    place_P = torch.empty_like(order_P).index_copy_(0, order_P, torch.arange(len(order_P), device=order_P.device))
    return Routing(weights_TK, order_P // experts_TK.shape[1], place_P, ends_N)


def group_by_expert(experts_TK: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pairs sorted by expert, int64 [P], and where each expert's pairs end, int64 [N].

    Pair p = t * K + k is token t with its k-th expert. The sort is stable; nothing is read back from the device.
    """
    experts_P = experts_TK.flatten()
    order_P = experts_P.argsort(stable=True)
    counts_N = torch.zeros(num_experts, dtype=torch.int64, device=experts_P.device)
    return order_P, counts_N.index_add_(0, experts_P, torch.ones_like(experts_P)).cumsum(0)


def expert_ranges(ends_N: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield (expert, start, end) of each expert that has rows, in order. Reads `ends_N` back from its device."""
    start = 0
    for expert, end in enumerate(ends_N.tolist()):
        if end > start:
            yield expert, start, end
        start = end


def grouped_matmul(
    x: torch.Tensor, weight_NOC: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None = None
) -> torch.Tensor:
    """Return [P, O]: row p is `weight_NOC[n]` times `x[rows_P[p]]`, or times `x[p]` when `rows_P` is None.

    Expert n has the rows [ends_N[n - 1], ends_N[n]); the last end is P.
    """
    x_PC = x if rows_P is None else x[rows_P]
    out_PO = x.new_empty((len(x_PC), weight_NOC.shape[1]))
    for expert, start, end in expert_ranges(ends_N):
        torch.mm(x_PC[start:end], weight_NOC[expert].t(), out=out_PO[start:end])
    return out_PO


def deterministic_grouped_matmul(
    x: torch.Tensor, weight_NOC: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute `grouped_matmul` with products of FIXED_ROWS rows: a row's bits do not depend on its expert's others."""
    x_PC = x if rows_P is None else x[rows_P]
    out_PO = x.new_empty((len(x_PC), weight_NOC.shape[1]))
    for expert, start, end in expert_ranges(ends_N):
        weight_CO = weight_NOC[expert].t()
        out_PO[start:end] = in_fixed_rows(partial(torch.mm, mat2=weight_CO), x_PC[start:end], FIXED_ROWS)
    return out_PO


def combine_experts(y_PE: torch.Tensor, place_P: torch.Tensor, weights_TK: torch.Tensor) -> torch.Tensor:
    """Return [T, E], the weighted sum of each token's rows; that of pair p is row `place_P[p]` of `y_PE`.

    Sums are float32 and in the order of the token's experts, so a token's bits do not depend on the other tokens.
    """
    T, K = weights_TK.shape
    y_TKE = y_PE.index_select(0, place_P).view(T, K, y_PE.shape[1])
    sum_TE = y_TKE[:, 0] * weights_TK[:, 0, None]
    for k in range(1, K):
        sum_TE += y_TKE[:, k] * weights_TK[:, k, None]
    return sum_TE.to(y_PE.dtype)
