"""Scheduler, cache and a fake engine, one step at a time, with checks in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramiform.radix.cache import Lease, PrefixCache
from ramiform.radix.window_pages import WindowPages, WindowSizes
from ramiform.runtime.core.pipeline import Pipeline
from ramiform.runtime.protocol.config import CoreConfig, EvictionName, OrderName
from ramiform.runtime.protocol.core import Abort, Finish, FromCore, Generate, Hold, Pause, RequestFailed, Tokens
from ramiform.runtime.protocol.sampling import SamplingParams, TokenLogprob
from ramiform.runtime.scheduler.jump_forward import Retokenise
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, SamplingPlan
from ramiform.runtime.scheduler.scheduler import Scheduler, SchedulerCalls
from ramiform.tests.radix.invariants import check_invariants

from .fake_engine import FakeEngine, FakeLaunched
from .fake_grammars import FakeGrammars
from .fake_model import VOCABULARY, retokenise


class WatchedCache(PrefixCache):
    """A prefix cache that records its live leases and checks its invariants after every operation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.leases: list[Lease] = []

    def check(self) -> None:
        check_invariants(self, self.leases)

    def acquire(self, *args: Any, **kwargs: Any) -> Lease | None:
        lease = super().acquire(*args, **kwargs)
        if lease is not None:
            self.leases.append(lease)
        self.check()
        return lease

    def release(self, lease: Lease, tokens: Sequence[int]) -> None:
        super().release(lease, tokens)
        self.leases.remove(lease)
        self.check()

    def discard(self, lease: Lease) -> None:
        super().discard(lease)
        self.leases.remove(lease)
        self.check()


@dataclass
class Answer:
    """Everything received for one request."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    embedding: list[float] | None = None
    finish: Finish | None = None
    num_cached: int | None = None
    num_retractions: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    num_messages: int = 0
    num_passes: int = 0
    error: Any = None

    @property
    def over(self) -> bool:
        return self.finish is not None or self.error is not None


class Runtime:
    """Scheduler and engine, one step at a time, with checks in between."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        budget: int = 32,
        max_running: int = 8,
        max_waiting: int = 100,
        cache: bool = True,
        context_length: int = 200,
        order: OrderName = "program",
        eviction: EvictionName = "program",
        num_host_pages: int = 0,
        num_state_slots: int = 0,
        windows: WindowSizes | None = None,
        grammars: Any = None,
        jump_forward: bool = True,
        retokenise: Retokenise = retokenise,
        ahead: bool = False,
        slow_masks: int | None = None,
        continuous: bool = False,
        widened_from: int = 0,
        **speculative: Any,
    ) -> None:
        self.cache = WatchedCache(
            num_pages,
            page_size,
            cache,
            num_host_pages=num_host_pages,
            num_state_slots=num_state_slots,
            windows=None if windows is None else WindowPages(windows, page_size),
            strategy=eviction,
        )
        self.engine = FakeEngine(page_size)
        if continuous:
            self.engine.pace = 1e-4  # so that several decode steps fit into a plan
        self.engine.states = {} if num_state_slots else None
        self.engine.windows = windows
        self.retokenise = retokenise
        luck = None if slow_masks is None else random.Random(slow_masks)
        self.grammars = grammars or FakeGrammars(luck=luck)
        self.works_slowly = luck is not None
        self.config = CoreConfig(
            prefill_budget=budget,
            max_running=max_running,
            max_waiting=max_waiting,
            order=order,
            eviction=eviction,
            jump_forward=jump_forward,
            **speculative,
        )
        self.scheduler = Scheduler(
            self.config,
            cache=self.cache,
            vocabulary=VOCABULARY,
            grammars=self.grammars,
            context_length=context_length,
            calls=SchedulerCalls(
                lambda before, data: self.retokenise(before, data), self.grammars.prepare if self.works_slowly else None
            ),
            continuous=continuous and not ahead,
            widened_from=widened_from,
        )
        self.widened_from = widened_from
        self.num_prompt: dict[str, int] = {}
        self.widened: dict[str, bool] = {}  # whether the prompts of requests are
        self.pipeline = Pipeline(self, self.scheduler, ahead=ahead, clock=lambda: self.engine.now)
        self.launched: list[FakeLaunched] = []
        self.num_waited = 0
        self.aborts_in_flight: Sequence[str] = ()
        self.answers: dict[str, Answer] = {}
        self.plans: list[ForwardPlan] = []
        self.replies: list[FromCore] = []
        self.is_paused = False

    def add(self, *messages: Generate, owner: bytes = b"") -> None:
        for message in messages:
            self.answers[message.rid], self.num_prompt[message.rid] = Answer(), len(message.tokens)
            self.take(self.scheduler.handle(message, 0.0, owner))

    def abort(self, rid: str | None, owner: bytes = b"") -> None:
        self.take(self.scheduler.handle(Abort(rid), 0.0, owner))
        self.cache.check()

    def pause(self, hold: Hold) -> None:
        self.scheduler.handle(Pause(0, hold), 0.0)
        self.is_paused = hold != "nothing"

    def step(self, aborts_in_flight: Sequence[str] = ()) -> bool:
        """Run one step. Returns True if anything was computed."""
        num_plans, num_waited = len(self.plans), self.num_waited
        self.aborts_in_flight = aborts_in_flight
        if self.works_slowly:
            self.grammars.work(0.5)
        for answers in self.pipeline.advance():
            self.cache.check()
            self.take(answers)
        if self.scheduler.idle and not self.is_paused:
            assert not self.cache.leases
            assert self.cache.num_free + self.cache.num_cached == self.cache.num_pages
        return len(self.plans) > num_plans or self.num_waited > num_waited

    def launch(self, plan: ForwardPlan) -> Runtime:
        """Launch a plan, as the engine does, and record it."""
        assert 0 < plan.num_tokens <= self.config.prefill_budget
        assert len(plan.rows) <= self.config.max_running
        self.check_widened(plan)
        self.plans.append(plan)
        self.launched.append(self.engine.launch(plan))
        return self

    def check_widened(self, plan: ForwardPlan) -> None:
        """Widened rows come last, and a request's are those of its prompt and of what is forced behind it, all or
        none."""
        kinds = [row.widened for row in plan.rows]
        assert kinds == sorted(kinds)
        for row in plan.rows:
            num_prompt = self.num_prompt[row.rid]
            if row.first_position < num_prompt:
                if row.rid not in self.widened:
                    num_missing = num_prompt - row.first_position
                    self.widened[row.rid] = 0 < self.widened_from <= num_missing
                assert row.widened == self.widened[row.rid]
            if row.widened:
                assert self.widened[row.rid]
                assert not self.answers[row.rid].ids
                assert row.parents is None
                assert plan.num_decodes == 1

    def sample(self, sampling: SamplingPlan) -> None:
        self.launched[-1].sample(sampling)

    def wait(self) -> ForwardResult:
        for rid in self.aborts_in_flight:
            self.abort(rid)
        self.num_waited += 1
        return self.launched[self.num_waited - 1].wait()

    def finish(self) -> None:
        """Run until idle. Each step must move something: there is nothing to wait for."""
        while not self.scheduler.idle or self.scheduler.pending_grammars:
            self.grammars.compile()
            self.progress()

    def progress(self) -> None:
        over = sum(answer.over for answer in self.answers.values())
        waits = self.works_slowly and bool(self.scheduler._following)
        assert (
            self.step() or waits or sum(answer.over for answer in self.answers.values()) > over or self.scheduler.idle
        )

    def take(self, messages: list[FromCore]) -> None:
        for message in messages:
            match message:
                case Tokens():
                    self.take_tokens(self.answers[message.rid], message)
                case RequestFailed(rid=rid, error=error):
                    assert not self.answers[rid].over
                    self.answers[rid].error = error
                case _:
                    self.replies.append(message)

    def take_tokens(self, answer: Answer, message: Tokens) -> None:
        assert not answer.over, "tokens after the end"
        answer.num_messages += 1
        answer.ids += message.ids
        answer.finish = message.finish
        if message.logprobs is not None:
            assert len(message.logprobs) == len(message.ids)
            answer.logprobs = (answer.logprobs or []) + message.logprobs
        if message.prompt_logprobs is not None:
            assert answer.num_messages == 1, "the prompt's come with the first tokens"
            answer.prompt_logprobs = message.prompt_logprobs
        if message.embedding is not None:
            assert message.finish is not None
            answer.embedding = np.frombuffer(message.embedding, "<f4").tolist()
        assert answer.num_cached in (None, message.num_cached)
        answer.num_cached = message.num_cached
        answer.num_retractions = message.num_retractions
        answer.num_passes = message.num_passes
        answer.accepted_lengths = list(message.accepted_lengths)  # as of now: it will be sent


def generate(rid: str, tokens: Sequence[int], **params: Any) -> Generate:
    """Make a request; parameters that are no fields of Generate are sampling parameters."""
    names = set(Generate.__struct_fields__) - {"rid", "tokens", "sampling", "logprobs"}
    fields = {name: params.pop(name) for name in names if name in params}
    logprobs = params.pop("logprobs", None)
    params = {"temperature": 0.0, "max_new_tokens": 8, "seed": 7, **params}
    return Generate(rid=rid, tokens=list(tokens), sampling=SamplingParams(**params), logprobs=logprobs, **fields)
