"""Guesses that do not pay stop within some steps and are retried rarely, on any machine, and go on where they pay.

Judges: simulated seconds of plain decoding and of the best fixed depth on the same machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from ramiform.runtime.scheduler.drafts.acceptance import Acceptance, AcceptanceRecords
from ramiform.runtime.scheduler.drafts.speculation_policy import (
    BAR_STEP,
    MAX_BAR,
    MIN_HEARD,
    MIN_PLAIN_STEPS,
    MIN_SCORE,
    MIN_SPEEDUP,
    PLAIN_INTERVAL,
    TRIAL_BALANCE,
    TRIAL_SHARE,
    UNTRIED_PAUSE,
    DecayingLine,
    SpeculationPolicy,
    StepWork,
)

from .simulated_machine import Decoding, Seconds, linear

LONG = 6000  # tokens of a request in the batch


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
@pytest.mark.parametrize(
    ("machine", "chance", "batch"),
    [
        pytest.param(machine, chance, [1, 6][(row + column) % 2], id=f"{machine.__name__}-{chance}")
        for row, machine in enumerate(LIKE_THE_MODEL + UNLIKE_THE_MODEL)
        for column, chance in enumerate([0.1, 0.5, 0.85])
    ],
)
def test_speculation_costs_less_than_three_percent_on_any_machine(
    machine: Callable[[], Seconds], chance: float, batch: int
) -> None:
    adaptive, plain = (time_of(machine, chance, batch, depth) for depth in (None, 0))
    best = min(time_of(machine, chance, batch, depth) for depth in (1, 3, 7))
    assert adaptive < 1.03 * plain
    if best < 0.6 * plain and machine in LIKE_THE_MODEL[:3]:  # where it is worth having, it is had
        assert adaptive < 1.15 * best


def step(num_rows: int, num_guesses: int, num_gained: int, *, prompt: int = 0, drafting: float = 0.0) -> StepWork:
    return StepWork(num_rows, prompt, num_guesses, num_gained, 50.0, num_guesses > 0, "free", drafting)


def play(
    policy: SpeculationPolicy,
    num_steps: int,
    seconds: Callable[[int], float],
    gained: int,
    num_rows: int = 1,
    drafting: float = 0.0,
) -> list[bool]:
    """Steps of given seconds by their number of guesses, each of which gains `gained` tokens a row, as often as the
    policy guesses; returns when it did."""
    guessed = []
    for _ in range(num_steps):
        guesses = 0
        if policy.may_guess(num_rows):
            guesses = sum(policy.num_to_verify(num_rows, [[0.9, 0.8, 0.7, 0.6]] * num_rows, 999))
        work = step(num_rows, guesses, num_rows * gained * (guesses > 0), drafting=drafting * (guesses > 0))
        policy.observe_step(work, seconds(guesses))
        guessed.append(guesses > 0)
    return guessed


@pytest.mark.parametrize("seconds", [1.5, 2.0, 5.0])
def test_guesses_that_gain_nothing_stop_within_some_steps_and_are_retried_rarely(seconds: float) -> None:
    draw = random.Random(int(10 * seconds))
    policy = SpeculationPolicy()
    guessed = play(policy, 20000, lambda guesses: (seconds if guesses else 1.0) * draw.uniform(0.9, 1.1), gained=0)
    lost = sum(guessed) * (seconds - 1.0)
    rounds = 1 + round(math.log(MAX_BAR / MIN_SPEEDUP, BAR_STEP))  # bars, which these guesses promise to pass
    assert sum(guessed[:120]) <= 1 + rounds * max(MIN_HEARD, TRIAL_BALANCE / (min(seconds, 4.0) - 1.0) + 1)
    assert lost < 0.005 * 20000
    assert any(guessed[1000:]), "never tried again"


def test_guesses_that_gain_go_on_and_plain_steps_recur() -> None:
    guessed = play(SpeculationPolicy(), 4000, lambda guesses: 1.5 if guesses else 1.0, gained=2)
    num_plain = len(guessed) - sum(guessed)
    assert 2 * (4000 // (PLAIN_INTERVAL + 2)) <= num_plain < 3 * (4000 // PLAIN_INTERVAL) + 3 * MIN_PLAIN_STEPS


def test_one_batch_size_does_not_close_another_that_is_smaller() -> None:
    policy = SpeculationPolicy()
    for _ in range(40):
        play(policy, 10, lambda guesses: 1.5 if guesses else 1.0, gained=2, num_rows=2)
        play(policy, 10, lambda guesses: 9.0 if guesses else 1.0, gained=0, num_rows=16, drafting=0.1)
    assert policy.is_open(2)
    assert not policy.is_open(16)
    assert not policy.is_open(32), "a larger one is not expected to gain more"


def closed_at(num_rows: int) -> SpeculationPolicy:
    """Return a policy by which drafts gained nothing in batches of `num_rows`."""
    policy = SpeculationPolicy()
    play(policy, 40, lambda guesses: 9.0 if guesses else 1.0, gained=0, num_rows=num_rows, drafting=0.1)
    assert not policy.is_open(num_rows)
    return policy


def test_the_rest_of_a_batch_that_did_not_pay_is_not_drafted_for_until_it_has_decoded_for_a_while() -> None:
    policy = closed_at(4)
    for num_rows in (3, 2, 1):
        assert not policy.is_open(num_rows)
        assert not any(play(policy, UNTRIED_PAUSE - 1, lambda _: 1.0, gained=0, num_rows=num_rows))
    guessed = play(policy, 2000, lambda guesses: 1.5 if guesses else 1.0, gained=2)
    assert sum(guessed) > 1000, "a single request gains"
    assert policy.is_open(1)
    assert not policy.is_open(4)


def test_a_size_that_was_tried_is_not_closed_with_a_larger_one() -> None:
    policy = SpeculationPolicy()
    play(policy, 40, lambda guesses: 1.5 if guesses else 1.0, gained=2, num_rows=2)
    play(policy, 40, lambda guesses: 9.0 if guesses else 1.0, gained=0, num_rows=8, drafting=0.1)
    assert policy.is_open(2)
    assert policy.is_open(4), "the next smaller one gains"


@pytest.mark.parametrize("prompt", [5.0, 40.0, 90.0])
def test_trials_that_read_long_prompts_are_rarer(prompt: float) -> None:
    """A draft model that never pays, and has to read the prompt at each trial: the first one is not known to be dear,
    and each of the others costs a share of what was decoded since."""
    policy, num_tokens = SpeculationPolicy(), 60 * 70
    lost = (draft_model(policy, 60, right=0, prompt=prompt) - 1) * num_tokens
    first = prompt + MIN_HEARD * 3.6
    assert lost < first + TRIAL_SHARE * num_tokens


def test_what_cannot_pay_by_its_times_is_not_tried_for_another_kind_of_text() -> None:
    """A step with four guesses, their making included, takes as long as six plain ones: the kind of text is no
    matter."""
    policy = SpeculationPolicy()
    play(policy, 40, lambda guesses: 6.0 if guesses else 1.0, gained=1, drafting=4.0)
    own = policy.records.begin(None, constrained=True)
    assert policy.may_guess(1, "constrained")
    assert policy.depths(1, [own], 7, "constrained") == [0]
    assert not policy.is_open(1, "constrained")


def test_a_machine_that_gets_slower_is_timed_anew_and_not_blamed_on_guesses() -> None:
    policy = SpeculationPolicy()
    play(policy, 300, lambda guesses: 1.5 if guesses else 1.0, gained=2)
    guessed = play(policy, 300, lambda guesses: 6.0 if guesses else 4.0, gained=2)
    assert sum(guessed) > 260


def test_as_many_guesses_are_verified_as_make_tokens_cheapest() -> None:
    chances = [[0.9, 0.8, 0.7, 0.5, 0.2, 0.1, 0.05], [0.3, 0.1]]
    for token, fixed in ((0.001, 0.0), (0.05, 0.3), (0.2, 0.0), (0.2, 0.7)):
        policy = SpeculationPolicy()
        for index in range(2 * MIN_PLAIN_STEPS + 40):
            guesses = 0 if index < MIN_PLAIN_STEPS + 1 else 1 + index % 9
            seconds = 1.0 + (fixed + token * guesses) * (guesses > 0)
            # A balance that is never used up: all guesses are right.
            policy.observe_step(step(2, guesses, 2 * guesses), seconds)
        counts = policy.num_to_verify(2, chances, 99)

        def speed(first: int, second: int, token: float = token, fixed: float = fixed) -> float:
            gained = 2 + sum(chances[0][:first]) + sum(chances[1][:second])
            return gained / (1 + token * (first + second) + fixed * (first + second > 0))

        best = max(speed(first, second) for first in range(8) for second in range(3))
        assert speed(*counts) == pytest.approx(best, rel=0.03)
        assert sum(policy.num_to_verify(2, chances, 1)) <= 1


def test_drafts_of_requests_that_accept_more_are_deeper() -> None:
    policy = SpeculationPolicy()
    for index in range(40):
        guesses = 0 if index <= MIN_PLAIN_STEPS else 7
        policy.observe_step(step(1, guesses, guesses), 1.0 + 0.15 * guesses)
    rates = [Acceptance(None, 0.9, 100 * chance, 100 * (1 - chance), 100.0) for chance in (0.9, 0.6, 0.1)]
    depths = [policy.depths(1, [rate], 7)[0] for rate in rates]
    assert depths[0] > depths[1] > depths[2]
    assert depths[2] <= 1


@pytest.mark.parametrize(("cost", "chance"), [(0.42, 0.87), (0.2, 0.7), (0.05, 0.5), (0.3, 0.95)])
def test_a_draft_is_as_deep_as_gives_the_most_tokens_a_second(cost: float, chance: float) -> None:
    policy = SpeculationPolicy()
    for index in range(60):
        guesses = 0 if index <= MIN_PLAIN_STEPS else 1 + index % 7
        policy.observe_step(step(1, guesses, guesses), 1.0 + cost * guesses)
    rate = Acceptance(None, 0.9, 100 * chance, 100 * (1 - chance), 100.0)

    def speed(depth: int) -> float:
        return sum(rate.chance() ** level for level in range(depth + 1)) / (1 + cost * depth)

    (depth,) = policy.depths(1, [rate], 7)
    assert speed(depth) >= 0.99 * max(map(speed, range(1, 8)))  # two depths may be as good


def test_a_path_is_drafted_as_long_as_it_is_likelier_right_than_a_guess_costs() -> None:
    """A guess costs 0.3 of a plain step, and steps lately gave five tokens in the time of 2.2: a guess that is likelier
    wrong than 0.3 * 5 / 2.2 slows them down, though it is cheaper than a plain step."""
    policy = SpeculationPolicy()
    for index in range(60):
        guesses = 0 if index <= MIN_PLAIN_STEPS else 1 + index % 7
        policy.observe_step(step(1, guesses, guesses), 1.0 + 0.3 * guesses)
    holds = Acceptance(None, 0.9, 100.0, 0.0, 100.0)
    assert policy.least_score(1, holds, 7) == pytest.approx(math.log(0.3 * 5 / 2.2), abs=0.1)
    fails = Acceptance(None, 0.9, 20.0, 80.0, 100.0)
    assert policy.least_score(1, fails, 7) > policy.least_score(1, holds, 7)
    assert SpeculationPolicy().least_score(1, holds, 7) == MIN_SCORE, "nothing is known yet"


def test_a_record_of_long_ago_counts_less() -> None:
    failed = Acceptance(Acceptance())
    for _ in range(10):
        failed.observe(3.0, 4, 0)
    failed.prior = Acceptance()
    assert failed.ratio(0) < 0.3 < 0.6 < failed.ratio(2000)
    assert failed.chance(0) < 0.2 < 0.5 < failed.chance(2000)


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
    line = DecayingLine()
    line.observe(40.0, 2.0)
    assert line.at(40.0) == pytest.approx(2.0)
    assert line.at(80.0) == pytest.approx(4.0)


def test_a_proportional_line_is_not_bent_by_noise_among_nearly_equal_points() -> None:
    line, draw = DecayingLine(), random.Random(1)
    for _ in range(100):
        x = 100 + draw.uniform(-8, 8)
        line.observe(x, 0.16 * x + draw.uniform(-3, 3))
        assert line.at(40) == pytest.approx(6.4, abs=1.5)
    for _ in range(50):
        for x in (10, 100):
            line.observe(x, 0.05 * x + 2)
    assert line.at(10) == pytest.approx(2.5, rel=0.3)


def test_a_session_s_record_is_where_its_next_request_begins() -> None:
    records = AcceptanceRecords()
    edits, chats = (records.begin(group, constrained=False) for group in ("edits", "chats"))
    for _ in range(20):
        edits.observe(6.0, 7, 7)
        chats.observe(4.0, 7, 0)
    assert records.begin("edits", constrained=False).chance() > 0.9
    assert records.begin("chats", constrained=False).chance() < 0.2
    assert 0.2 < records.begin(None, constrained=False).chance() < 0.9
    assert records.begin("edits", constrained=True).chance() == pytest.approx(0.7), "another kind of text"


def draft_model(policy: SpeculationPolicy, num_requests: int, right: int, prompt: float = 5.0) -> float:
    """Requests of a draft model: its first step drafts only, and reads the prompt; then seven guesses are verified in
    each, and the next ones made. Returns the time over that of plain decoding. Each request is some 70 tokens."""
    drafting, verifying, seconds, num_tokens = 2.3, 0.3, 0.0, 0
    for _ in range(num_requests):
        done, drafted, fresh = 0, False, True
        while done < 70:
            may = policy.may_guess(1)
            guesses = 7 * drafted
            drafts = may and policy.depths(1, [policy.records.begin(None, constrained=False)], 7)[0] > 0
            caught_up = prompt * (drafts and fresh)
            took = 1 + verifying * (guesses > 0) + drafting * drafts + caught_up
            gained = right * (guesses > 0)
            work = StepWork(1, 0, guesses, gained, 50.0, bool(guesses or drafts), "free", drafting * drafts, caught_up)
            if guesses:
                policy.observe_accepted(policy.records.begin(None, constrained=False), 6.0, 7, right)
            policy.observe_step(work, took)
            fresh, drafted = fresh and not drafts, drafts
            seconds, done = seconds + took, done + 1 + gained
        num_tokens += done
    return seconds / num_tokens


def test_a_draft_model_that_is_dear_at_first_is_heard_before_it_is_judged() -> None:
    """Seven tokens a step of 3.6 times a plain one's time. The prompt alone takes more than a trial may lose."""
    policy = SpeculationPolicy()
    assert draft_model(policy, 40, right=6) < 0.75
    assert [(state.open, state.gain > 1.3) for state in policy.states] == [(True, True)]
    assert policy.changes() == []


def test_a_draft_model_that_does_not_pay_is_closed_with_a_reason() -> None:
    policy = SpeculationPolicy()
    assert draft_model(policy, 100, right=1) < 1.03
    [change] = policy.changes()
    assert (change.kind, change.num_rows, change.open) == ("free", 1, False)
    assert change.gain < 1
    assert change.why
    assert policy.changes() == []


def test_what_does_not_pay_for_free_texts_may_pay_for_constrained_ones() -> None:
    policy = SpeculationPolicy()
    play(policy, 100, lambda guesses: 3.0 if guesses else 1.0, gained=0, drafting=0.1)
    assert not policy.is_open(1, "free")
    assert policy.is_open(1, "constrained")
    assert policy.may_guess(1, "constrained"), "plain steps are about the same"
    assert policy.is_open(1, "mixed")


def test_guesses_from_texts_that_were_wrong_at_first_are_not_closed_for_those_that_promise_more() -> None:
    """Short matches are wrong, long ones right: the former are left out, the latter verified."""
    policy, own, gained, num_steps = SpeculationPolicy(), AcceptanceRecords().begin(None, constrained=True), 0, 400
    for index in range(num_steps):
        is_long = index % 4 == 0
        chain = [-0.02 * level if is_long else -0.6 * level for level in range(1, 8)]
        count = 0
        if policy.may_guess(1):
            [count] = policy.num_to_verify(1, [[policy.probability(own, score) for score in chain]], 99)
        right = count if is_long else 0
        if count:
            policy.observe_accepted(own, sum(math.exp(score) for score in chain[:count]), count, right)
        policy.observe_step(step(1, count, right), 1.0 + 0.23 * count)
        gained += right
    assert gained > 0.8 * 7 * num_steps / 4
