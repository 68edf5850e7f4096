"""The scheduler and the cache without a model: workloads in virtual time, exact and repeatable.

The engine is make-believe: a sampled token is the row's own randomness, which is keyed by (seed, position), so every
schedule gives the same tokens. A step takes the time of a small model on a CPU. Messages are those that the frontend
sends for the same program.
"""

from __future__ import annotations

import heapq
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import count

from ramiform.bench.scheduling.programs import (
    Asked,
    End,
    Event,
    Fork,
    Gen,
    Join,
    Run,
    Say,
    Steps,
    Think,
    Together,
    Workload,
)
from ramiform.radix.cache import PrefixCache
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import EndStates, FromCore, Generate, RequestFailed, SoftPin, ToCore, Tokens
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, RowResult
from ramiform.runtime.scheduler.remote_prefixes import FetchPrefix
from ramiform.runtime.scheduler.scheduler import Scheduler, SchedulerCalls, VocabularyInfo

VOCABULARY = VocabularyInfo(32768, [b" word"] * 32768, frozenset())
STEP_SECONDS, TOKEN_SECONDS = 2e-3, 1e-4
AMPLE = 1 << 16  # pages


class NoGrammars:
    def get(self, constraint: object) -> object:
        raise NotImplementedError("workloads have no constraints")

    def release(self, constraint: object, future: object) -> None:
        raise NotImplementedError("workloads have no constraints")


class Program:
    """A program whose requests go to the scheduler, with the soft pins that a frontend would make."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self._simulation = simulation
        self._began = simulation.time.now
        self._name = f"program {number}"
        self._num_requests = 0
        self._ids: dict[int, list[int]] = {0: []}  # of each state
        self._num_inherited = {0: 0}
        # Of each state: who it descends from and has not yet spoken for, with what they held.
        self._ancestors: dict[int, list[tuple[int, int]]] = {0: []}

    def play(self, steps: Steps, then: Callable[[], None]) -> None:
        """Begin to play `steps`; `then` is called after the last one."""
        remaining = iter(steps)

        def go_on() -> None:
            for step in remaining:
                match step:
                    case Say(state, tokens):
                        self._ids[state] += tokens
                    case Fork(state, children):
                        self._fork(state, children)
                    case Join(state, children):
                        for child in children:
                            self._ids[state] += self._ids[child][self._num_inherited[child] :]
                    case End(states):
                        self._end(states)
                    case Gen(state, num_tokens):
                        return self._generate(state, num_tokens, go_on)
                    case Think(seconds):
                        return self._simulation.time.after(seconds, go_on)
                    case Together(branches):
                        return self._play_together(branches, go_on)
            return then()

        go_on()

    def _play_together(self, branches: Sequence[Steps], then: Callable[[], None]) -> None:
        left = count(len(branches) - 1, -1)
        for branch in branches:
            self.play(branch, lambda: None if next(left) else then())

    def _fork(self, state: int, children: Sequence[int]) -> None:
        for child in children:
            self._ids[child] = self._ids[state].copy()
            self._num_inherited[child] = len(self._ids[state])
            self._ancestors[child] = [*self._ancestors[state], (state, len(self._ids[state]))]

    def _end(self, states: Sequence[int]) -> None:
        for state in states:
            del self._ids[state]
        if not self._ids:
            self._simulation.job_times.append(self._simulation.time.now - self._began)
        self._simulation.send(EndStates(self._name, list(states) if self._ids else None))

    def _generate(self, state: int, num_tokens: int, then: Callable[[], None]) -> None:
        unmoved = [(number, held) for number, held in self._ancestors[state] if len(self._ids.get(number, ())) == held]
        self._ancestors[state] = []
        name = f"{self._name}, request {self._num_requests}"
        self._num_requests += 1

        def finish(output: list[int]) -> None:
            self._ids[state] += output
            then()

        seed = zlib.crc32(f"{self._name} {state}".encode())
        request = Generate(
            rid=name,
            tokens=self._ids[state].copy(),
            sampling=SamplingParams(max_new_tokens=num_tokens, ignore_eos=True, seed=seed),
            program=self._name,
            soft_pins=[*(SoftPin(number, held) for number, held in unmoved), SoftPin(state)],
        )
        self._simulation.submit(request, finish)


class VirtualTime:
    """What is due runs in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._serial), do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.at(self.now + seconds, do)

    @property
    def next_due(self) -> float:
        """Return when something is due; infinity if nothing is."""
        return self._due[0][0] if self._due else float("inf")

    def run_next(self) -> None:
        when, _, do = heapq.heappop(self._due)
        self.now = max(self.now, when)
        do()


def make_scheduler(
    config: CoreConfig,
    cache: PrefixCache,
    vocabulary: VocabularyInfo = VOCABULARY,
    fetch_prefix: FetchPrefix | None = None,
) -> Scheduler:
    """Make a scheduler of requests without constraints."""
    return Scheduler(
        config,
        cache=cache,
        vocabulary=vocabulary,
        grammars=NoGrammars(),
        context_length=1 << 20,
        calls=SchedulerCalls(lambda before, data: [], fetch_prefix=fetch_prefix),
    )


class VirtualCore(ABC):
    """One core's scheduler and cache with an engine that takes no time but virtual time."""

    def __init__(self, config: CoreConfig, cache: PrefixCache, vocabulary: VocabularyInfo = VOCABULARY) -> None:
        self.cache = cache
        self.time = VirtualTime()
        self._scheduler = make_scheduler(config, cache, vocabulary)

    def play(self) -> None:
        """Run until nothing is due or can be planned."""
        time, scheduler = self.time, self._scheduler
        while True:
            while time.next_due <= time.now:
                time.run_next()
            plan = scheduler.plan(time.now)
            self.take(scheduler.answers())
            if plan is not None:
                time.now += self.seconds_of(plan)
                self.take(scheduler.commit(plan, self.result_of(plan), time.now))
            elif time.next_due < float("inf"):
                time.now = max(time.now, time.next_due)
            else:
                return

    def send(self, message: ToCore) -> None:
        self.take(self._scheduler.handle(message, self.time.now))

    def seconds_of(self, plan: ForwardPlan) -> float:
        return STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens

    def result_of(self, plan: ForwardPlan) -> ForwardResult:
        return make_believe(plan)

    @abstractmethod
    def take(self, messages: Sequence[FromCore]) -> None:
        """Take what the scheduler answers."""


class Simulation(VirtualCore):
    """Plays workloads."""

    def __init__(self, config: CoreConfig, cache: PrefixCache) -> None:
        super().__init__(config, cache)
        self._requests: dict[str, Asked] = {}
        self._waiting: dict[str, Callable[[list[int]], None]] = {}
        self.peak_pages = 0  # in use or cached, at most
        self.events: list[Event] = []
        self.job_times: list[float] = []  # seconds of each program from begin to end, its pauses included
        self._started: set[str] = set()

    def play_workload(self, workload: Workload) -> None:
        """Play the whole workload. Raises AssertionError when something never ends."""
        waiting = iter(enumerate(workload.programs))

        def start_next() -> None:
            for number, steps in waiting:
                return Program(self, number).play(steps, start_next)

        for _ in range(workload.concurrency):
            start_next()
        self.play()
        assert not self._waiting, "requests without an answer"
        self.run = Run(list(self._requests.values()))

    def seconds_of(self, plan: ForwardPlan) -> float:
        for row in plan.rows:
            if row.rid not in self._started:  # else: it decodes, or had been retracted
                self._started.add(row.rid)
                self.events.append(("starts", self._requests[row.rid]))
        self.peak_pages = max(self.peak_pages, self.cache.num_pages - self.cache.num_free)
        return super().seconds_of(plan)

    def submit(self, request: Generate, then: Callable[[list[int]], None]) -> None:
        self._requests[request.rid] = Asked(request.tokens, self.time.now)
        self._waiting[request.rid] = then
        self.send(request)

    def take(self, messages: Sequence[FromCore]) -> None:
        for message in messages:
            assert not isinstance(message, RequestFailed), message
            if not isinstance(message, Tokens):
                continue
            request = self._requests[message.rid]
            if request.first_token is None:
                request.first_token = self.time.now
                request.num_cached = message.num_cached
            request.output.extend(message.ids)
            if message.finish is not None:
                self.events.append(("ends", request))
                self._waiting.pop(message.rid)(request.output)


def simulate(workload: Workload, config: CoreConfig, num_pages: int) -> Simulation:
    """Play a workload in a cache of `num_pages` pages."""
    simulation = Simulation(config, PrefixCache(num_pages, 16, strategy=config.eviction))
    simulation.play_workload(workload)
    return simulation


def quarter_of(ample: Simulation) -> int:
    """Return a quarter of the pages that a run with memory for everything used."""
    longest = max(len(request.computed) for request in ample.run.requests)
    return max(ample.peak_pages // 4, 2 * -(-longest // 16))  # or nothing could run beside the longest


def make_believe(plan: ForwardPlan) -> ForwardResult:
    rows = [
        RowResult(tokens=[] if row.sample is None else [row.sample.draw % VOCABULARY.vocab_size]) for row in plan.rows
    ]
    return ForwardResult(step=plan.step, rows=rows)
