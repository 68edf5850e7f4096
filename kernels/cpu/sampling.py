"""Compiled loops over a row's logits: the likeliest token, the draw of one, and the sum of their exponentials.

`reference.sampling` defines what they compute. A row's results do not depend on the other rows.

Legend: R rows, V vocabulary, B a block of it, or all blocks, N ranked tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..arguments import NOT_FINITE
from ..reference.sampling import MIN_TEMPERATURE, SamplingTensors
from .compiled import Doubles, Floats, Ints, compiled, exp
from .thread_pool import share_rows

_LEAST = np.float32(-87)  # logarithm of a weight; smaller ones, -inf included, count as 0
_MIN_TEMPERATURE = np.float32(MIN_TEMPERATURE)
_MARGIN = 1 + 1e-9  # more than the rounding of a speed
_BLOCK = 256  # numbers of a row that a loop goes through at once
_SMALL_BLOCK = 64  # numbers whose largest is found before the likeliest tokens are gathered
_NUM_CANDIDATES = 256, 2048  # likeliest tokens that are ranked, where top-p alone acts; all if it does not end there
_ROUNDING = np.float32(1 + 1e-5)  # more than that of a float32 weight times an integer


class _Ranked(NamedTuple):
    """A row and its tokens that top-k and top-p leave."""

    logits_V: Floats
    keys_N: Ints
    most: np.float32
    temperature: np.float32
    min_p: float


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


@compiled("void(float32[::1], int32[::1])")
def _block_maxima(logits_V: Floats, maxima_B: NDArray[np.int32]) -> None:
    """Write the largest of each small block, as `_order` orders them."""
    for block in range(len(maxima_B)):
        bits_B = logits_V[block * _SMALL_BLOCK : (block + 1) * _SMALL_BLOCK].view(np.int32)
        largest = np.int32(-0x7FFFFFFF)
        for b in range(len(bits_B)):
            largest = max(largest, _order(bits_B[b]))
        maxima_B[block] = largest


@compiled("int64(float32[::1], int32[::1], int32, int64[::1])")
def _gather(logits_V: Floats, maxima_B: NDArray[np.int32], least: np.int32, keys_N: Ints) -> int:
    """Write keys, whose order is the rank, of the tokens of at least `least`; return their number. The lower half of a
    key is the id."""
    count = 0
    for block in range(len(maxima_B)):
        if maxima_B[block] < least:
            continue
        bits_B = logits_V[block * _SMALL_BLOCK : (block + 1) * _SMALL_BLOCK].view(np.int32)
        for b in range(len(bits_B)):
            order = _order(bits_B[b])
            if order >= least:
                keys_N[count] = (-np.int64(order) << 32) | (block * _SMALL_BLOCK + b)
                count += 1
    return count


@compiled("float64(float32[::1], float32, float32)")
def _mass(logits_V: Floats, most: float, temperature: float) -> float:
    """Return the sum of all weights, of which the likeliest token's is 1."""
    total = 0.0
    for start in range(0, len(logits_V), _BLOCK):
        logits_B = logits_V[start : start + _BLOCK]
        part = np.float32(0)
        for b in range(len(logits_B)):
            part += exp((logits_B[b] - most) / temperature)
        total += part
    return total


@compiled("int64(float32[::1], int64[::1], float32, float32, float64, float64)")
def _count_kept(logits_V: Floats, keys_N: Ints, most: float, temperature: float, top_p: float, total: float) -> int:
    """Return how many of the ranked tokens hold at least `top_p` of the mass `total`, 0: theirs."""
    for n in range(len(keys_N) if total == 0 else 0):
        total += exp((logits_V[keys_N[n] & 0xFFFFFFFF] - most) / temperature)
    before = 0.0
    for n in range(len(keys_N)):
        logarithm = (logits_V[keys_N[n] & 0xFFFFFFFF] - most) / temperature
        if logarithm < _LEAST or (top_p < 1 and before >= top_p * total):
            return n
        before += exp(logarithm)
    return len(keys_N)


@compiled("int64(float32[::1], int64[::1], float32, float32, float32, int64)")
def _first_to_arrive(logits_V: Floats, keys_N: Ints, most: float, temperature: float, min_p: float, draw: int) -> int:
    """Return the token of the ranked ones that `sample_rows` would find among them."""
    first, fastest = 0, 0.0
    for n in range(len(keys_N)):
        token = keys_N[n] & 0xFFFFFFFF
        weight = exp((logits_V[token] - most) / temperature)
        if weight < min_p:
            break
        speed = np.float64(weight) / -np.log(_uniform(draw, token))
        if speed > fastest or (speed == fastest and token < first):
            first, fastest = token, speed
    return first


@compiled("float64(float32[::1], int64[::1], float32, float32, float32, int64)")
def _ranked_logprob(logits_V: Floats, keys_N: Ints, most: float, temperature: float, min_p: float, token: int) -> float:
    """Return log p of a token in the distribution of `_first_to_arrive`."""
    total, own = 0.0, 0.0
    for n in range(len(keys_N)):
        weight = exp((logits_V[keys_N[n] & 0xFFFFFFFF] - most) / temperature)
        if weight < min_p:
            break
        total += weight
        if keys_N[n] & 0xFFFFFFFF == token:
            own = weight
    return np.log(own) - np.log(total)  # type: ignore[no-any-return]


@compiled("void(float32[:,::1], int64[::1], float32[::1], float32[::1], float64[::1])")
def _unfiltered_logprobs(
    logits_RV: Floats, tokens_R: Ints, temperature_R: Floats, min_p_R: Floats, logprob_R: Doubles
) -> None:
    V = logits_RV.shape[1]
    for r in range(len(logits_RV)):
        logits_V = logits_RV[r]
        most, temperature = logits_V[likeliest(logits_V)], max(temperature_R[r], _MIN_TEMPERATURE)
        total = 0.0
        for start in range(0, V, _BLOCK):
            logits_B = logits_V[start : start + _BLOCK]
            part = np.float32(0)
            for b in range(len(logits_B)):
                weight = exp((logits_B[b] - most) / temperature)
                part += weight if weight >= min_p_R[r] else np.float32(0)
            total += part
        own = (logits_V[tokens_R[r]] - most) / temperature
        logprob_R[r] = own - np.log(total) if exp(own) >= min_p_R[r] else -np.inf


def unfiltered_logprobs(logits_RV: torch.Tensor, tokens_R: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return `Ops.drawn_logprobs` of rows on which no filter but min-p acts."""
    logprob_R = torch.empty(len(logits_RV), dtype=torch.float64)
    columns = logits_RV.contiguous(), tokens_R, sampling.temperature_R, sampling.min_p_R, logprob_R
    arrays = [tensor.numpy() for tensor in columns]
    share_rows(logits_RV, lambda rows: _unfiltered_logprobs(*(array[rows] for array in arrays)))
    return logprob_R


def _ranked_tokens(logits_V: Floats, most: np.float32, temperature: np.float32, top_k: int, top_p: float) -> Ints:
    """Return keys of the tokens that top-k and top-p leave, by rank: the lower 32 bits are the ids. Tokens whose weight
    counts as 0 are left out. `most` is the largest logit."""
    V = len(logits_V)
    maxima_B = np.empty(-(-V // _SMALL_BLOCK), np.int32)
    _block_maxima(logits_V, maxima_B)
    total = 0.0 if top_k < V else _mass(logits_V, most, temperature)
    for num in (top_k,) if top_k < V else (*_NUM_CANDIDATES, V):
        if num >= V or num > len(maxima_B):
            keys_N = np.empty(V, np.int64)
            _gather(logits_V, maxima_B, np.int32(-0x7FFFFFFF), keys_N)
        else:  # so many blocks have a token of at least this
            least = -np.partition(-maxima_B, num - 1)[num - 1]
            keys_N = np.empty(_SMALL_BLOCK * int((maxima_B >= least).sum()), np.int64)
            keys_N = keys_N[: _gather(logits_V, maxima_B, least, keys_N)]
        if num < len(keys_N):
            keys_N = np.partition(keys_N, num - 1)[:num]
        keys_N = np.sort(keys_N)
        kept = _count_kept(logits_V, keys_N, most, temperature, top_p, total)
        if kept < len(keys_N) or top_k < V:
            break
    return keys_N[:kept]


def sample_ranked(logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return a token for each row, int64 [R]. Top-k or top-p acts on the rows, top-n-sigma does not."""
    tokens_R, draw_R = np.full(len(logits_RV), NOT_FINITE), sampling.draw_R.tolist()

    def sample(row: int, ranked: _Ranked) -> None:
        tokens_R[row] = _first_to_arrive(*ranked, draw_R[row])

    _rank_rows(logits_RV, sampling, sample)
    return torch.from_numpy(tokens_R)


def ranked_logprobs(logits_RV: torch.Tensor, tokens_R: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return `Ops.drawn_logprobs` of rows as those of `sample_ranked`."""
    logprob_R, tokens = np.full(len(logits_RV), -np.inf), tokens_R.tolist()

    def read(row: int, ranked: _Ranked) -> None:
        logprob_R[row] = _ranked_logprob(*ranked, tokens[row])

    _rank_rows(logits_RV, sampling, read)
    return torch.from_numpy(logprob_R)


def _rank_rows(logits_RV: torch.Tensor, sampling: SamplingTensors, use: Callable[[int, _Ranked], None]) -> None:
    """Call `use`, in any thread, for each row whose largest logit is finite."""
    logits = logits_RV.contiguous().numpy()
    temperature_R = sampling.temperature_R.clamp_min(_MIN_TEMPERATURE).numpy()
    top_k_R, top_p_R, min_p_R = sampling.top_k_R.tolist(), sampling.top_p_R.tolist(), sampling.min_p_R.tolist()

    def rank(rows: slice) -> None:
        for r in range(len(logits))[rows]:
            most = logits[r, likeliest(logits[r])]
            if np.isfinite(most):
                keys_N = _ranked_tokens(logits[r], most, temperature_R[r], top_k_R[r], top_p_R[r])
                use(r, _Ranked(logits[r], keys_N, most, temperature_R[r], min_p_R[r]))

    share_rows(logits_RV, rank)


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
