"""Compiled loops that draw tokens without top-k and top-p filters, and that walk along draft trees.

`reference.sampling` and `reference.trees` define the results.

Legend: R rows, V vocabulary, O outputs of the step's rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..arguments import NOT_FINITE, SamplingTensors
from .compiled import Floats, Ints, compiled, exp
from .thread_pool import share_rows

_LEAST = np.float32(-87)  # logarithm of a weight; smaller ones, -inf included, count as 0
_MIN_TEMPERATURE = np.float32(1e-30)
_MARGIN = 1 + 1e-9  # more than the rounding of a speed


@compiled("float64(int64, int64)")
def _uniform(seed: int, token: int) -> float:
    """Return the token's random number in the race of `draw_tokens`: the token-th output of the splitmix64 that starts
    at `seed`, scaled to (0, 1)."""
    z = np.uint64(seed) + np.uint64(token + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (np.float64(z >> np.uint64(12)) + 0.5) * 2.0**-52


@compiled("void(float32[:,::1], float32[::1], float32[::1], int64[::1], int64[::1])")
def sample_rows(logits_RV: Floats, temperature_R: Floats, min_p_R: Floats, draw_R: Ints, tokens_R: Ints) -> None:
    """Write each row's token: the likeliest at temperature 0, else the first to arrive of those that `min_p` leaves."""
    for r in range(len(logits_RV)):
        logits_V = logits_RV[r]
        likeliest = np.argmax(logits_V)
        tokens_R[r] = likeliest if np.isfinite(logits_V[likeliest]) else NOT_FINITE  # a NaN counts as the largest
        if temperature_R[r] <= 0 or tokens_R[r] == NOT_FINITE:
            continue
        temperature, fastest = max(temperature_R[r], _MIN_TEMPERATURE), 0.0
        for token in range(len(logits_V)):
            logarithm = (logits_V[token] - logits_V[likeliest]) / temperature
            if logarithm < _LEAST:
                continue
            weight = exp(logarithm)
            if weight < min_p_R[r]:
                continue
            uniform = _uniform(draw_R[r], token)
            # A token of weight 1 arrives after -log(u) >= 1 - u: most are seen to be slower without a logarithm.
            if (1.0 - uniform) * fastest > np.float64(weight) * _MARGIN:
                continue
            speed = np.float64(weight) / -np.log(uniform)
            if speed > fastest:
                fastest, tokens_R[r] = speed, token


def sample_unfiltered(logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return a token for each row, int64 [R]. The rows' top-k and top-p filter nothing, or their temperature is 0."""
    tokens_R = torch.empty(len(logits_RV), dtype=torch.int64)
    columns = sampling.temperature_R, sampling.min_p_R, sampling.draw_R, tokens_R
    arrays = [tensor.numpy() for tensor in (logits_RV.contiguous(), *columns)]
    share_rows(logits_RV, lambda rows: sample_rows(*(array[rows] for array in arrays)))
    return tokens_R


@compiled("void(int64[::1], int64[::1], int64[::1], boolean[::1])")
def walk_trees(sampled_O: Ints, guessed_O: Ints, parents_O: Ints, on_way_O: NDArray[np.bool_]) -> None:
    """Set `on_way_O` where an output lies on the path that the samples confirm. Parents come before their children."""
    for output in range(len(sampled_O)):
        parent = parents_O[output]
        root = parent == output
        on_way_O[output] = root or (on_way_O[parent] and sampled_O[parent] == guessed_O[output])
