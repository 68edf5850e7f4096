"""Filters that few requests use, for their rows alone and in plain torch on every device: typical_p, XTC, and a
temperature that depends on the entropy.

They act beside those of `sampling`, in this order: top-n-sigma, temperature, top-k, typical, top-p, min-p, XTC, each on
the renormalised result of the one before. A temperature that moves with the entropy is applied at the end in place of
its own place, as llama.cpp does: the entropy is that of what the filters leave at temperature 1.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch

from .sampling import MIN_TEMPERATURE, SamplingTensors, draw_tokens, sampling_weights, uniform


class FilterTensors(NamedTuple):
    """Parameters of the rows, as tensors on the device."""

    typical_p_R: torch.Tensor  # float64; 1: no filter
    xtc_probability_R: torch.Tensor  # float64; 0: no filter
    xtc_threshold_R: torch.Tensor  # float64
    dynatemp_range_R: torch.Tensor  # float64; 0: the row's temperature as it is
    dynatemp_exponent_R: torch.Tensor  # float64


# Fields of the plan's Sample that the tensors hold, in their order, and their dtypes.
FILTER_DTYPES = {name.removesuffix("_R"): np.float64 for name in FilterTensors._fields}


class _Draw(Protocol):
    @property
    def typical_p(self) -> float: ...
    @property
    def xtc_probability(self) -> float: ...
    @property
    def dynatemp_range(self) -> float: ...


def act_on(sample: _Draw) -> bool:
    """Return True if a row with these parameters, drawn above temperature 0, may need them."""
    return sample.typical_p < 1 or sample.xtc_probability > 0 or sample.dynatemp_range > 0


def sample_tokens(logits_RV: torch.Tensor, sampling: SamplingTensors, filters: FilterTensors) -> torch.Tensor:
    """Return a token for each row, int64 [R], drawn by `draw_tokens` from what all filters leave.

    Temperatures are positive. A row without a finite largest logit has any token.
    """
    return draw_tokens(filtered_weights(logits_RV, sampling, filters), sampling.draw_R)


def filtered_weights(logits_RV: torch.Tensor, sampling: SamplingTensors, filters: FilterTensors) -> torch.Tensor:
    """Return unnormalised float32 probabilities [R, V] after all filters. `logits_RV` are float32."""
    is_dynamic_R, asked_R = filters.dynatemp_range_R > 0, sampling.temperature_R
    sampling = sampling._replace(temperature_R=sampling.temperature_R.masked_fill(is_dynamic_R, 1.0))
    first, last = sampling.cut_behind("top_k")
    weights_RV = sampling_weights(logits_RV, first)
    left_RV = logits_RV.masked_fill(_keep_typical(weights_RV, filters.typical_p_R) == 0, -torch.inf)
    weights_RV = sampling_weights(left_RV, last)
    weights_RV = _exclude_top_choices(left_RV, weights_RV, sampling.draw_R, filters)
    left_RV = left_RV.masked_fill(weights_RV == 0, -torch.inf)
    temperature_R = _temperature_by_entropy(weights_RV, asked_R, filters).clamp_min(MIN_TEMPERATURE)
    dynamic_RV = torch.exp((left_RV - left_RV.amax(dim=-1, keepdim=True)) / temperature_R[:, None])
    return torch.where(is_dynamic_R[:, None], dynamic_RV, weights_RV)


def _keep_typical(weights_RV: torch.Tensor, typical_p_R: torch.Tensor) -> torch.Tensor:
    """Keep the fewest tokens that hold `typical_p` of the mass, those first whose -log p is nearest the entropy.

    Meister et al., Locally Typical Sampling, TACL 2023. Of two as near the lower id is first.
    """
    p_RV = _normalised(weights_RV)
    entropy_R1 = torch.special.entr(p_RV).sum(dim=-1, keepdim=True)
    off_RV = (-p_RV.log() - entropy_R1).abs()  # infinite at p = 0
    ids_RV = off_RV.sort(dim=-1, stable=True).indices
    ranked_RV = p_RV.gather(1, ids_RV)
    is_near_RV = ranked_RV.cumsum(dim=-1) - ranked_RV < typical_p_R[:, None]
    is_kept_RV = torch.zeros_like(is_near_RV).scatter_(1, ids_RV, is_near_RV) | (typical_p_R == 1)[:, None]
    return weights_RV.masked_fill(~is_kept_RV, 0.0)


def _exclude_top_choices(
    logits_RV: torch.Tensor, weights_RV: torch.Tensor, draw_R: torch.Tensor, filters: FilterTensors
) -> torch.Tensor:
    """Drop, in a share `xtc_probability` of the draws, all tokens of at least `xtc_threshold` but the last of them.

    XTC, as text-generation-webui and llama.cpp have it. Whether it acts is drawn from the row's own random bits.
    """
    threshold_R = filters.xtc_threshold_R
    is_above_RV = (_normalised(weights_RV) >= threshold_R[:, None]) & (weights_RV > 0)
    ids_V = torch.arange(weights_RV.shape[1], device=weights_RV.device)
    least_R1 = logits_RV.masked_fill(~is_above_RV, torch.inf).amin(dim=-1, keepdim=True)
    last_R1 = torch.where(is_above_RV & (logits_RV == least_R1), ids_V, -1).amax(dim=-1, keepdim=True)
    acts_R = (uniform(draw_R, torch.full_like(draw_R, -1)) < filters.xtc_probability_R) & (threshold_R <= 0.5)
    return weights_RV.masked_fill(acts_R[:, None] & is_above_RV & (ids_V != last_R1), 0.0)


def _temperature_by_entropy(
    weights_RV: torch.Tensor, temperature_R: torch.Tensor, filters: FilterTensors
) -> torch.Tensor:
    """Return float32 [R] between `temperature - dynatemp_range`, at least 0, where one token has all the mass, and
    `temperature + dynatemp_range` where all that are left are as likely."""
    p_RV = _normalised(weights_RV)
    most_R = (p_RV > 0).sum(dim=-1).clamp_min(2).double().log()
    share_R = (torch.special.entr(p_RV).sum(dim=-1) / most_R).clamp(0.0, 1.0) ** filters.dynatemp_exponent_R
    lowest_R = (temperature_R - filters.dynatemp_range_R).clamp_min(0.0)
    return (lowest_R + (temperature_R + filters.dynatemp_range_R - lowest_R) * share_R).float()


def _normalised(weights_RV: torch.Tensor) -> torch.Tensor:
    p_RV = weights_RV.double()
    return p_RV / p_RV.sum(dim=-1, keepdim=True)
