"""EAGLE-2's dynamic draft tree (Li et al. 2024, arXiv 2406.16858, sections 4.1 and 4.2): expand the likeliest nodes,
then keep the best of all.

Each round computes the children of a row's `top_k` frontier nodes. A node's score is the log-probability of its path.
The best `top_k` children are the next frontier. After `num_steps` rounds the best `num_tokens - 1` of all nodes stay,
with the root. A child never outscores its parent and is made after it, so the rest is a tree, parents first.

Rows of a batch may want different sizes: tensors have room for the largest, and unwanted nodes have score -inf.

Legend: B rows, K frontier nodes, V vocabulary, N nodes computed, M nodes kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

MIN_TEMPERATURE = 0.3


def draft_temperature(temperature: float) -> float:
    """Return the temperature for ranking draft tokens, at least MIN_TEMPERATURE.

    Heads are calibrated for sampling at 1. At 0 their second choices are overrated, and a tree would lose to a chain of
    as many tokens. The temperature changes the nodes that are verified, never the distribution of the output.
    """
    return max(MIN_TEMPERATURE, temperature)


class TreeShape(NamedTuple):
    """Size of a row's tree. All fields are at least 1; `num_tokens` counts the root."""

    num_steps: int
    top_k: int
    num_tokens: int


class Frontier(NamedTuple):
    """Nodes to expand. `parents_BK` are indices into the previous frontier, 0 in the first."""

    tokens_BK: torch.Tensor
    parents_BK: torch.Tensor


Expand = Callable[[Frontier], torch.Tensor]  # -> log-probabilities of each frontier node's children, [B, K, V]


@dataclass(frozen=True)
class GrownTrees:
    """Nodes of each row, the root first, then by depth. Row b has `sizes[b]`; contents beyond are arbitrary.

    `parents_BM[b, i] < i` is the index of node i's parent; the root's own is -1. Scores are cumulative
    log-probabilities.
    """

    tokens_BM: torch.Tensor
    parents_BM: torch.Tensor
    scores_BM: torch.Tensor
    sizes: list[int]


def grow_trees(
    roots_B: torch.Tensor, logprobs_BV: torch.Tensor, expand: Expand, shapes: Sequence[TreeShape]
) -> GrownTrees:
    """Grow one tree per row, of `shapes`.

    `logprobs_BV` are those of the roots' children. `expand` is called for the other `max(num_steps) - 1` rounds.
    """
    B, V = logprobs_BV.shape
    device = logprobs_BV.device
    K = min(V, max(shape.top_k for shape in shapes))
    rounds = max(shape.num_steps for shape in shapes)
    alike = len(set(shapes)) == 1
    # [B, K]: frontier places, and ranks among children, that a row does not use.
    unused_BK = None
    if not alike:
        widths_B1 = torch.tensor([[shape.top_k] for shape in shapes], device=device)
        unused_BK = torch.arange(K, device=device) >= widths_B1

    scores_BK, tokens_BK = logprobs_BV.topk(K, dim=-1)
    if unused_BK is not None:
        scores_BK = scores_BK.masked_fill(unused_BK, -torch.inf)
    parents_BK = torch.zeros_like(tokens_BK)
    # Index of each frontier node among all nodes computed; the root is node 0.
    nodes_BK = torch.arange(1, K + 1, device=device).expand(B, K)
    tokens, scores, parents = [roots_B[:, None], tokens_BK], [scores_BK.new_zeros(B, 1), scores_BK], [parents_BK]
    num_nodes = 1 + K
    for step in range(1, rounds):
        child_scores_BKK, child_tokens_BKK = expand(Frontier(tokens_BK, parents_BK)).topk(K, dim=-1)
        child_scores_BKK = child_scores_BKK.clamp(max=0.0) + scores_BK[:, :, None]
        if unused_BK is not None:
            child_scores_BKK = child_scores_BKK.masked_fill(unused_BK[:, None, :], -torch.inf)
            done_B = torch.tensor([shape.num_steps <= step for shape in shapes], device=device)
            child_scores_BKK = child_scores_BKK.masked_fill(done_B[:, None, None], -torch.inf)
        flat_scores_BN, flat_tokens_BN = child_scores_BKK.flatten(1), child_tokens_BKK.flatten(1)
        tokens.append(flat_tokens_BN)
        scores.append(flat_scores_BN)
        parents.append(nodes_BK.repeat_interleave(K, dim=1))
        if step < rounds - 1:
            # Stable sort instead of topk: of equal scores the earlier node, on any device.
            order_BK = flat_scores_BN.sort(dim=-1, descending=True, stable=True).indices[:, :K]
            scores_BK, tokens_BK = flat_scores_BN.gather(1, order_BK), flat_tokens_BN.gather(1, order_BK)
            if unused_BK is not None:
                scores_BK = scores_BK.masked_fill(unused_BK, -torch.inf)
            parents_BK, nodes_BK = order_BK // K, order_BK + num_nodes
            num_nodes += flat_scores_BN.shape[1]
    return _keep_best(tokens, scores, parents, shapes)


def _keep_best(
    tokens: list[torch.Tensor], scores: list[torch.Tensor], parents: list[torch.Tensor], shapes: Sequence[TreeShape]
) -> GrownTrees:
    tokens_BN, scores_BN = torch.cat(tokens, dim=1), torch.cat(scores, dim=1)
    parents_BN = torch.cat((tokens[0].new_full(tokens[0].shape, -1), *parents), dim=1)
    B, N = tokens_BN.shape
    M = min(N, max(shape.num_tokens for shape in shapes))
    # The root's score is 0 and no other's is more; of equal scores the earlier node stays, so parents before children.
    ranked_BM = scores_BN.sort(dim=-1, descending=True, stable=True).indices[:, :M]
    num_candidates_B = (scores_BN > -torch.inf).sum(dim=1).tolist()
    sizes = [min(shape.num_tokens, M, int(n)) for shape, n in zip(shapes, num_candidates_B, strict=True)]
    if len(set(sizes)) > 1 or sizes[0] != M:
        # A row's kept nodes first, the others behind them.
        surplus_BM = torch.arange(M, device=ranked_BM.device) >= torch.tensor(sizes, device=ranked_BM.device)[:, None]
        ranked_BM = ranked_BM + surplus_BM * N
    kept_BM = ranked_BM.sort(dim=-1).values % N
    # Map indices among all nodes to indices among the kept. A kept node's parent is kept.
    place_BN = torch.zeros_like(tokens_BN).scatter_(1, kept_BM, torch.arange(M, device=kept_BM.device).expand(B, M))
    parents_BM = parents_BN.gather(1, kept_BM)
    parents_BM = torch.where(parents_BM < 0, parents_BM, place_BN.gather(1, parents_BM.clamp_min(0)))
    return GrownTrees(tokens_BN.gather(1, kept_BM), parents_BM, scores_BN.gather(1, kept_BM), sizes)
