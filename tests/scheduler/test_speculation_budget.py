"""Speculation never costs much more than plain decoding in the long run, on any machine, and is kept where it pays.

Judges: simulated seconds of plain decoding and of the best fixed depth on the same machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ramiform.runtime.scheduler.speculation_budget import (
    INITIAL_SAVINGS,
    MIN_PLAIN_STEPS,
    NUM_DEPTH_STAGES,
    RETRY_SAVINGS,
    DecayingLine,
    SpeculationBudget,
    StepWork,
)

from .simulated_machine import Decoding, Seconds, linear

LONG = 6000  # tokens of a request in the batch
DEPTHS = (1, 2, 3, 5, 7)


def hidden_cost_of_drafts() -> Seconds:
    """Every step with drafts takes twice as long, by a part that no count explains; rounds and nodes are free."""
    base = linear()
    return lambda step: base(step) + (1.5 + 0.3 * step.num_rows) * (step.shape.num_drafts > 0)


def catching_up() -> Seconds:
    """The source has to read whole prompts, at a high cost."""
    base = linear()
    return lambda step: base(step) + 0.1 * step.num_caught_up


def context_slows_all() -> Seconds:
    base = linear()
    return lambda step: base(step) * (1 + step.context / 60)


def context_slows_drafts() -> Seconds:
    base = linear()
    return lambda step: base(step) + step.context / 40 * (step.shape.num_drafts > 0)


def noise() -> Seconds:
    base, draw = linear(), random.Random(5)
    return lambda step: base(step) * draw.uniform(0.7, 1.3) * (8 if draw.random() < 0.01 else 1)


def verifying_is_a_cliff() -> Seconds:
    """More than four tokens per row take another, slower kernel."""
    base = linear()
    return lambda step: base(step) + 3 * (step.shape.num_tokens - step.num_prompt > 4 * step.num_rows)


def slower_and_faster() -> Seconds:
    base = linear()
    return lambda step: base(step) * (3 if step.done // 1500 % 2 else 1)


def drafts_get_dear() -> Seconds:
    base = linear()
    return lambda step: base(step) + 4 * (step.shape.num_drafts > 0) * (step.done > 2000)


def drafts_get_cheap() -> Seconds:
    base = linear()
    return lambda step: base(step) + 4 * (step.shape.num_drafts > 0) * (step.done < 2000)


LIKE_THE_MODEL = [linear, context_slows_all, noise, slower_and_faster]
UNLIKE_THE_MODEL = [
    hidden_cost_of_drafts,
    catching_up,
    context_slows_drafts,
    verifying_is_a_cliff,
    drafts_get_dear,
    drafts_get_cheap,
]


def time_of(machine: Callable[[], Seconds], chance: float, batch: int, depth: int | None) -> float:
    """Seconds per token; the last step may give more tokens than were wanted."""
    done = Decoding(machine(), chance, batch=batch, depth=depth).run(LONG * batch)
    return done.now / done.num_tokens


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.85])
@pytest.mark.parametrize("machine", LIKE_THE_MODEL + UNLIKE_THE_MODEL, ids=lambda machine: machine.__name__)
def test_speculation_costs_less_than_three_percent_on_any_machine(
    machine: Callable[[], Seconds], chance: float, batch: int
) -> None:
    adaptive, plain = (time_of(machine, chance, batch, depth) for depth in (None, 0))
    best = min(time_of(machine, chance, batch, depth) for depth in (1, 3, 7))
    assert adaptive < 1.03 * plain
    if best < 0.8 * plain:  # worth having: had, and where costs are what the model has in mind, nearly all of it
        assert adaptive < (1.15 * best if machine in LIKE_THE_MODEL else 0.95 * plain)


@pytest.mark.parametrize("seconds", [0.8, 1.5, 3.0])
def test_the_loss_is_at_most_the_allowance_and_the_initial_balance(seconds: float) -> None:
    """Speculative steps that never gain a token, as often as the budget allows them."""
    budget, draw, lost, num_plain = SpeculationBudget(), random.Random(int(10 * seconds)), 0.0, 0
    for _ in range(20000):
        guesses = budget.measured(1) and budget.is_open(1)
        took = (seconds if guesses else 1.0) * draw.uniform(0.9, 1.1)
        budget.observe(StepWork(1, 0, 0, 50.0, guesses), took)
        lost += took - 1.0
        num_plain += not guesses
    assert lost < 0.012 * num_plain + INITIAL_SAVINGS + (NUM_DEPTH_STAGES - 1) * RETRY_SAVINGS + seconds
    assert (num_plain < 1000) == (seconds < 1)


def test_costs_at_one_batch_size_do_not_close_another() -> None:
    budget = SpeculationBudget()
    for _ in range(300):
        for num_rows, seconds in ((1, 1.0), (16, 5.0)):
            guesses = budget.measured(num_rows) and budget.is_open(num_rows)
            budget.observe(StepWork(num_rows, 0, num_rows * guesses, 50.0, guesses), seconds if guesses else 1.0)
    assert budget.is_open(1)
    assert not budget.is_open(16)


def test_speculation_that_did_not_pay_in_a_small_batch_starts_closed_in_a_larger_one() -> None:
    budget = SpeculationBudget()
    for _ in range(100):
        guesses = budget.measured(2) and budget.is_open(2)
        budget.observe(StepWork(2, 0, 0, 50.0, guesses), 2.0 if guesses else 1.0)
    assert not budget.is_open(2)
    assert not budget.is_open(8)
    assert budget.is_open(1)
    for _ in range(1000):  # what is put aside of these pays for a look in the end
        budget.observe(StepWork(8, 0, 0, 50.0, False), 1.0)
    assert budget.is_open(8)


def test_all_batch_sizes_together_begin_with_sixteen_plain_steps() -> None:
    budget, lost, num_plain = SpeculationBudget(), 0.0, 0
    for num_rows in (64, 32, 16, 8, 4, 2, 1):  # the larger ones first, which say nothing of smaller ones
        for _ in range(100):
            guesses = budget.measured(num_rows) and budget.is_open(num_rows)
            budget.observe(StepWork(num_rows, 0, 0, 50.0, guesses), 1.5 if guesses else 1.0)
            lost += 0.5 * guesses
            num_plain += not guesses
    assert lost < 0.01 * num_plain + 2 * INITIAL_SAVINGS + 7 * ((NUM_DEPTH_STAGES - 1) * RETRY_SAVINGS + 0.5)


def test_plain_steps_and_plain_prompts_recur_while_speculation_pays() -> None:
    budget, num_plain, num_plain_prompts = SpeculationBudget(), 0, 0
    for index in range(4000):
        prompt = 30 * (index % 10 == 0)
        guesses = budget.measured(2) and budget.is_open(2) and (budget.prompts_measured or not prompt)
        budget.observe(StepWork(2, prompt, 4 * guesses, 50.0, guesses), 1.5 + 0.01 * prompt)
        num_plain += not guesses and not prompt
        num_plain_prompts += not guesses and bool(prompt)
    assert 3 * (4000 // 195) <= num_plain < 80
    assert 400 // 17 <= num_plain_prompts < 40


def test_a_machine_that_gets_slower_is_measured_anew_within_some_steps() -> None:
    budget = SpeculationBudget()
    for _ in range(200):
        guesses = budget.measured(1) and budget.is_open(1)
        budget.observe(StepWork(1, 0, 2 * guesses, 50.0, guesses), 2.0 if guesses else 1.0)
    plain_at = []
    for index in range(60):  # three times as slow: a step that brings three tokens in 6 s is as good as it was
        guesses = budget.measured(1) and budget.is_open(1)
        budget.observe(StepWork(1, 0, 2 * guesses, 50.0, guesses), 6.0 if guesses else 3.0)
        plain_at += [] if guesses else [index]
    assert len(plain_at) == MIN_PLAIN_STEPS + 1  # the first after guesses does not count
    assert plain_at[0] < 10


def test_a_line_fits_its_points_and_follows_new_ones() -> None:
    for slope, start in ((0.0, 2.0), (0.5, 1.0), (-0.2, 30.0)):
        line, draw = DecayingLine(spread=1.0), random.Random(3)
        for _ in range(100):
            x = draw.uniform(0, 100)
            line.observe(x, start + slope * x)
        assert line.at(40.0) == pytest.approx(start + slope * 40, rel=0.02)
        for _ in range(100):
            x = draw.uniform(0, 100)
            line.observe(x, 3 * (start + slope * x))
        assert line.at(70.0) == pytest.approx(3 * (start + slope * 70), rel=0.05)


def test_a_proportional_line_with_one_point_goes_through_the_origin() -> None:
    line = DecayingLine(spread=16.0, proportional=True)
    line.observe(40.0, 2.0)
    assert line.at(40.0) == pytest.approx(2.0)
    assert line.at(80.0) == pytest.approx(4.0)
