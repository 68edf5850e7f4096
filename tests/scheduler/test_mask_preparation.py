"""Requests whose grammars have to work sit out until their masks are ready, and hold nobody up."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from ramiform.constrained.errors import GrammarError
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams
from ramiform.runtime.scheduler.rows import mask_preparation

from .fake_grammars import FakeGrammars, FakeMatcher
from .harness import Runtime, generate
from .sequential_run import assert_equal, sequential

LANGUAGE = [[2, 3, 4, 2, 3, 2], [2, 4, 5, 3, 2, 2], [3, 3, 2, 4, 4, 2], [3, 2, 2, 4, 4, 2]]
CONSTRAINED = generate("constrained", [2, 3, 3], constraint=Constraint("choices", json.dumps(LANGUAGE)))
both = pytest.mark.parametrize("ahead", [False, True], ids=["one by one", "ahead"])


class LazyGrammars(FakeGrammars):
    """Grammars whose threads do not run before `hurry`."""

    def __init__(self) -> None:
        super().__init__(luck=random.Random(0))
        self.is_lazy = True

    def work(self, share: float = 1.0) -> None:
        if not self.is_lazy:
            super().work()

    def hurry(self) -> None:
        self.is_lazy = False


since = [0]  # output tokens, from which on nothing is known beforehand


@pytest.fixture(autouse=True)
def nothing_is_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_unlucky(matcher: FakeMatcher) -> bool:
        return matcher.luck is not None and len(matcher.accepted) >= since[0]

    monkeypatch.setattr(FakeMatcher, "is_unlucky", is_unlucky)


def started(ahead: bool, first_lazy_token: int) -> tuple[Runtime, LazyGrammars]:
    """Run until the constrained request waits for a mask, and another request has ended."""
    since[0] = first_lazy_token
    grammars = LazyGrammars()
    runtime = Runtime(ahead=ahead, grammars=grammars, slow_masks=0, jump_forward=False)
    runtime.add(CONSTRAINED)
    grammars.compile()
    runtime.add(generate("free", [3] * 5, max_new_tokens=12, ignore_eos=True))
    while not runtime.answers["free"].over:
        runtime.step()
    return runtime, grammars


@both
@pytest.mark.parametrize("first_lazy_token", [0, 1, 3])
def test_a_request_sits_out_until_its_mask_is_ready(ahead: bool, first_lazy_token: int) -> None:
    runtime, grammars = started(ahead, first_lazy_token)
    answer = runtime.answers["constrained"]
    assert len(answer.ids) == first_lazy_token
    assert not answer.over
    num_steps = len(runtime.plans)
    assert not runtime.step()
    assert len(runtime.plans) == num_steps, "there is nothing to compute"
    if first_lazy_token:
        assert len(runtime.cache.leases) == 1, "it keeps its pages"
    grammars.hurry()
    runtime.finish()
    assert_equal(answer, sequential(CONSTRAINED))
    assert answer.num_retractions == 0
    assert not runtime.scheduler.pending_grammars


@both
@pytest.mark.parametrize("first_lazy_token", [0, 2])
def test_a_grammar_that_fails_at_work_fails_its_request_only(
    ahead: bool, first_lazy_token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(matcher: FakeMatcher, *, forced: bool) -> None:
        raise GrammarError("too many states")

    monkeypatch.setattr(FakeMatcher, "prepare", fail)
    runtime, grammars = started(ahead, first_lazy_token)
    grammars.hurry()
    runtime.add(generate("later", [3] * 4))
    runtime.finish()
    error = runtime.answers["constrained"].error
    assert (error.kind, error.code) == ("request", "too_complex")
    assert "too many states" in error.message
    assert runtime.answers["later"].finish is not None


@both
@pytest.mark.parametrize("first_lazy_token", [0, 2])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_request_may_be_aborted_while_its_grammar_works(ahead: bool, first_lazy_token: int, has_begun: bool) -> None:
    runtime, grammars = started(ahead, first_lazy_token)
    [(future, work)] = grammars.works
    if has_begun:
        assert future.set_running_or_notify_cancel()
    runtime.abort("constrained")
    assert runtime.answers["constrained"].over
    assert not runtime.scheduler.pending_grammars
    if has_begun:
        work()
        future.set_result(None)
        grammars.works.clear()
    grammars.hurry()
    runtime.finish()
    assert not runtime.cache.leases


@pytest.mark.parametrize("speculative", ["off", "ngram", "eagle"])
@pytest.mark.parametrize("jump_forward", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_step_calls_what_may_wait_for_a_thread(
    speculative: str, jump_forward: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar that a thread uses is locked. So steps call only what does not wait, also for drafts."""
    may_wait = False
    ready: dict[FakeMatcher, list[int]] = {}  # the output for which a mask is known
    accept, accept_at_once, is_ready, mask = (
        getattr(FakeMatcher, name) for name in ("accept", "accept_at_once", "is_ready", "mask")
    )
    work = FakeGrammars.work

    def checked_accept(matcher: FakeMatcher, token: int) -> bool:
        assert may_wait
        return bool(accept(matcher, token))

    def permitted(call: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal may_wait
        may_wait = True
        try:
            return call(*args, **kwargs)
        finally:
            may_wait = False

    def checked_is_ready(matcher: FakeMatcher, *, forced: bool, new_states: bool = False) -> bool:
        found = is_ready(matcher, forced=forced, new_states=new_states)
        if found and not (forced and matcher.forced()):  # a mask before forced text need not be known
            ready[matcher] = list(matcher.accepted)
        return bool(found)

    def checked_mask(matcher: FakeMatcher, out: Any) -> None:
        assert ready[matcher] == matcher.accepted
        mask(matcher, out)

    rng = random.Random(seed)
    monkeypatch.setattr(FakeMatcher, "is_unlucky", lambda matcher: rng.random() < 0.2)
    monkeypatch.setattr(FakeMatcher, "accept", checked_accept)
    monkeypatch.setattr(FakeMatcher, "accept_at_once", lambda *args, **flags: permitted(accept_at_once, *args, **flags))
    monkeypatch.setattr(FakeMatcher, "is_ready", checked_is_ready)
    monkeypatch.setattr(
        mask_preparation, "jump_forward", partial(permitted, mask_preparation.jump_forward)
    )  # its text is known
    monkeypatch.setattr(FakeMatcher, "mask", checked_mask)
    monkeypatch.setattr(FakeGrammars, "work", lambda *args: permitted(work, *args))
    language = [[2, 3, 4] * 6 + [2, end] for end in (2, 3, 4)] + [[2, 3, 4] * 3 + [3]]
    sent = generate(
        "constrained", [2, 3, 4, 2, 3, 4], constraint=Constraint("choices", json.dumps(language)), max_new_tokens=24
    )
    runtime = Runtime(slow_masks=seed, jump_forward=jump_forward, speculative=speculative, speculative_adaptive=False)
    runtime.add(sent)
    runtime.finish()
    for name, original in (
        ("accept", accept),
        ("accept_at_once", accept_at_once),
        ("is_ready", is_ready),
        ("mask", mask),
    ):
        monkeypatch.setattr(FakeMatcher, name, original)
    assert_equal(runtime.answers["constrained"], sequential(sent))
    if speculative != "off" and not jump_forward:
        assert any(row.parents is not None for plan in runtime.plans for row in plan.rows), "nothing was drafted"


@pytest.mark.parametrize("num_state_slots", [0, 4])
def test_text_that_is_forced_behind_a_token_with_its_log_probability_costs_no_second_pass(num_state_slots: int) -> None:
    since[0] = 99
    language = json.dumps([[2, *[3, 4, 5] * 2], [3, *[4, 5, 2] * 2]])
    message = replace(CONSTRAINED, logprobs=LogprobParams(num_top=1))
    message = replace(message, sampling=replace(message.sampling, constraint=Constraint("choices", language)))
    runtime = Runtime(slow_masks=0, num_state_slots=num_state_slots)
    runtime.add(message)
    runtime.grammars.compile()
    runtime.finish()
    answer = runtime.answers["constrained"]
    assert_equal(answer, sequential(message, context_length=200, num_slots=256))
    assert answer.num_retractions == 0
    assert runtime.engine.num_computed == len(message.tokens) + len(answer.ids) - 1
