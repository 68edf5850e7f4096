"""Confidence intervals of mean scores, and a paired test of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, fmean

NUM_RESAMPLES = 10_000
MAX_EXACT = 12  # differing pairs up to which all sign changes are tried


def confidence_interval(scores: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean: Wilson's for scores that are all 0 or 1, else by bootstrap with a fixed seed."""
    if not scores:
        return (0.0, 0.0)
    if all(score in (0.0, 1.0) for score in scores):
        return _wilson(sum(scores), len(scores), confidence)
    return _bootstrap(scores, confidence)


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean difference of pairs, by bootstrap with a fixed seed."""
    return _bootstrap(differences, confidence) if differences else (0.0, 0.0)


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the sign-flip permutation test: of a mean as far from 0 if signs were random.

    All sign changes are tried for up to 12 pairs that differ, else 10,000 random ones with a fixed seed.
    """
    import numpy as np

    values = np.array([value for value in differences if value], dtype=np.float64)
    if not len(values):
        return 1.0
    observed = abs(values.sum()) - 1e-9
    if len(values) <= MAX_EXACT:
        bits = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
        return float((np.abs((1 - 2 * bits) @ values) >= observed).mean())
    rng = np.random.default_rng(0)
    extreme = sum(abs(float(rng.choice((-1.0, 1.0), len(values)) @ values)) >= observed for _ in range(NUM_RESAMPLES))
    return float((extreme + 1) / (NUM_RESAMPLES + 1))


def _wilson(num_right: float, size: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = num_right / size
    centre = share + z * z / (2 * size)
    spread = z * sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _bootstrap(values: Sequence[float], confidence: float) -> tuple[float, float]:
    import numpy as np

    if len(set(values)) == 1:
        return (fmean(values),) * 2
    array = np.array(values, dtype=np.float64)
    rng = np.random.default_rng(0)
    means = [float(rng.choice(array, len(array)).mean()) for _ in range(NUM_RESAMPLES // 5)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
