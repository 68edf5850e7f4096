"""Draws from whole rows of logits, without the filters that need them ranked. Its meaning is `reference.sampling`.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import Floats, Ints, compiled, exp


@compiled("void(int64[::1], int64[::1], int64[::1], boolean[::1])")
def walk_trees(sampled_O: Ints, guessed_O: Ints, parents_O: Ints, on_way_O: NDArray[np.bool_]) -> None:
    """Which outputs lie on the way that the samples take. Parents come before their children."""
    for output in range(len(sampled_O)):
        parent = parents_O[output]
        root = parent == output
        on_way_O[output] = root or (on_way_O[parent] and sampled_O[parent] == guessed_O[output])


_LEAST = np.float32(-87)  # logarithm of a weight; what is less, -inf included, is none
_MIN_TEMPERATURE = np.float32(1e-30)


@compiled("float64(int64, int64)")
def _arrival(seed: int, token: int) -> float:
    """Of a token of weight 1 in the race that `draw_tokens` holds: minus the logarithm of the token-th number of
    splitmix64 that starts at `seed`, as one between 0 and 1."""
    z = np.uint64(seed) + np.uint64(token + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return -np.log((np.float64(z >> np.uint64(12)) + 0.5) * 2.0**-52)  # type: ignore[no-any-return]


@compiled("void(float32[:,::1], float32[::1], float32[::1], int64[::1], int64[::1])")
def sample_rows(logits_RV: Floats, temperature_R: Floats, min_p_R: Floats, draw_R: Ints, tokens_R: Ints) -> None:
    """The likeliest token of a row at temperature 0, else the first to arrive of those that `min_p` leaves."""
    for r in range(len(logits_RV)):
        logits_V = logits_RV[r]
        likeliest = np.argmax(logits_V)
        tokens_R[r] = likeliest
        if temperature_R[r] <= 0:
            continue
        temperature, fastest = max(temperature_R[r], _MIN_TEMPERATURE), 0.0
        for token in range(len(logits_V)):
            logarithm = (logits_V[token] - logits_V[likeliest]) / temperature
            if logarithm < _LEAST:
                continue
            weight = exp(logarithm)
            if weight < min_p_R[r]:
                continue
            speed = np.float64(weight) / _arrival(draw_R[r], token)
            if speed > fastest:
                fastest, tokens_R[r] = speed, token
