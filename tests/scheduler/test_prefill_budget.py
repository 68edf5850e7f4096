"""Long prompts beside running streams and short prompts, as properties of any mix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.runtime.scheduler.batch import SHORT_PROMPT_SHARE, PrefillBudget

from .harness import Runtime, generate


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 5),
    st.lists(st.integers(2, 150), min_size=1, max_size=6),
    st.sampled_from([8, 16, 32]),
    st.booleans(),
)
def test_a_running_stream_is_in_every_plan_whatever_prompts_come(
    num_streams: int, prompts: list[int], budget: int, at_once: bool
) -> None:
    runtime = Runtime(num_pages=400, budget=budget, max_running=12)
    streams = [f"s{i}" for i in range(num_streams)]
    runtime.add(*(generate(rid, [2 + i] * 3, max_new_tokens=150, ignore_eos=True) for i, rid in enumerate(streams)))
    while not all(runtime.answers[rid].ids for rid in streams):
        runtime.step()
    for i, length in enumerate(prompts):
        runtime.add(generate(f"p{i}", [6 + i] * length, max_new_tokens=1))
        if not at_once:
            runtime.step()
    while not all(runtime.answers[f"p{i}"].over for i in range(len(prompts))):
        alive = [rid for rid in streams if not runtime.answers[rid].over]
        runtime.step()
        rows = {row.rid for row in runtime.plans[-1].rows}
        assert rows.issuperset(alive)
        assert runtime.plans[-1].num_tokens <= budget


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(200, 400), min_size=1, max_size=3), st.integers(1, 32), st.booleans())
def test_a_short_prompt_waits_a_bounded_number_of_chunks_behind_long_ones(
    long_prompts: list[int], length: int, is_late: bool
) -> None:
    runtime = Runtime(num_pages=600, budget=32, context_length=500)
    for i, num_tokens in enumerate(long_prompts):
        runtime.add(generate(f"long{i}", [2 + i] * num_tokens))
    if is_late:
        runtime.step()
    runtime.add(generate("short", [9] * length))
    num_steps = 0
    while not runtime.answers["short"].ids:
        runtime.step()
        num_steps += 1
    # Each long prompt ahead may use one step's reserve to start with.
    assert num_steps <= SHORT_PROMPT_SHARE + len(long_prompts)
    runtime.finish()


def test_tokens_that_no_other_request_can_use_go_to_the_long_prompt() -> None:
    runtime = Runtime(budget=32, max_running=1)
    runtime.add(generate("long", [2] * 100), generate("short", [3] * 4))
    runtime.step()
    runtime.step()
    assert [plan.num_tokens for plan in runtime.plans] == [32, 32]
    runtime.finish()


@given(st.integers(0, 200), st.lists(st.integers(2, 300), max_size=8), st.booleans())
def test_offers_never_exceed_the_budget_and_the_first_always_gets_some(
    num_left: int, prompts: list[int], contended: bool
) -> None:
    chunks = PrefillBudget(num_left, contended=contended)
    total = 0
    for place, length in enumerate(prompts):
        offered = chunks.offer(length)
        assert 0 <= offered <= min(length, num_left - total)
        assert offered or place or not num_left
        chunks.take(length, offered)
        total += offered
    assert chunks.num_left == num_left - total
