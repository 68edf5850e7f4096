"""DRY subtracts what a naive reader of its definition does, place by place, with llama.cpp's sequence breakers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.scheduler.rows.repeats import MAX_PENALTY, repeats_of

from .harness import generate


def naive(tokens: Sequence[int], params: SamplingParams, breakers: Sequence[Sequence[int]]) -> dict[int, float]:
    window = list(tokens if params.dry_penalty_last_n is None else tokens[-params.dry_penalty_last_n :])
    limit = len(window)
    for start in reversed(range(len(window))):
        ends = [start + len(own) for own in breakers if window[start : start + len(own)] == list(own)]
        if ends:
            limit = len(window) - max(ends)
            break
    longest: dict[int, int] = {}
    for place in range(1, len(window)):
        length = 0
        while length < min(place, limit) and window[place - 1 - length] == window[-1 - length]:
            length += 1
        if limit >= params.dry_allowed_length <= length:
            longest[window[place]] = max(longest.get(window[place], 0), length)
    return {
        token: min(params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length), MAX_PENALTY)
        for token, length in longest.items()
        if [token] not in breakers
    }


def params_of(draw: random.Random) -> SamplingParams:
    return SamplingParams(
        dry_multiplier=draw.choice([0.5, 3.0]),
        dry_base=draw.choice([1.0, 1.75, 90.0]),
        dry_allowed_length=draw.choice([0, 1, 2, 4]),
        dry_penalty_last_n=draw.choice([None, 1, 2, 7, 30]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_each_token_loses_by_the_longest_repetition_that_it_goes_on_with(seed: int) -> None:
    draw = random.Random(seed)
    params, letters = params_of(draw), range(draw.choice([1, 2, 3, 8]))
    breakers = [[*draw.choices(letters, k=draw.choice([1, 2, 3]))] for _ in range(draw.choice([0, 0, 1, 3]))]
    tokens = draw.choices(letters, k=draw.randrange(1, 60))
    message = Generate(rid="r", tokens=tokens, sampling=params, breakers=breakers)
    repeats = repeats_of(message)
    assert repeats is not None
    num = draw.randint(1, len(tokens))
    while num <= len(tokens):
        found, expected = repeats.after(tokens[:num]), naive(tokens[:num], params, breakers)
        assert found == pytest.approx(expected)
        tree = DraftTree(draw.choices(letters, k=4), [-1, 0, -1, 1], [0.0] * 4)
        after = [naive([*tokens[:num], *tree.path(node)], params, breakers) for node in range(4)]
        assert repeats.after_nodes(tokens[:num], tree) == [pytest.approx(each) for each in after]
        num += draw.choice([1, 1, 2, 5])


def test_it_is_off_without_a_multiplier_or_a_window() -> None:
    for off in ({"dry_multiplier": 0.0}, {"dry_multiplier": 1.0, "dry_penalty_last_n": 0}):
        assert repeats_of(generate("r", [1, 1, 1], **off)) is None


def test_the_largest_loss_is_a_finite_number_of_float32() -> None:
    repeats = repeats_of(generate("r", [1] * 3000, dry_multiplier=100.0, dry_base=100.0))
    assert repeats is not None
    assert repeats.after([1] * 3000) == {1: MAX_PENALTY}
