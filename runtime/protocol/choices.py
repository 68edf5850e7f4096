"""Decides selects: each choice's score from its tokens' log-probabilities, then the best choice or a draw.

The methods and their names are those of SGLang's `choices_method`.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence

from .errors import RequestError
from .sampling import TokenLogprob
from .session import Choice, ChoicesMethod, Select

Logprobs = Sequence[Sequence[float]]  # one non-empty list per choice: the log-probability of each of its tokens


def choose(
    select: Select,
    token_logprobs: list[list[TokenLogprob]],
    unconditional: list[list[TokenLogprob]] | None = None,
    *,
    prompt_tokens: int = 0,
    cached_tokens: int = 0,
) -> Choice:
    """Decide a select by the log-probabilities of its choices' tokens. Draws a seed if the select has none."""
    values = _values(token_logprobs)
    compared = scores(select.method, values, _values(unconditional or []))
    index = decide(compared, select.temperature, secrets.randbits(63) if select.seed is None else select.seed)
    return Choice(
        index=index,
        text=select.choices[index],
        scores=compared,
        normalized_prompt_logprobs=token_length_normalized(values),
        token_logprobs=token_logprobs,
        unconditional_logprobs=unconditional,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )


def scores(method: ChoicesMethod, logprobs: Logprobs, unconditional: Logprobs = ()) -> list[float]:
    """Return one score per choice, the higher the better.

    `unconditional` holds the tokens' log-probabilities without context; only the method of that name reads it.
    """
    match method:
        case "token_length_normalized":
            return token_length_normalized(logprobs)
        case "greedy_token_selection":
            return greedy_token_selection(logprobs)
        case "unconditional_likelihood_normalized":
            return unconditional_likelihood_normalized(logprobs, unconditional)


def token_length_normalized(logprobs: Logprobs) -> list[float]:
    """Return the mean log-probability of each choice's tokens."""
    return [_mean(choice) for choice in logprobs]


def greedy_token_selection(logprobs: Logprobs) -> list[float]:
    """Compare token by token: at each position the choices below the best drop out.

    A choice with fewer tokens is continued with its mean. Its score is its difference from the best at the position
    where it dropped out, 0 if it never did.
    """
    num_positions = max(len(choice) for choice in logprobs)
    rows = [[*choice, *[_mean(choice)] * (num_positions - len(choice))] for choice in logprobs]
    shortfalls = [0.0] * len(rows)
    remaining = list(range(len(rows)))
    for position in range(num_positions):
        best = max(rows[index][position] for index in remaining)
        for index in remaining:
            shortfalls[index] = rows[index][position] - best
        remaining = [index for index in remaining if rows[index][position] == best]
        if len(remaining) == 1:
            break
    return shortfalls


def unconditional_likelihood_normalized(logprobs: Logprobs, unconditional: Logprobs) -> list[float]:
    """Return the mean over each choice's tokens of their log-probability with context minus that without."""
    return [
        _mean([given - alone for given, alone in zip(choice, prior, strict=True)])
        for choice, prior in zip(logprobs, unconditional, strict=True)
    ]


def decide(scores: Sequence[float], temperature: float = 0.0, seed: int = 0) -> int:
    """Return the index of the highest score, the first of equals; above temperature 0 draw from softmax(scores / T).

    The draw depends on `seed` only. Raises RequestError for a temperature that is negative or not finite.
    """
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


def _values(choices: Sequence[Sequence[TokenLogprob]]) -> list[list[float]]:
    return [[token.logprob for token in choice] for choice in choices]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
