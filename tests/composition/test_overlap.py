"""Plans made while the previous one is in flight: only the order of the work changes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.plan import ForwardPlan

from .alone import TOKENIZER, AnyTree, Got, run
from .test_speculation import TEXTS, check, crowding_requests, make_requests, plain
from .threads import RanksEngine

REQUESTS = make_requests(32, seed=9)  # samplings, grammars, penalties, stops, biases, log-probabilities of all kinds
AHEAD: dict[str, Any] = {"overlap": "on", "speculative": "off"}
SHAPES: dict[str, dict[str, Any]] = {
    "ample": {},
    "chunks": {"prefill_budget": 16, "max_running": 8},
    "few pages": {"num_pages": 20},
    "few pages, chunks, host memory": {"num_pages": 24, "host_kv_memory": 0.01, "prefill_budget": 24},
    "no cache": {"prefix_cache": False},
    "in order of arrival": {"order": "fcfs", "eviction": "lru", "max_running": 5},
    "deterministic": {"deterministic": True},
    "eight-bit": {"kv_dtype": "int8", "deterministic": True},
}


@pytest.fixture(scope="module")
def expected() -> dict[str, Got]:
    torch.set_num_threads(1)
    return plain(REQUESTS)


def num_following(plans: list[ForwardPlan]) -> int:
    return sum(row.follows is not None for plan in plans for row in plan.rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stagger", [0, 2])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "eight-bit"])
def test_outputs_stay_as_they_are(expected: dict[str, Got], shape: str, stagger: int) -> None:
    """`stagger` 0: all at once."""
    got, stats, plans = run(REQUESTS, stagger=stagger, **AHEAD | SHAPES[shape])
    check(got, expected)
    num_tokens = sum(len(mine.ids) for mine in got.values())
    assert num_following(plans) > num_tokens // 3
    if "num_pages" in SHAPES[shape]:
        assert stats.num_evicted_pages + stats.num_demoted_pages > 5


@pytest.mark.exhaustive
def test_without_jump_forward_every_token_of_a_grammar_is_sampled() -> None:
    constrained = [request for request in REQUESTS if request.sampling.constraint is not None]
    settings = {"speculative": "off", "jump_forward": False}
    judge = {request.rid: run([request], prefix_cache=False, **settings)[0][request.rid] for request in constrained}
    got, stats, plans = run(constrained, overlap="on", **settings)
    check(got, judge)
    assert stats.num_forced_tokens == 0
    assert num_following(plans) >= sum(len(mine.ids) - 1 for mine in got.values())  # all but each first one


@pytest.mark.exhaustive
def test_with_eight_bit_keys_it_is_the_same_model(expected: dict[str, Got]) -> None:
    settings = SHAPES["eight-bit"]
    ahead, one_by_one = run(REQUESTS, **AHEAD | settings)[0], run(REQUESTS, speculative="off", **settings)[0]
    assert {rid: (mine.ids, mine.finish) for rid, mine in ahead.items()} == {
        rid: (mine.ids, mine.finish) for rid, mine in one_by_one.items()
    }


@pytest.mark.exhaustive
def test_whoever_has_to_give_up_its_place_gets_the_same_tokens_in_the_end() -> None:
    requests = crowding_requests()
    got, stats, plans = run(requests, num_pages=40, **AHEAD)
    assert stats.num_retractions > 0
    assert num_following(plans) > 500
    check(got, run(requests, num_pages=512, speculative="off")[0])


@pytest.mark.slow
def test_samples_of_one_prompt_share_it_and_differ_by_their_seeds_alone() -> None:
    tokens = TOKENIZER.encode(TEXTS[0] + " " + " ".join(TEXTS[1:]), add_bos=True)
    params: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    samples = [Generate(rid=f"n{n}", tokens=tokens, sampling=SamplingParams(seed=n, **params)) for n in range(6)]
    got, stats, _ = run(samples, stagger=0, prefill_budget=16, **AHEAD)
    check(got, plain(samples))
    assert len({tuple(mine.ids) for mine in got.values()}) > 1
    assert stats.num_cached_tokens >= 5 * (len(tokens) - 1)


@pytest.mark.exhaustive
def test_branches_and_turns_go_on_from_what_was_said(expected: dict[str, Got]) -> None:
    """Each continues another's prompt and output, some of them while those still run."""
    firsts = REQUESTS[:8]
    branches = [
        Generate(
            rid=f"{first.rid}.{branch}",
            tokens=[*first.tokens, *expected[first.rid].ids[: 3 + 5 * branch], 40 + branch],
            sampling=SamplingParams(max_new_tokens=9, temperature=0.0, ignore_eos=True),
        )
        for first in firsts
        for branch in range(3)
    ]
    got, stats, _ = run([*firsts, *branches], **AHEAD)
    check(got, plain([*firsts, *branches]))
    assert stats.num_cached_tokens > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_requests_that_are_aborted_in_flight_harm_no_other(expected: dict[str, Got], seed: int) -> None:
    draw = random.Random(seed)
    aborts = {2 * index + draw.choice([1, 2, 3, 4, 5]): REQUESTS[index].rid for index in draw.sample(range(32), 12)}
    got, _, _ = run(REQUESTS, aborts=aborts, stagger=2, num_pages=40, **AHEAD)
    ended = {rid for rid, mine in got.items() if mine.finish is not None and mine.finish.type == "abort"}
    assert ended
    for rid in ended:
        assert got[rid].ids == expected[rid].ids[: len(got[rid].ids)]
    check({rid: mine for rid, mine in got.items() if rid not in ended}, expected)


@pytest.mark.slow
@pytest.mark.parametrize("speculative", ["ngram", "eagle"])
def test_guesses_need_tokens_that_are_known_so_steps_follow_one_another(
    expected: dict[str, Got], speculative: str
) -> None:
    trees = AnyTree(1, [(request.tokens, expected[request.rid].ids) for request in REQUESTS])
    source = trees if speculative == "eagle" else None
    got, stats, plans = run(
        REQUESTS, source=source, overlap="on", speculative=speculative, speculative_adaptive=False, num_pages=64
    )
    check(got, expected)
    assert stats.num_accepted_tokens > 0
    assert num_following(plans) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(("size", "stages"), [(2, 1), (4, 1), (2, 2)])
def test_every_rank_keeps_what_rank_0_samples(expected: dict[str, Got], size: int, stages: int) -> None:
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 24, "host_kv_memory": 0.01} | AHEAD
    engine = RanksEngine(CoreConfig(**settings, tp=size, pp=stages), SHIPPED_MODEL, size, stages=stages)
    got, _, plans = run(REQUESTS[:16], engine=engine, **settings)
    check(got, expected)
    assert num_following(plans) > 50
