"""Sampling: temperature and filters, the draw, log-probabilities.

Top-n-sigma, temperature, top-k, top-p and min-p apply in this order, each to the renormalised result of the one before.
Tokens are ranked by logit; of equal ones the lower id ranks first. So `top_k = 1` is exactly the greedy choice.
A row with a NaN, with infinity, or without any finite logit has no token; NOT_FINITE stands in its place.

Legend: R rows, V vocabulary, N candidates, M alternatives listed, B tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..arguments import NOT_FINITE

_NUM_CANDIDATES = 256  # likeliest tokens; top-k and top-p mostly end among them
_BLOCK = 1 << 16  # weights of a draw's block
MIN_TEMPERATURE = 1e-30  # in float32; keeps 0 / temperature a zero


class SamplingTensors(NamedTuple):
    """Sampling parameters of the rows, as tensors on the device. Filters act in the order of the fields."""

    top_n_sigma_R: torch.Tensor  # float32; 0 or less: no filter
    temperature_R: torch.Tensor  # float32; 0: the likeliest token
    top_k_R: torch.Tensor  # int64; V or more: no filter
    top_p_R: torch.Tensor  # float64; 1: no filter
    min_p_R: torch.Tensor  # float32; 0: no filter
    draw_R: torch.Tensor  # int64, the seed of the row's draw
    max_top_k: int = 0  # the largest top_k below V of a row whose top_p is below 1; 0: there is none

    def select(self, rows: slice | torch.Tensor) -> SamplingTensors:
        """Parameters of some rows, given by a slice, indices or a bool mask."""
        return SamplingTensors(*(values_R[rows] for values_R in self[:-1]), max_top_k=self.max_top_k)

    def cut_behind(self, last: str) -> tuple[SamplingTensors, SamplingTensors]:
        """Return parameters with the filters up to `last` alone, and with those behind it alone."""
        place = list(_OFF).index(last) + 1
        return self._without(list(_OFF)[place:]), self._without(list(_OFF)[:place])

    def _without(self, filters: Sequence[str]) -> SamplingTensors:
        off = {f"{name}_R": torch.full_like(getattr(self, f"{name}_R"), _OFF[name]) for name in filters}
        return self._replace(**off, max_top_k=0)

    def filtered_rows(self, vocab_size: int, *, beside: Sequence[str]) -> torch.Tensor:
        """Return bool [R]: rows that draw and have a filter other than those named in `beside`."""
        filtered_R = torch.zeros_like(self.temperature_R, dtype=torch.bool)
        for name, drops in _DROPS.items():
            if name not in beside:
                filtered_R |= drops(getattr(self, f"{name}_R"), vocab_size)
        return filtered_R & (self.temperature_R > 0)


# Fields of the plan's Sample that the tensors of SamplingTensors hold, in their order, and their dtypes.
SAMPLING_DTYPES = {
    "top_n_sigma": np.float32,
    "temperature": np.float32,
    "top_k": np.int64,
    "top_p": np.float64,
    "min_p": np.float32,
    "draw": np.int64,
}
assert [f"{name}_R" for name in SAMPLING_DTYPES] == [*SamplingTensors._fields[:-1]]
# Filters, and for which of their values a vocabulary of V tokens may lose one.
_DROPS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "top_n_sigma": lambda top_n_sigma_R, V: top_n_sigma_R > 0,
    "top_k": lambda top_k_R, V: top_k_R < V,
    "top_p": lambda top_p_R, V: top_p_R < 1,
    "min_p": lambda min_p_R, V: min_p_R > 0,
}
_OFF = {"top_n_sigma": 0, "top_k": 1 << 62, "top_p": 1, "min_p": 0}  # their values that drop nothing
assert _OFF.keys() == _DROPS.keys()
assert {"temperature", *_DROPS, "draw"} == {*SAMPLING_DTYPES}


def likeliest_tokens(logits_RV: torch.Tensor) -> torch.Tensor:
    """Return each row's token of the largest logit, the first one of equals; int64 [R]."""
    largest_R, tokens_R = logits_RV.max(dim=-1)  # NaN counts as the largest
    return tokens_R.masked_fill_(largest_R - largest_R != 0, NOT_FINITE)


def sample_tokens(logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return int64 [R]: the likeliest token where the temperature is 0, elsewhere one drawn by `draw_tokens` from
    `sampling_weights`."""
    tokens_R = likeliest_tokens(logits_RV)
    drawn_n = torch.nonzero((sampling.temperature_R > 0) & (tokens_R != NOT_FINITE)).flatten()
    if not len(drawn_n):
        return tokens_R
    drawn = sampling.select(drawn_n)
    weights_nV = sampling_weights(logits_RV if len(drawn_n) == len(tokens_R) else logits_RV[drawn_n], drawn)
    return tokens_R.index_copy(0, drawn_n, draw_tokens(weights_nV, drawn.draw_R))


def sampling_weights(
    logits_RV: torch.Tensor, sampling: SamplingTensors, *, num_candidates: int = _NUM_CANDIDATES
) -> torch.Tensor:
    """Return unnormalised float32 probabilities [R, V] after the filters; the likeliest token's is 1.

    `logits_RV` are float32 with a finite maximum; temperatures are positive. `top_n_sigma` (Tang et al. 2024) keeps the
    tokens whose logit is at most that many standard deviations of the finite logits below the best; `top_p` (Holtzman
    et al. 2020) the fewest likeliest tokens that hold at least `top_p` of the mass; `min_p` (Nguyen et al. 2024) those
    of at least `min_p` times the likeliest's probability.

    Sorting a large vocabulary costs more than everything else here. So only the `num_candidates` likeliest tokens are
    sorted, and eight times as many for the rows whose filters do not end among them.
    """
    top_k_R, top_p_R = sampling.top_k_R, sampling.top_p_R
    spread = torch.nonzero(sampling.top_n_sigma_R > 0).flatten()
    if len(spread):
        near_nV = _keep_near_best(logits_RV[spread], sampling.top_n_sigma_R[spread])
        logits_RV = logits_RV.index_copy(0, spread, near_nV)
    z_RV = logits_RV - logits_RV.amax(dim=-1, keepdim=True)
    weights_RV = torch.exp(z_RV / sampling.temperature_R.clamp_min(MIN_TEMPERATURE)[:, None])
    V = logits_RV.shape[1]
    ranked = torch.nonzero((top_k_R < V) | (top_p_R < 1)).flatten()
    if len(ranked):
        weights_nV, top_k_n, top_p_n = weights_RV[ranked], top_k_R[ranked], top_p_R[ranked]
        kept_nV = _keep_likeliest(logits_RV[ranked], weights_nV, top_k_n, top_p_n, min(num_candidates, V))
        weights_RV = weights_RV.index_copy(0, ranked, kept_nV)
    # The likeliest token passes every filter and weighs 1: min-p is a threshold on the weights themselves.
    return weights_RV.masked_fill(weights_RV < sampling.min_p_R[:, None], 0.0)


def _keep_near_best(logits_RV: torch.Tensor, top_n_sigma_R: torch.Tensor) -> torch.Tensor:
    masked_RV = logits_RV == -torch.inf
    num_R1 = (~masked_RV).sum(dim=-1, keepdim=True)
    # Sums in float64: what a row keeps does not depend on the order of additions, and so not on the other rows.
    mean_R1 = logits_RV.masked_fill(masked_RV, 0.0).sum(dim=-1, keepdim=True, dtype=torch.float64) / num_R1
    off_RV = (logits_RV - mean_R1.float()).masked_fill_(masked_RV, 0.0)
    sigma_R1 = (off_RV.square_().sum(dim=-1, keepdim=True, dtype=torch.float64) / num_R1).sqrt_().float()
    below_RV = logits_RV.amax(dim=-1, keepdim=True) - logits_RV
    return logits_RV.masked_fill(below_RV > top_n_sigma_R[:, None] * sigma_R1, -torch.inf)


def _keep_likeliest(
    logits_RV: torch.Tensor, weights_RV: torch.Tensor, top_k_R: torch.Tensor, top_p_R: torch.Tensor, N: int
) -> torch.Tensor:
    V = logits_RV.shape[1]
    if N < V:
        logits_RN, ids_RN = logits_RV.topk(N, dim=-1)
        ids_RN, by_id_RN = ids_RN.sort(dim=-1)
        logits_RN, by_logit_RN = logits_RN.gather(1, by_id_RN).sort(dim=-1, descending=True, stable=True)
        ids_RN = ids_RN.gather(1, by_logit_RN)
        # topk cuts anywhere among tokens equal to the last one: a row whose filters reach them is undecided here.
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
    keep_RN |= (top_p_R == 1)[:, None] & (ranks_N < top_k_R[:, None])  # independent of the sums' rounding
    keep_RN &= weights_RN > 0  # or a row with few allowed tokens would seem undecided below
    undecided = (keep_RN.sum(dim=-1) > safe_R) | ((top_k_R > N) & (top_k_R < V))
    kept_RV = torch.zeros_like(weights_RV).scatter_(1, ids_RN, weights_RN * keep_RN)
    if N < V and len(again := torch.nonzero(undecided).flatten()):
        kept_RV[again] = _keep_likeliest(
            logits_RV[again], weights_RV[again], top_k_R[again], top_p_R[again], min(8 * N, V)
        )
    return kept_RV


def draw_tokens(weights_RV: torch.Tensor, draw_R: torch.Tensor) -> torch.Tensor:
    """Draw a token of each row with a probability proportional to its weight; int64 [R]. `draw_R` int64 seeds the
    counter-based generator of the row. A token of weight 0 is never drawn.

    A race: token t arrives after a time of rate `weights[t]`, and the first one wins (Maddison, Tarlow, Minka: A*
    sampling, NIPS 2014, section 2, as exponentials). Each token has its own random number, so rounding in other logits
    changes the winner only if two arrive within that rounding of each other. In a cumulative sum all would shift it.
    """
    R, V = weights_RV.shape
    first_R = torch.zeros(R, dtype=torch.int64, device=weights_RV.device)
    best_R = torch.zeros(R, dtype=torch.float64, device=weights_RV.device)
    # Block by block: each one's intermediate values stay in the processor's cache.
    num_columns = max(1024, _BLOCK // R)
    for start in range(0, V, num_columns):
        weights_RB = weights_RV[:, start : start + num_columns]
        tokens_B = torch.arange(start, start + weights_RB.shape[1], device=weights_RV.device)
        times_RB = uniform(draw_R[:, None], tokens_B).log_().neg_()
        speed_R, token_R = (weights_RB / times_RB).max(dim=-1)
        faster_R = speed_R > best_R
        best_R = torch.where(faster_R, speed_R, best_R)
        first_R = torch.where(faster_R, token_R + start, first_R)
    return first_R


def uniform(draw: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Return the n-th random numbers of rows, float64 in (0, 1). Tokens have those of their ids."""
    # 52 bits and a half: neither 0 nor 1, exactly.
    return _shift_right(_splitmix64(draw, n), 12).double().add_(0.5).mul_(2.0**-52)


def _splitmix64(seed: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Return the n-th outputs of the generators that start at `seed` (Steele, Lea, Flood, OOPSLA 2014), as int64."""
    z = seed + (n + 1) * _signed(0x9E3779B97F4A7C15)
    z.bitwise_xor_(_shift_right(z, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    z.bitwise_xor_(_shift_right(z, 27)).mul_(_signed(0x94D049BB133111EB))
    return z.bitwise_xor_(_shift_right(z, 31))


def _signed(word: int) -> int:
    """Reinterpret 64 bits as a signed number."""
    return word - (1 << 64) if word >> 63 else word


def _shift_right(z: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Shift right as unsigned numbers; torch's own shift repeats the sign."""
    return (z >> num_bits).bitwise_and_((1 << (64 - num_bits)) - 1)


def drawn_logprobs(logits_RV: torch.Tensor, tokens_R: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return log p of the tokens in what `sampling_weights` leaves, float64 [R]."""
    return logprobs_of_weights(sampling_weights(logits_RV, sampling), tokens_R)


def logprobs_of_weights(weights_RV: torch.Tensor, tokens_R: torch.Tensor) -> torch.Tensor:
    """Return log p of the tokens, where probabilities are proportional to the weights; float64 [R]."""
    weight_R = weights_RV.gather(1, tokens_R[:, None]).squeeze(1).double()
    return weight_R.log() - weights_RV.sum(dim=-1, dtype=torch.float64).log()


def log_sums(logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the sum of a row's exponentials, and the entropy of its softmax in nats; float32 [R]."""
    # Of p and its logarithm, without the logarithm of each: the logits are those less the log of their sum.
    largest_R1 = logits_RV.amax(dim=-1, keepdim=True)
    shifted_RV = (logits_RV - largest_R1).clamp_min_(-1e4)  # finite: times 0 is 0
    weights_RV = shifted_RV.exp()
    sum_R = weights_RV.sum(dim=-1)
    log_sum_R = sum_R.log()
    return largest_R1.squeeze(1) + log_sum_R, log_sum_R - weights_RV.mul_(shifted_RV).sum(dim=-1) / sum_R
