"""Drafts have the lowest rank in a step, and pay. The fake engine's drafts are random trees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import zip_longest

import pytest

from ramiform.runtime.scheduler.acceptance import Acceptance
from ramiform.runtime.scheduler.plan import ForwardPlan
from ramiform.runtime.scheduler.speculation_budget import INITIAL_SAVINGS, NUM_DEPTH_STAGES, RETRY_SAVINGS, StepWork
from ramiform.runtime.scheduler.speculation_policy import DraftCandidate, SpeculationPolicy
from ramiform.runtime.scheduler.step_cost import StepCost, StepShape

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


def test_accepted_draft_tokens_save_passes() -> None:
    runtime, plans = play(**ALWAYS)
    _, plain = play()
    stats = runtime.scheduler.stats()
    assert len(plans) < len(plain)
    assert stats.num_guessed_tokens == sum(len(row.parents or ()) for plan in plans for row in plan.rows)
    assert stats.num_accepted_tokens == sum(n * count for n, count in enumerate(stats.accepted_lengths)) > 5
    passes = sum(row.sample is not None for plan in plans for row in plan.rows)
    assert passes + stats.num_accepted_tokens >= stats.num_output_tokens == 12 * 30


@pytest.mark.parametrize("num_pages", [14, 18, 24])
def test_draft_tokens_retract_no_request(num_pages: int) -> None:
    """A retracted request had no room for its next token, with or without drafts."""
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


def seconds_of(shape: StepShape, token: float, drafting: float, wide: float) -> float:
    """A pass costs 1; each round of a draft costs a tenth of drafting at all."""
    dear = drafting * (shape.num_drafts > 0) + 0.1 * drafting * shape.num_rounds
    return 1 + token * shape.num_tokens + wide * shape.wide + dear


def any_shape(draw: random.Random) -> StepShape:
    num_drafts, steps = draw.choice([0, 0, 1, 5]), draw.randint(1, 7)
    rounds = steps - 1 if num_drafts else 0
    return StepShape(draw.randint(1, 60), draw.random() < 0.5, num_drafts, rounds, rounds * num_drafts)


def test_costs_are_found_from_steps_that_differ_on_a_busy_clock() -> None:
    cost, draw = StepCost(), random.Random(1)
    for _ in range(600):
        shape = any_shape(draw)
        seconds = seconds_of(shape, 0.04, 0.5, 0.2) * draw.uniform(0.9, 1.1)
        cost.observe(shape, seconds * (20 if draw.random() < 0.03 else 1))
    for _ in range(50):
        shape = any_shape(draw)
        assert cost.seconds(shape) == pytest.approx(seconds_of(shape, 0.04, 0.5, 0.2), rel=0.2)


def test_a_cost_that_was_not_seen_for_long_is_still_known() -> None:
    cost, draw = StepCost(), random.Random(3)
    for _ in range(300):
        shape = any_shape(draw)
        cost.observe(shape, seconds_of(shape, 0.02, 4.0, 0.1))
    for _ in range(3000):
        cost.observe(StepShape(1), seconds_of(StepShape(1), 0.02, 4.0, 0.1))
    shape = StepShape(8, True, 1, 6, 6)
    assert cost.seconds(shape) == pytest.approx(seconds_of(shape, 0.02, 4.0, 0.1), rel=0.2)


def policy(token: float, drafting: float, wide: float = 0.0) -> SpeculationPolicy:
    """A policy with known costs, and plain steps of up to eight requests."""
    made, draw = SpeculationPolicy(), random.Random(2)
    for _ in range(400):
        shape = any_shape(draw)
        made.cost.observe(shape, seconds_of(shape, token, drafting, wide))
    for num_rows in (1, 2, 4, 8):
        for _ in range(3):
            plain_step(made, num_rows, token)
    return made


def plain_step(made: SpeculationPolicy, num_rows: int, token: float) -> None:
    shape = StepShape(num_rows)
    made.observe_step(shape, StepWork(num_rows, 0, 0, 0.0, False), seconds_of(shape, token, 0.0, 0.0))


def test_as_many_draft_tokens_are_verified_as_make_tokens_cheapest() -> None:
    chances = [[0.9, 0.8, 0.7, 0.5, 0.2, 0.1, 0.05], [0.3, 0.1]]
    for token, wide in ((0.001, 0.0), (0.05, 0.3), (0.2, 0.0), (0.2, 0.7), (1.0, 0.2)):
        counts = policy(token, 0.1, wide).num_to_verify(2, chances, limit=99)

        def speed(first: int, second: int, token: float = token, wide: float = wide) -> float:
            gained = 2 + sum(chances[0][:first]) + sum(chances[1][:second])
            return gained / (1 + token * (2 + first + second) + wide * (first + second > 0))

        best = max(speed(first, second) for first in range(8) for second in range(3))
        assert speed(*counts) == pytest.approx(best, rel=0.03)
    assert sum(policy(0.001, 0.1).num_to_verify(2, chances, limit=4)) == 4


def candidate(chance: float, steps: int = 7) -> DraftCandidate:
    """A candidate with a long history of acceptance at rate `chance` per level."""
    return DraftCandidate(Acceptance(hits=chance * 1000, misses=(1 - chance) * 1000, expected=1000.0), steps, 1, steps)


def test_drafts_are_as_deep_and_for_as_many_as_make_tokens_cheapest() -> None:
    for token, drafting in ((0.001, 0.3), (0.03, 1.0), (0.1, 2.0), (0.02, 30.0)):
        for chances in ((0.9,), (0.5,), (0.95, 0.9, 0.2, 0.1), (0.7,) * 8):
            made, many = policy(token, drafting), [candidate(chance) for chance in chances]
            choice = made.choose_drafts(many, len(many))

            def speed(
                steps: int,
                who: Sequence[int],
                chances: Sequence[float] = chances,
                costs: tuple[float, float] = (token, drafting),
            ) -> float:
                gained = len(chances) + sum(chances[index] ** level for index in who for level in range(1, steps + 1))
                shape = StepShape(len(chances) + len(who) * steps, bool(who), len(who), max(0, steps - 1), 0)
                return gained / seconds_of(shape, *costs, 0.0)

            ranked = sorted(range(len(chances)), key=lambda index: -chances[index])
            plain = speed(0, ())
            best = max(speed(steps, ranked[:count]) for steps in range(1, 8) for count in range(1, len(chances) + 1))
            if choice.steps and not choice.is_trial:
                assert speed(choice.steps, choice.chosen) > max(plain, 0.95 * best)
            else:
                assert best < 1.08 * plain


def test_trials_of_drafts_that_do_not_pay_take_one_percent_of_the_time() -> None:
    for drafting in (1.0, 3.0, 20.0):
        made, extra, looks = policy(0.02, drafting), 0.0, 0
        for _ in range(8000):
            choice = made.choose_drafts([candidate(0.1)], 1)
            assert choice.is_trial == (choice.steps > 0)
            plain_step(made, 1, 0.02)
            if choice.steps:
                looks += 1
                drafted = StepShape(1, False, 1, choice.steps - 1, choice.steps - 1)
                verified = StepShape(1 + choice.steps, True)
                for shape in (drafted, verified):
                    seconds = seconds_of(shape, 0.02, drafting, 0.0)
                    made.observe_step(shape, StepWork(1, 0, 0, 0.0, True), seconds)
                    extra += seconds - 1.02
        assert looks >= 3
        # What is known at first is little: some steps' time for that.
        assert extra < 1.2 * (0.01 * 8000 + INITIAL_SAVINGS + (NUM_DEPTH_STAGES - 1) * RETRY_SAVINGS)


def test_drafts_that_did_not_pay_come_back_once_they_do() -> None:
    made = policy(0.02, 3.0)
    for _ in range(500):
        made.choose_drafts([candidate(0.1)], 1)
        plain_step(made, 1, 0.02)
    good = made.choose_drafts([candidate(0.97)], 1)
    assert good.steps
    assert not good.is_trial


def test_a_trial_is_charged_its_measured_time() -> None:
    """A draft may first have to catch up with a long sequence."""
    made, looks = policy(0.02, 1.0), 0
    for _ in range(5000):
        choice = made.choose_drafts([candidate(0.1)], 1)
        looks += choice.steps > 0
        shape = StepShape(1, False, int(choice.steps > 0), max(0, choice.steps - 1), 0)
        work = StepWork(1, 0, 0, 0.0, speculated=choice.steps > 0, catching_up=choice.steps > 0)
        made.observe_step(shape, work, 101.0 if choice.steps else 1.02)
    assert 1 <= looks <= 3


def test_plain_steps_are_measured_again_while_drafting_all_the_time() -> None:
    """Without plain steps it would not be noticed that they cost next to nothing."""
    made, plain = SpeculationPolicy(), 0
    for _ in range(2000):
        guesses = made.choose_drafts([candidate(0.7)], 1).steps > 0
        plain += not guesses
        shape = StepShape(8, True, 1, 6, 6) if guesses else StepShape(1)
        made.observe_step(shape, StepWork(1, 0, 2 * guesses, 0.0, guesses), 9.0 if guesses else 1.0)
    assert plain > 1500


def test_the_cost_model_follows_a_change_of_speed() -> None:
    made, draw = policy(0.02, 0.5), random.Random(4)
    for _ in range(600):
        shape = any_shape(draw)
        made.cost.observe(shape, 3 * seconds_of(shape, 0.02, 0.5, 0.0))
    assert made.cost.seconds(StepShape(1)) == pytest.approx(3.06, rel=0.2)


def test_a_busy_machine_does_not_change_the_relative_cost_of_drafts() -> None:
    """Drafts are measured on a busy machine, then only plain steps on an idle one."""
    made, draw = StepCost(), random.Random(5)
    for _ in range(400):
        shape = any_shape(draw)
        made.observe(shape, 4 * seconds_of(shape, 0.02, 1.0, 0.1))
    for _ in range(200):
        made.observe(StepShape(1), seconds_of(StepShape(1), 0.02, 1.0, 0.1))
    shape = StepShape(8, True, 1, 6, 6)
    ratio = made.seconds(shape) / made.seconds(StepShape(1))
    assert ratio == pytest.approx(seconds_of(shape, 0.02, 1.0, 0.1) / 1.02, rel=0.6)  # not four times as much


def test_a_requests_accepted_lengths_come_with_its_end_and_add_up() -> None:
    runtime, _ = play(**ALWAYS)
    lengths = [answer.accepted_lengths for answer in runtime.answers.values()]
    assert sum(map(bool, lengths)) > len(lengths) // 2
    total = [sum(column) for column in zip_longest(*lengths, fillvalue=0)]
    assert total == runtime.scheduler.stats().accepted_lengths
