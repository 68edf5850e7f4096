"""Requests whose tokens may be sent many at a time. Judge: the same request, one token at a time."""

from __future__ import annotations

import pytest

from ramiform.runtime.protocol.sampling import LogprobParams
from ramiform.runtime.scheduler import apply_result

from .harness import Runtime, generate
from .sequential_run import assert_equal, sequential


@pytest.fixture(autouse=True)
def five_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_result, "BULK_TOKENS", 5)


@pytest.mark.parametrize("logprobs", [None, LogprobParams(num_top=1, prompt_from=0)], ids=["plain", "logprobs"])
def test_tokens_come_in_bulk_and_the_first_at_once_with_the_prompts_scores(logprobs: LogprobParams | None) -> None:
    request = generate("r", [2, 3, 4], max_new_tokens=13, ignore_eos=True, in_bulk=True, logprobs=logprobs)
    runtime = Runtime()
    runtime.add(request)
    lengths = []
    while not runtime.answers["r"].over:
        runtime.step()
        lengths.append(len(runtime.answers["r"].ids))
    assert sorted({*lengths} - {0}) == ([5, 10, 13] if logprobs is None else [1, 6, 11, 13])
    assert_equal(runtime.answers["r"], sequential(request))


def test_an_abort_sends_the_tokens_that_were_held_back() -> None:
    request = generate("r", [2, 3, 4], max_new_tokens=30, ignore_eos=True, in_bulk=True, logprobs=LogprobParams())
    runtime = Runtime()
    runtime.add(request)
    for _ in range(9):
        runtime.step()
    answer, expected = runtime.answers["r"], sequential(request)
    assert len(answer.ids) == 5
    runtime.step(aborts_in_flight=["r"])  # the tenth is not computed to its end
    assert answer.ids == expected.ids[:9]
    assert len(answer.logprobs or ()) == 9
    assert runtime.scheduler.stats().num_output_tokens == 9
