"""Compiled loops over a row's logits: the likeliest token, the draw of one, and the sum of their exponentials.

`reference.sampling` defines what they compute. A row's results do not depend on the other rows.

Legend: R rows, V vocabulary, B a block of it.
"""

from __future__ import annotations

import numpy as np
import torch

from ..arguments import NOT_FINITE
from ..reference.sampling import SamplingTensors
from .compiled import Floats, Ints, compiled, exp
from .thread_pool import share_rows

_LEAST = np.float32(-87)  # logarithm of a weight; smaller ones, -inf included, count as 0
_MIN_TEMPERATURE = np.float32(1e-30)
_MARGIN = 1 + 1e-9  # more than the rounding of a speed
_BLOCK = 256  # numbers of a row that a loop goes through at once
_ROUNDING = np.float32(1 + 1e-5)  # more than that of a float32 weight times an integer


@compiled("uint64(int64, int64)")
def _random_bits(seed: int, token: int) -> int:
    """Return the token-th output of the splitmix64 that starts at `seed`."""
    z = np.uint64(seed) + np.uint64(token + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))  # type: ignore[no-any-return]


@compiled("float64(int64, int64)")
def _uniform(seed: int, token: int) -> float:
    """Return the token's random number in the race of `draw_tokens`, in (0, 1)."""
    return (np.float64(_random_bits(seed, token) >> np.uint64(12)) + 0.5) * 2.0**-52


@compiled("int32(int32)")
def _order(bits: np.int32) -> np.int32:
    """Return an integer that orders float32s, given by their bits: NaN is the largest, zeros are equal."""
    magnitude = np.int32(bits & np.int32(0x7FFFFFFF))
    if magnitude > np.int32(0x7F800000):
        return np.int32(0x7FFFFFFF)
    return magnitude if bits >= 0 else np.int32(-magnitude)


@compiled("int64(float32[::1])")
def likeliest(logits_V: Floats) -> int:
    """Return the first index of the largest number, NaN before all. Bits are compared, because loops over integers
    are vectorised and those over floats are not."""
    most, at = np.int32(-0x7FFFFFFF), 0
    for start in range(0, len(logits_V), _BLOCK):
        bits_B = logits_V[start : start + _BLOCK].view(np.int32)
        largest = np.int32(-0x7FFFFFFF)
        for b in range(len(bits_B)):
            largest = max(largest, _order(bits_B[b]))
        if largest > most:
            most, at = largest, start
    bits_B = logits_V[at : at + _BLOCK].view(np.int32)
    for b in range(len(bits_B)):
        if _order(bits_B[b]) == most:
            return at + b
    return 0


@compiled("int64(float32[::1], int64, float32, float32, float32, int64, float32)")
def _count_fast(
    logits_B: Floats, first: int, most: float, temperature: float, min_p: float, draw: int, fastest: float
) -> int:
    """Return the number of tokens from `first` on that may arrive before a speed of `fastest` / 2^32; no fewer.

    A token of weight w arrives after -log(u) >= 1 - u, so that it is slower where w < (1 - u) * `fastest`. Of u the
    first 32 bits are taken, rounded up. The loop has no branches, so that it is vectorised.
    """
    count = 0
    for b in range(len(logits_B)):
        weight = exp((logits_B[b] - most) / temperature)
        left = np.uint32(0xFFFFFFFF) - np.uint32(_random_bits(draw, first + b) >> np.uint64(32))
        count += int((weight * _ROUNDING >= np.float32(left) * fastest) & (weight * _ROUNDING >= min_p))
    return count


@compiled("void(float32[:,::1], float32[::1], float32[::1], int64[::1], int64[::1])")
def sample_rows(logits_RV: Floats, temperature_R: Floats, min_p_R: Floats, draw_R: Ints, tokens_R: Ints) -> None:
    """Write each row's token: the likeliest at temperature 0, else the first to arrive of those that `min_p` leaves."""
    V = logits_RV.shape[1]
    for r in range(len(logits_RV)):
        logits_V = logits_RV[r]
        top = likeliest(logits_V)
        most = logits_V[top]
        tokens_R[r] = top if np.isfinite(most) else NOT_FINITE  # a NaN counts as the largest
        if temperature_R[r] <= 0 or tokens_R[r] == NOT_FINITE:
            continue
        temperature = max(temperature_R[r], _MIN_TEMPERATURE)
        fastest = (1 - 1e-9) / -np.log(_uniform(draw_R[r], top))  # the likeliest token is faster
        for start in range(0, V, _BLOCK):
            logits_B = logits_V[start : start + _BLOCK]
            scaled = np.float32(fastest * 2.0**-32)
            if not _count_fast(logits_B, start, most, temperature, min_p_R[r], draw_R[r], scaled):
                continue
            for b in range(len(logits_B)):
                logarithm = (logits_B[b] - most) / temperature
                if logarithm < _LEAST:
                    continue
                weight = exp(logarithm)
                if weight < min_p_R[r]:
                    continue
                uniform = _uniform(draw_R[r], start + b)
                # Most tokens are seen to be slower without a logarithm.
                if (1.0 - uniform) * fastest > np.float64(weight) * _MARGIN:
                    continue
                speed = np.float64(weight) / -np.log(uniform)
                if speed > fastest:
                    fastest, tokens_R[r] = speed, start + b


def sample_unfiltered(logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return a token for each row, int64 [R]. No filter but min-p acts on the rows, or their temperature is 0."""
    tokens_R = torch.empty(len(logits_RV), dtype=torch.int64)
    columns = sampling.temperature_R, sampling.min_p_R, sampling.draw_R, tokens_R
    arrays = [tensor.numpy() for tensor in (logits_RV.contiguous(), *columns)]
    share_rows(logits_RV, lambda rows: sample_rows(*(array[rows] for array in arrays)))
    return tokens_R


@compiled("void(float32[:,::1], float32[::1], float32[::1])")
def _log_sums(logits_RV: Floats, log_sum_R: Floats, entropy_R: Floats) -> None:
    V = logits_RV.shape[1]
    for r in range(len(logits_RV)):
        logits_V = logits_RV[r]
        most = logits_V[likeliest(logits_V)]
        total, moment = 0.0, 0.0
        for start in range(0, V, _BLOCK):
            logits_B = logits_V[start : start + _BLOCK]
            part, part_moment = np.float32(0), np.float32(0)
            for b in range(len(logits_B)):
                logarithm = max(logits_B[b] - most, _LEAST)
                weight = exp(logarithm)
                part += weight
                part_moment += weight * logarithm
            total += part
            moment += part_moment
        log_sum_R[r] = most + np.log(total)
        entropy_R[r] = np.log(total) - moment / total


def log_sums(logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the sum of exponentials, and the entropy of the softmax in nats; float32 [R] each."""
    log_sum_R, entropy_R = torch.empty(2, len(logits_RV))
    arrays = [tensor.numpy() for tensor in (logits_RV.contiguous(), log_sum_R, entropy_R)]
    share_rows(logits_RV, lambda rows: _log_sums(*(array[rows] for array in arrays)))
    return log_sum_R, entropy_R
