"""Judge: the formulas written naively with numpy."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.protocol import choices
from ramiform.runtime.protocol.errors import RequestError

# Few different values, so that ties are common.
logprob = st.sampled_from([-0.125, -0.25, -0.5, -1.0, -2.0, -8.0])
tables = st.lists(st.lists(logprob, min_size=1, max_size=5), min_size=1, max_size=6)


def naive_greedy(table: list[list[float]]) -> int:
    width = max(map(len, table))
    matrix = np.array([[*row, *[math.fsum(row) / len(row)] * (width - len(row))] for row in table])
    remaining = np.arange(len(table))
    for column in range(width):
        values = matrix[remaining, column]
        remaining = remaining[values == values.max()]
        if len(remaining) == 1:
            break
    return int(remaining[0])


@given(tables)
def test_length_normalised_scores_are_means(table: list[list[float]]) -> None:
    scores = choices.scores("token_length_normalized", table)
    assert scores == pytest.approx([np.mean(row) for row in table])
    assert choices.decide(scores) == int(np.argmax(scores))


@pytest.mark.slow
@given(tables)
def test_greedy_selection_is_that_of_the_matrix(table: list[list[float]]) -> None:
    assert choices.decide(choices.scores("greedy_token_selection", table)) == naive_greedy(table)


def test_greedy_selection_prefers_the_best_first_token_to_the_best_mean() -> None:
    table = [[-0.5, -8.0], [-1.0, -0.125]]
    assert choices.decide(choices.scores("greedy_token_selection", table)) == 0
    assert choices.decide(choices.scores("token_length_normalized", table)) == 1


@given(tables)
def test_unconditional_scores_are_mean_differences(table: list[list[float]]) -> None:
    prior = [[value * 0.5 - 1.0 for value in row] for row in table]
    scores = choices.scores("unconditional_likelihood_normalized", table, prior)
    expected = [np.mean(np.array(row) - np.array(alone)) for row, alone in zip(table, prior, strict=True)]
    assert scores == pytest.approx(expected)


def test_a_draw_follows_the_softmax_of_the_scores() -> None:
    scores = [-1.0, -2.0, -0.5, -5.0]
    num = 20_000
    drawn = Counter(choices.decide(scores, 0.7, seed) for seed in range(num))
    weights = np.exp(np.array(scores) / 0.7)
    for index, probability in enumerate(weights / weights.sum()):
        assert drawn[index] / num == pytest.approx(probability, abs=5 * math.sqrt(0.25 / num))


def test_a_draw_is_a_function_of_its_seed() -> None:
    scores = [0.0] * 1000
    assert choices.decide(scores, 1.0, 3) == choices.decide(scores, 1.0, 3)
    assert len({choices.decide(scores, 1.0, seed) for seed in (-2, -1, 1, 2)}) == 4


def test_a_cold_draw_is_the_best() -> None:
    assert {choices.decide([-3.0, -1.0, -2.0], 1e-3, seed) for seed in range(100)} == {1}


@pytest.mark.parametrize("temperature", [-0.1, math.nan, math.inf])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(RequestError, match="temperature"):
        choices.decide([0.0], temperature)
