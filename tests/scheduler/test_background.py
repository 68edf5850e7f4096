"""Requests that nobody waits for, beside live ones. Judge of their outputs: each request alone."""

from __future__ import annotations

import pytest

from ramiform.runtime.protocol.core import BACKGROUND_PRIORITY
from ramiform.runtime.scheduler import background
from ramiform.runtime.scheduler.background import BackgroundPace

from .harness import Runtime, generate
from .sequential_run import assert_equal, sequential

LOW = {"priority": BACKGROUND_PRIORITY, "ignore_eos": True}


def rows(number: int, prompt: int, output: int) -> list:  # type: ignore[type-arg]
    return [generate(f"row {n}", [2 + n % 3] * prompt, max_new_tokens=output, seed=n, **LOW) for n in range(number)]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("sizes", [{"num_pages": 16}, {"max_running": 4}], ids=["pages", "places"])
def test_a_live_request_starts_at_once_and_every_output_is_what_it_is_alone(sizes: dict[str, int], ahead: bool) -> None:
    """Rows take all pages or places; what each computes again changes nothing."""
    runtime = Runtime(**sizes, ahead=ahead)
    mix = rows(4, 6, 30)
    runtime.add(*mix)
    for _ in range(8):
        runtime.step()
    live = generate("live", [5] * 20, max_new_tokens=6, ignore_eos=True)
    runtime.add(live, owner=b"another frontend")
    num_plans = len(runtime.plans)
    runtime.finish()
    assert any(row.rid == "live" for plan in runtime.plans[num_plans : num_plans + 2] for row in plan.rows)
    assert runtime.answers["live"].num_retractions == 0
    assert sum(answer.num_retractions for answer in runtime.answers.values()) > 0
    for message in [*mix, live]:
        assert_equal(runtime.answers[message.rid], sequential(message))


def test_a_live_request_that_fits_retracts_nobody() -> None:
    runtime = Runtime()
    runtime.add(*rows(4, 6, 30))
    runtime.step()
    runtime.add(generate("live", [5] * 20, max_new_tokens=6, ignore_eos=True))
    runtime.finish()
    assert runtime.scheduler.stats().num_retractions == 0


def test_beside_a_live_request_one_row_goes_on_and_none_while_its_prompt_is_computed() -> None:
    runtime = Runtime(num_pages=128, budget=24)
    runtime.add(*rows(3, 60, 20))
    runtime.step()
    runtime.add(generate("live", [5] * 80, max_new_tokens=12, ignore_eos=True))
    first = len(runtime.plans)
    while not runtime.answers["live"].over:
        runtime.step()
    plans = runtime.plans[first:]
    for index, plan in enumerate(plans):
        low = [row for row in plan.rows if row.rid != "live"]
        prompts = [row for row in plan.rows if row.rid == "live" and len(row.tokens) > 1]
        if index:  # the step in which the live one starts was shared out before
            assert len(low) <= (0 if prompts else 1)
        assert sum(len(row.tokens) for row in low) <= background.MIN_TOKENS
    assert any(row.rid != "live" for plan in plans[1:] for row in plan.rows)
    runtime.finish()


def test_a_live_request_does_not_wait_for_a_prefix_that_a_row_computes() -> None:
    runtime = Runtime(num_pages=128, budget=24)
    runtime.add(generate("row", [3] * 100, max_new_tokens=2, **LOW))
    runtime.step()
    runtime.add(generate("live", [3] * 90, max_new_tokens=2, ignore_eos=True))
    while not runtime.answers["live"].over:
        runtime.step()
    assert not runtime.answers["row"].over
    runtime.finish()


def test_what_rows_leave_in_the_cache_goes_before_what_live_requests_leave() -> None:
    runtime = Runtime(num_pages=32)
    runtime.add(generate("live", [5] * 40, max_new_tokens=1, ignore_eos=True))
    runtime.finish()
    for n in range(20):
        runtime.add(generate(f"row {n}", [2] * 4 + [6 + n % 3, 2 + n // 3] * 8, max_new_tokens=2, **LOW))
        runtime.finish()
    runtime.add(generate("again", [5] * 40, max_new_tokens=1, ignore_eos=True))
    runtime.finish()
    assert runtime.answers["again"].num_cached == 39


def test_steps_are_short_for_a_while_after_a_live_request() -> None:
    class Step:
        num_tokens, seconds, num_decodes = 1000, 0.2, 1

    pace = BackgroundPace()
    pace.observe(Step, Step)  # type: ignore[arg-type]
    assert pace.share(0.0, has_live=False).offer(4000) == 4000
    assert pace.share(5.0, has_live=True).offer(4000) == background.MIN_TOKENS
    share = pace.share(6.0, has_live=False)
    assert share.offer(4000) == 50  # 10 milliseconds, at 0.2 each
    share.take(30)
    assert share.extend(4000) == 20
    assert pace.share(5.0 + background.LIVELY_SECONDS, has_live=False).offer(4000) == 4000
