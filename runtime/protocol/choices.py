"""How a select decides between its choices: the score each method compares, then the best one or a draw.

Pure arithmetic on log-probabilities, one list per choice; knows neither tokens nor models. Methods and their names are
those of SGLang's `choices_method`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from .errors import RequestError
from .session import ChoicesMethod

Logprobs = Sequence[Sequence[float]]  # one non-empty list per choice: the log-probability of each of its tokens


def scores(method: ChoicesMethod, logprobs: Logprobs, unconditional: Logprobs = ()) -> list[float]:
    """What `method` compares, one number per choice, the higher the better.

    `unconditional` holds the tokens' log-probabilities without context; only its own method reads it.
    """
    match method:
        case "token_length_normalized":
            return token_length_normalized(logprobs)
        case "greedy_token_selection":
            return greedy_token_selection(logprobs)
        case "unconditional_likelihood_normalized":
            return unconditional_likelihood_normalized(logprobs, unconditional)


def token_length_normalized(logprobs: Logprobs) -> list[float]:
    """The mean log-probability of each choice's tokens."""
    return [_mean(choice) for choice in logprobs]


def greedy_token_selection(logprobs: Logprobs) -> list[float]:
    """Compare token by token: at each place those below the best leave. A choice that has ended goes on at its mean.

    The score is by how much a choice fell short of the best where it left, so it is 0 for those that never left.
    """
    num_places = max(len(choice) for choice in logprobs)
    rows = [[*choice, *[_mean(choice)] * (num_places - len(choice))] for choice in logprobs]
    shortfalls = [0.0] * len(rows)
    remaining = list(range(len(rows)))
    for place in range(num_places):
        best = max(rows[index][place] for index in remaining)
        for index in remaining:
            shortfalls[index] = rows[index][place] - best
        remaining = [index for index in remaining if rows[index][place] == best]
        if len(remaining) == 1:
            break
    return shortfalls


def unconditional_likelihood_normalized(logprobs: Logprobs, unconditional: Logprobs) -> list[float]:
    """The mean, over each choice's tokens, of how much likelier the context makes them."""
    return [
        _mean([given - alone for given, alone in zip(choice, prior, strict=True)])
        for choice, prior in zip(logprobs, unconditional, strict=True)
    ]


def decide(scores: Sequence[float], temperature: float = 0.0, seed: int = 0) -> int:
    """The index of the highest score (the first of equals) or, above temperature 0, a draw keyed by `seed` with
    probabilities softmax(scores / temperature). Raises RequestError for a temperature that is negative or no number."""
    if not 0.0 <= temperature < math.inf:
        raise RequestError(f"temperature must be a number of at least 0, got {temperature}", param="temperature")
    best = max(range(len(scores)), key=scores.__getitem__)
    if temperature == 0.0:
        return best
    weights = [math.exp((score - scores[best]) / temperature) for score in scores]
    # Masked: Random takes the absolute value, and -1 must not draw as 1 does.
    draw = random.Random(seed & (1 << 64) - 1).random() * math.fsum(weights)
    for index, weight in enumerate(weights):
        draw -= weight
        if draw < 0.0:
            return index
    return best  # rounding left a little over


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
