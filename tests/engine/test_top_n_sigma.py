"""Steps with `top_n_sigma` on the engine's own paths. Judge: the definition in numpy, on the step's log-probabilities.

Log-probabilities are logits but for a constant, which changes no deviation and no distance to the best.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramiform.runtime.engine import ForwardEngine
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, Sample

from .test_sampler import naive_token

VOCAB = 150


def tokens_of(engine: ForwardEngine, samples: list[Sample]) -> list[int]:
    """Return a token of each sample after one prompt token, all in one step of decode rows."""
    rows = [Row(rid="", tokens=[row % 5], first_position=0, pages=[row], sample=own) for row, own in enumerate(samples)]
    return [result.tokens[0] for result in engine.run(ForwardPlan(step=1, copies=[], rows=rows)).rows]


def logits_of(engine: ForwardEngine, token: int) -> np.ndarray:
    own = Sample(temperature=0.0, draw=0, num_top_logprobs=0, logprobs_of=tuple(range(VOCAB)))
    row = Row(rid="", tokens=[token], first_position=0, pages=[0], sample=own)
    [result] = engine.run(ForwardPlan(step=1, copies=[], rows=[row])).rows
    return np.array(result.logprobs[0].of, dtype=np.float32)


def test_a_tiny_number_of_deviations_leaves_the_likeliest(engine: ForwardEngine) -> None:
    greedy = tokens_of(engine, [Sample(temperature=0.0, draw=0)] * 20)
    assert tokens_of(engine, [Sample(temperature=5.0, draw=d, top_n_sigma=1e-6) for d in range(20)]) == greedy


def test_off_draws_from_all_tokens(engine: ForwardEngine) -> None:
    drawn = tokens_of(engine, [Sample(temperature=5.0, draw=d) for d in range(20)])
    assert len(set(drawn)) > 8
    assert tokens_of(engine, [Sample(temperature=5.0, draw=d, top_n_sigma=-1.0) for d in range(20)]) == drawn


@given(seed=st.integers(0, 1 << 40), others=st.sampled_from([{}, {"min_p": 0.02}, {"top_k": 20, "top_p": 0.9}]))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_draw_among_the_tokens_within_their_deviations(
    engine: ForwardEngine, seed: int, others: dict[str, Any]
) -> None:
    logits = [logits_of(engine, token) for token in range(5)]
    draws = random.Random(seed)
    samples = [
        Sample(temperature=temperature, draw=draws.getrandbits(62), top_n_sigma=deviations, **others)
        for temperature in (0.7, 3.0)
        for deviations in (0.0, 0.5, 1.5, 3.0)
    ]
    assert tokens_of(engine, samples) == [naive_token(logits[row % 5], own, None)[0] for row, own in enumerate(samples)]
