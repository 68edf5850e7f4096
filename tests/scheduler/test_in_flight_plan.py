"""Plans that are made while the previous one is in flight: their rows, and what they must not do.

`test_any_schedule` checks that tokens stay the same.
"""

from __future__ import annotations

import json

import pytest

from ramiform.runtime.protocol.sampling import Constraint, LogprobParams
from ramiform.runtime.scheduler.plan import PENDING, ForwardPlan

from .fake_model import EOS
from .harness import Runtime, generate
from .sequential_run import assert_equal, sequential


def following(plan: ForwardPlan) -> list[str]:
    return [row.rid for row in plan.rows if row.follows is not None]


def test_every_decode_row_but_the_first_is_planned_before_its_token_is_known() -> None:
    runtime = Runtime(ahead=True)
    message = generate("a", [2, 3, 2], max_new_tokens=6, ignore_eos=True)
    runtime.add(message)
    runtime.finish()
    assert_equal(runtime.answers["a"], sequential(message))
    assert [row.tokens for plan in runtime.plans for row in plan.rows] == [[2, 3, 2], *[[PENDING]] * 5]
    assert [row.follows for plan in runtime.plans[1:] for row in plan.rows] == [0] * 5


def test_nothing_is_computed_beyond_the_limit() -> None:
    runtime = Runtime(ahead=True)
    runtime.add(generate("a", [2, 3], max_new_tokens=1, ignore_eos=True))
    runtime.add(generate("b", [3, 3], max_new_tokens=3, ignore_eos=True))
    runtime.finish()
    assert runtime.engine.num_computed == 2 + (2 + 2)


def test_masks_and_penalties_come_when_the_token_before_is_known_and_keep_every_step_full() -> None:
    """The number of plans is the same as without planning ahead."""
    language = json.dumps([[2, 3, 4, 5], [2, 2, 3, 3, 4], [3, 4, 5, 2, 3, 2]])
    messages = [
        generate("grammar", [2, 3, 2, 2], constraint=Constraint("choices", language), temperature=1.0),
        generate("penalised", [3, 3], frequency_penalty=0.5, max_new_tokens=9, ignore_eos=True),
        generate("plain", [3, 2, 2], max_new_tokens=9, ignore_eos=True),
        generate("scored", [4, 2, 3], max_new_tokens=9, ignore_eos=True, logprobs=LogprobParams(num_top=2)),
    ]
    num_plans = []
    for ahead in (False, True):
        runtime = Runtime(ahead=ahead, jump_forward=False)
        runtime.add(*messages)
        runtime.grammars.compile()
        runtime.finish()
        for message in messages:
            assert_equal(runtime.answers[message.rid], sequential(message))
        num_plans.append(len(runtime.plans))
    assert num_plans[1] == num_plans[0]
    steady = runtime.plans[2:5]
    assert all(sorted(following(plan)) == sorted(message.rid for message in messages) for plan in steady)


def test_a_row_of_a_request_that_ends_meanwhile_counts_for_nothing_and_its_pages_come_back_with_it() -> None:
    message = next(
        message
        for seed in range(100)
        if len((answer := sequential(message := generate("a", [2, 3, 2], temperature=1.0, seed=seed))).ids) == 3
        and answer.ids[-1] == EOS
    )
    runtime = Runtime(ahead=True)
    runtime.add(message)
    while not runtime.answers["a"].over:
        runtime.step()
    assert following(runtime.plans[-1]) == ["a"]
    (lease,) = runtime.cache.leases  # the plan in flight writes to its pages
    assert not runtime.scheduler.idle
    assert runtime.step()
    assert not lease.live
    assert runtime.scheduler.idle
    again = generate("b", [2, 3, 2, *runtime.answers["a"].ids, 3], max_new_tokens=1)
    runtime.add(again)
    runtime.finish()
    assert runtime.answers["b"].num_cached == 3 + 2  # its last token's keys are of no plan that counts


@pytest.mark.parametrize("when", ["in flight", "between"])
def test_an_aborted_request_gives_its_pages_back_once_both_its_plans_are_through(when: str) -> None:
    runtime = Runtime(ahead=True)
    runtime.add(generate("a", [2, 3] * 4, max_new_tokens=50, ignore_eos=True))
    for _ in range(4):
        runtime.step()
    if when == "between":
        runtime.abort("a")
        assert runtime.cache.leases
    runtime.step(["a"] if when == "in flight" else [])
    runtime.step()
    assert runtime.scheduler.idle
    assert not runtime.cache.leases


def test_no_request_is_retracted_while_a_plan_in_flight_writes_its_pages() -> None:
    """When memory runs out, the plan in flight is committed first, and the next one retracts."""
    runtime = Runtime(ahead=True, num_pages=12, max_running=8)
    messages = [
        generate(f"r{i}", [2, 3, i + 2], max_new_tokens=12 if i % 2 else 24, ignore_eos=True, seed=i) for i in range(8)
    ]
    runtime.add(*messages)
    runtime.finish()
    for message in messages:
        assert_equal(runtime.answers[message.rid], sequential(message))
    assert sum(answer.num_retractions for answer in runtime.answers.values()) > 0
    assert sum(bool(following(plan)) for plan in runtime.plans) > len(runtime.plans) // 2


def test_drafts_follow_known_tokens_only() -> None:
    runtime = Runtime(ahead=True, speculative="eagle", speculative_adaptive=False)
    runtime.add(generate("a", [2, 3, 2], max_new_tokens=12, ignore_eos=True))
    runtime.finish()
    assert not any(following(plan) for plan in runtime.plans)
    assert any(row.parents for plan in runtime.plans for row in plan.rows)


def test_a_prompt_in_chunks_is_planned_ahead_and_requests_that_share_it_wait_for_it() -> None:
    prompt = [2, 3] * 20
    runtime = Runtime(ahead=True, budget=8)
    runtime.add(generate("a", [*prompt, 2], max_new_tokens=2, ignore_eos=True))
    runtime.add(generate("b", [*prompt, 3], max_new_tokens=2, ignore_eos=True))
    runtime.finish()
    assert [len(row.tokens) for plan in runtime.plans for row in plan.rows if row.rid == "a"][:5] == [8] * 5
    assert runtime.answers["b"].num_cached == len(prompt)
