"""From logits to a token: temperature and filters, the draw, log-probabilities.

Filters apply one after the other, each to the renormalised rest of the one before: temperature, top-k, top-p, min-p.
Tokens are ranked by logit; of equal ones the lower id is the likelier. So `top_k = 1` is exactly the greedy choice.

Legend: R rows, V vocabulary, N candidates, M alternatives listed.
"""

from __future__ import annotations

import torch

_NUM_CANDIDATES = 256  # the likeliest tokens, among which top-k and top-p mostly end
_MIN_TEMPERATURE = 1e-30  # in float32; keeps 0 / temperature a zero


def sampling_weights(
    logits_RV: torch.Tensor,
    *,
    temperature_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    min_p_R: torch.Tensor,
    num_candidates: int = _NUM_CANDIDATES,
) -> torch.Tensor:
    """Unnormalised float32 probabilities [R, V] after the filters; the likeliest token's is 1.

    `logits_RV` are float32 with a finite maximum; temperatures are positive. Neutral values: `top_k >= V`,
    `top_p = 1` (Holtzman et al. 2020: the fewest likeliest tokens that hold at least `top_p`), `min_p = 0`
    (Nguyen et al. 2024: at least `min_p` times the likeliest's probability).

    Sorting a large vocabulary costs more than everything else here, so only the `num_candidates` likeliest are sorted,
    and eight times as many for the rows whose filters do not end among them.
    """
    z_RV = logits_RV - logits_RV.amax(dim=-1, keepdim=True)
    weights_RV = torch.exp(z_RV / temperature_R.clamp_min(_MIN_TEMPERATURE)[:, None])
    V = logits_RV.shape[1]
    ranked = torch.nonzero((top_k_R < V) | (top_p_R < 1)).flatten()
    if len(ranked):
        weights_nV, top_k_n, top_p_n = weights_RV[ranked], top_k_R[ranked], top_p_R[ranked]
        kept_nV = _keep_likeliest(logits_RV[ranked], weights_nV, top_k_n, top_p_n, min(num_candidates, V))
        weights_RV = weights_RV.index_copy(0, ranked, kept_nV)
    # The likeliest token passes every filter and weighs 1: min-p is a threshold on the weights themselves.
    return weights_RV.masked_fill(weights_RV < min_p_R[:, None], 0.0)


def _keep_likeliest(
    logits_RV: torch.Tensor, weights_RV: torch.Tensor, top_k_R: torch.Tensor, top_p_R: torch.Tensor, N: int
) -> torch.Tensor:
    V = logits_RV.shape[1]
    if N < V:
        logits_RN, ids_RN = logits_RV.topk(N, dim=-1)
        ids_RN, by_id_RN = ids_RN.sort(dim=-1)
        logits_RN, by_logit_RN = logits_RN.gather(1, by_id_RN).sort(dim=-1, descending=True, stable=True)
        ids_RN = ids_RN.gather(1, by_logit_RN)
        # topk cuts anywhere among tokens equal to the last one: a row whose filters reach them is not decided here.
        safe_R = (logits_RN > logits_RN[:, -1:]).sum(dim=-1)
    else:
        logits_RN, ids_RN = logits_RV.sort(dim=-1, descending=True, stable=True)
        safe_R = torch.full_like(top_k_R, V)
    weights_RN = weights_RV.gather(1, ids_RN)
    sums_RN = weights_RN.cumsum(dim=-1, dtype=torch.float64)
    # Mass left by top-k: its k likeliest, or, when k lies beyond the candidates, all (exact only without top-k).
    total_R = torch.where(
        top_k_R <= N,
        sums_RN.gather(1, (top_k_R.clamp(max=N) - 1)[:, None]).squeeze(1),
        weights_RV.sum(dim=-1, dtype=torch.float64),
    )
    ranks_N = torch.arange(N, device=logits_RV.device)
    # A token stays while the mass before it is short of top_p.
    keep_RN = (ranks_N < top_k_R[:, None]) & (sums_RN - weights_RN < (top_p_R * total_R)[:, None])
    keep_RN |= (top_p_R == 1)[:, None] & (ranks_N < top_k_R[:, None])  # whatever the sums' rounding
    keep_RN &= weights_RN > 0  # or a row with few allowed tokens would seem undecided below
    undecided = (keep_RN.sum(dim=-1) > safe_R) | ((top_k_R > N) & (top_k_R < V))
    kept_RV = torch.zeros_like(weights_RV).scatter_(1, ids_RN, weights_RN * keep_RN)
    if N < V and len(again := torch.nonzero(undecided).flatten()):
        kept_RV[again] = _keep_likeliest(
            logits_RV[again], weights_RV[again], top_k_R[again], top_p_R[again], min(8 * N, V)
        )
    return kept_RV


def draw_tokens(weights_RV: torch.Tensor, draw_R: torch.Tensor) -> torch.Tensor:
    """The first token, in vocabulary order, whose cumulative share of the weights exceeds `draw_R` in [0, 1).

    int64 [R]. Sums are float64. A token of weight 0 is never drawn.
    """
    sums_RV = weights_RV.cumsum(dim=-1, dtype=torch.float64)
    tokens_R = torch.searchsorted(sums_RV, draw_R.double()[:, None] * sums_RV[:, -1:], right=True).squeeze(1)
    # A sum that is NaN exceeds nothing. Such a row gets a meaningless token, as from argmax, but one that exists.
    return tokens_R.clamp(max=weights_RV.shape[1] - 1)


def token_logprobs(
    logits_RV: torch.Tensor, tokens_R: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log p(token) [R], the `num_top` best log-probabilities [R, M] and their ids, best first. Natural log, float32."""
    logits_RV = logits_RV.float()
    normaliser_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
    logprob_R = (logits_RV.gather(1, tokens_R[:, None]) - normaliser_R1).squeeze(1)
    top_RM, ids_RM = logits_RV.topk(min(num_top, logits_RV.shape[1]), dim=-1)
    return logprob_R, top_RM - normaliser_R1, ids_RM
