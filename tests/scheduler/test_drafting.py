"""Drafts have the lowest rank in a step, and save passes. The fake engine's drafts are random trees."""

from __future__ import annotations

import json
import random
from itertools import zip_longest

import pytest

from ramiform.runtime.protocol.sampling import Constraint
from ramiform.runtime.scheduler.drafts.speculation_policy import Change, SpeculationPolicy, StepWork
from ramiform.runtime.scheduler.plan import ForwardPlan

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


def test_a_requests_accepted_lengths_come_with_its_end_and_add_up() -> None:
    runtime, _ = play(**ALWAYS)
    lengths = [answer.accepted_lengths for answer in runtime.answers.values()]
    assert sum(map(bool, lengths)) > len(lengths) // 2
    total = [sum(column) for column in zip_longest(*lengths, fillvalue=0)]
    assert total == runtime.scheduler.stats().accepted_lengths


def test_outputs_of_requests_that_ended_are_drafts_for_others() -> None:
    settings = {"speculative": "suffix", "speculative_adaptive": False}
    for namespace, saved in (("ours", True), ("theirs", False)):
        runtime = Runtime(**settings)
        prompt = list(range(2, 12))
        runtime.add(generate("first", prompt, max_new_tokens=40, ignore_eos=True, namespace="ours"))
        runtime.finish()
        num_before = len(runtime.plans)
        runtime.add(generate("second", prompt, max_new_tokens=40, ignore_eos=True, namespace=namespace))
        runtime.finish()
        assert runtime.answers["first"].ids == runtime.answers["second"].ids
        assert (len(runtime.plans) - num_before < 15) == saved


def test_aborted_and_retracted_requests_leave_nothing_in_the_suffix_index() -> None:
    runtime = Runtime(num_pages=14, speculative="suffix", speculative_adaptive=False)
    for index, prompt in enumerate(prompts(6)):
        runtime.add(generate(f"r{index}", prompt, max_new_tokens=24, ignore_eos=True, seed=index))
    for _ in range(12):
        runtime.progress()
    runtime.abort("r0")
    runtime.finish()
    assert runtime.scheduler.stats().num_retractions > 0
    suffixes = runtime.scheduler._drafting._suffixes
    assert suffixes is not None
    assert not suffixes._live
    assert len(suffixes._ended) <= 6


def test_each_change_is_a_line_of_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    changes = [
        [Change("free", 4, open=False, why="its steps cost more than they gained", gain=0.82)],
        [Change("constrained", 1, open=True, why="it gains", gain=1.4)],
    ]
    monkeypatch.setattr(SpeculationPolicy, "changes", lambda self: changes.pop(0) if changes else [])
    with caplog.at_level("INFO", "ramiform.core"):
        play(speculative="suffix")
    assert [record.getMessage() for record in caplog.records] == [
        "speculation (suffix) closes for free texts, 4 at once: its steps cost more than they gained, "
        "0.82 times plain decoding lately",
        "speculation (suffix) opens for constrained texts, 1 at once: it gains, 1.40 times plain decoding lately",
    ]


def test_a_prompt_s_step_counts_as_the_kind_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing decodes when the step begins: a schema's drafts were charged to free texts, which were closed by them."""
    kinds: list[str] = []
    observe = SpeculationPolicy.observe_step

    def record(self: SpeculationPolicy, work: StepWork, seconds: float, count: int = 1) -> None:
        kinds.append(work.kind)
        observe(self, work, seconds, count)

    monkeypatch.setattr(SpeculationPolicy, "observe_step", record)
    runtime = Runtime(speculative="draft", speculative_draft_model="any")
    for index in range(3):
        constraint = Constraint("choices", json.dumps([[5, 6, 7] * 6])) if index < 2 else None
        runtime.add(generate(f"r{index}", [3, 4, 5], max_new_tokens=12, constraint=constraint))
        runtime.finish()
        assert set(kinds) == {"free" if constraint is None else "constrained"}
        kinds.clear()


def test_a_step_in_which_several_requests_start_is_one_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculation is closed for four at once: a draft model read their prompts all the same, as those of one."""
    monkeypatch.setattr(SpeculationPolicy, "is_open", lambda self, num_rows, kind="free": num_rows < 4)
    runtime = Runtime(speculative="draft", speculative_draft_model="any")
    for index in range(4):
        runtime.add(generate(f"r{index}", [3 + index, 4, 5], max_new_tokens=4, ignore_eos=True))
    runtime.finish()
    assert len(runtime.plans[0].rows) == 4
    assert not runtime.plans[0].followed
