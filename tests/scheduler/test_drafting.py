"""Guesses are the least of a step's work, and pay. The fake engine's drafts are any trees at all."""

from __future__ import annotations

import random

import pytest

from ramify.runtime.scheduler.economy import Economy, StepCost
from ramify.runtime.scheduler.plan import ForwardPlan

from .harness import Runtime, generate

ALWAYS = {"speculative": "eagle", "speculative_adaptive": False}


def prompts(size: int) -> list[list[int]]:
    draw = random.Random(size)
    return [draw.choices(range(2, 12), k=draw.randint(1, 20)) for _ in range(size)]


def play(**settings: object) -> tuple[Runtime, list[ForwardPlan]]:
    runtime = Runtime(**settings)
    for index, prompt in enumerate(prompts(12)):
        runtime.add(generate(f"r{index}", prompt, max_new_tokens=30, ignore_eos=True, temperature=1.0, seed=index))
    runtime.finish()
    return runtime, runtime.plans


def test_guesses_that_prove_right_save_passes() -> None:
    runtime, plans = play(**ALWAYS)
    _, plain = play()
    stats = runtime.scheduler.stats()
    assert len(plans) < len(plain)
    assert stats.num_guessed_tokens == sum(len(row.parents or ()) for plan in plans for row in plan.rows)
    assert stats.num_accepted_tokens == sum(n * count for n, count in enumerate(stats.accepted_lengths)) > 5
    passes = sum(row.sample is not None for plan in plans for row in plan.rows)
    assert passes + stats.num_accepted_tokens >= stats.num_output_tokens == 12 * 30


@pytest.mark.parametrize("num_pages", [14, 18, 24])
def test_guesses_cost_nobody_its_place(num_pages: int) -> None:
    """Whoever is retracted had no room for its next token, whatever was guessed."""
    runtime = Runtime(num_pages=num_pages, **ALWAYS)
    for index, prompt in enumerate(prompts(6)):
        runtime.add(generate(f"r{index}", prompt, max_new_tokens=24, ignore_eos=True, seed=index))
    while not runtime.scheduler.idle:
        leases = {id(lease): len(lease.pages) for lease in runtime.cache.leases}
        available, retracted = runtime.cache.num_available, runtime.scheduler.stats().num_retractions
        needed = len(leases)  # a page more for each at most
        runtime.progress()
        if runtime.scheduler.stats().num_retractions > retracted:
            assert available < needed
    assert runtime.scheduler.stats().num_accepted_tokens > 0


def test_prompts_keep_three_quarters_of_a_step() -> None:
    runtime = Runtime(budget=20, speculative_num_draft_tokens=12, **ALWAYS)
    for index in range(4):
        runtime.add(generate(f"r{index}", [2 + index] * 3, max_new_tokens=40, ignore_eos=True))
    for _ in range(3):
        runtime.step()
    runtime.add(generate("long", list(range(2, 12)) * 6, max_new_tokens=1))
    runtime.finish()
    chunks = [row for plan in runtime.plans for row in plan.rows if row.rid == "long"]
    assert all(len(row.tokens) >= 12 for row in chunks[:-1])  # 20 less a token each, less a quarter


def test_a_step_never_has_more_tokens_than_its_budget() -> None:
    for budget in (4, 9, 16):
        _, plans = play(budget=budget, **ALWAYS)
        assert max(plan.num_tokens for plan in plans) <= budget
        assert any(row.parents for plan in plans for row in plan.rows) == (budget > 8)


def test_costs_are_found_from_steps_that_differ() -> None:
    cost, draw = StepCost(), random.Random(1)
    for _ in range(400):
        num_tokens, num_drafts = draw.randint(1, 60), draw.choice([0, 0, 1, 5])
        wide = draw.random() < 0.5
        seconds = 0.01 + 0.0004 * num_tokens + 0.002 * wide + 0.003 * (num_drafts > 0) + 0.0005 * num_drafts
        seconds *= draw.uniform(0.9, 1.1)
        cost.observe(num_tokens=num_tokens, wide=wide, num_drafts=num_drafts, seconds=seconds)
    assert cost.coefficients == pytest.approx((0.01, 0.0004, 0.002, 0.003, 0.0005), rel=0.25)


def economy(token: float, drafting: float, wide: float = 0.0) -> Economy:
    """A pass costs 1."""
    made, draw = Economy(), random.Random(2)
    for _ in range(300):
        num_tokens, num_drafts = draw.randint(1, 40), draw.choice([0, 1, 4])
        is_wide = draw.random() < 0.5
        seconds = 1 + token * num_tokens + drafting * (num_drafts > 0) + wide * is_wide
        made.cost.observe(num_tokens=num_tokens, wide=is_wide, num_drafts=num_drafts, seconds=seconds)
    return made


def test_as_many_guesses_are_verified_as_make_tokens_cheapest() -> None:
    chances = [[0.9, 0.8, 0.7, 0.5, 0.2, 0.1, 0.05], [0.3, 0.1]]
    for token, wide in ((0.001, 0.0), (0.05, 0.3), (0.2, 0.0), (0.2, 0.7), (1.0, 0.2)):
        counts = economy(token, 0.1, wide).num_worth(2, chances, limit=99)

        def speed(first: int, second: int, token: float = token, wide: float = wide) -> float:
            gained = 2 + sum(chances[0][:first]) + sum(chances[1][:second])
            return gained / (1 + token * (2 + first + second) + wide * (first + second > 0))

        best = max(speed(first, second) for first in range(8) for second in range(3))
        assert speed(*counts) == pytest.approx(best, rel=0.01)
    assert sum(economy(0.001, 0.1).num_worth(2, chances, limit=4)) == 4


def test_what_a_plain_step_costs_is_not_forgotten() -> None:
    """Guessing all the time, it would never be seen that a step without costs next to nothing."""
    made = Economy()
    plain = 0
    for _ in range(1000):
        drafts = made.worth_drafting([2.0], num_rows=1, num_guesses=7)
        plain += not drafts
        made.cost.observe(
            num_tokens=8 if drafts else 1, wide=drafts, num_drafts=int(drafts), seconds=9.0 if drafts else 1.0
        )
    assert plain > 900


def test_drafting_stops_when_it_does_not_pay_and_is_tried_again_now_and_then() -> None:
    dear = economy(0.02, 3.0)
    tried = [dear.worth_drafting([1.0], num_rows=1, num_guesses=7) for _ in range(4000)]
    assert 2 <= sum(tried) < 0.01 * len(tried)
    assert dear.worth_drafting([6.0], num_rows=1, num_guesses=7)  # it got better: on at once
    assert economy(0.02, 0.2).worth_drafting([1.0], num_rows=1, num_guesses=7)
    assert not economy(0.02, 0.2).worth_drafting([0.1] * 16, num_rows=16, num_guesses=7)
