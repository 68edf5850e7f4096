"""The scheduler and the cache without a model: workloads in virtual time, exact and repeatable.

The engine is make-believe: a sampled token is the row's own randomness, which is keyed by (seed, position), so every
schedule gives the same tokens. A step takes the time of a small model on a CPU. Messages are those that the frontend
sends for the same program.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from ramiform.radix.cache import PrefixCache
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import EndStates, FromCore, Generate, RequestFailed, SoftPin, Tokens
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, RowResult
from ramiform.runtime.scheduler.scheduler import Scheduler, VocabularyInfo

from .programs import Asked, Event, Run, States, Workload, play_all

VOCABULARY = VocabularyInfo(32768, [b" word"] * 32768, frozenset())
STEP_SECONDS, TOKEN_SECONDS = 2e-3, 1e-4
AMPLE = 1 << 16  # pages


class NoGrammars:
    def get(self, constraint: object) -> object:
        raise NotImplementedError("workloads have no constraints")

    def release(self, constraint: object, future: object) -> None:
        raise NotImplementedError("workloads have no constraints")


class Program(States):
    """A program whose requests go to the scheduler, with the claims that a frontend would make."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        super().__init__()
        self._simulation = simulation
        self._began = simulation.now
        self._name = f"program {number}"
        self._num_requests = 0
        # Of each state: who it descends from and has not yet spoken for, with what they held.
        self._ancestors: dict[int, list[tuple[int, int]]] = {0: []}

    def fork(self, state: int, children: Sequence[int]) -> None:
        super().fork(state, children)
        for child in children:
            self._ancestors[child] = [*self._ancestors[state], (state, len(self.ids[state]))]

    def end(self, states: Sequence[int]) -> None:
        super().end(states)
        if not self.ids:
            self._simulation.job_times.append(self._simulation.now - self._began)
        self._simulation.send(EndStates(self._name, list(states) if self.ids else None))

    def generate(self, state: int, num_tokens: int, then: Callable[[], None]) -> None:
        unmoved = [(number, held) for number, held in self._ancestors[state] if len(self.ids.get(number, ())) == held]
        self._ancestors[state] = []
        name = f"{self._name}, request {self._num_requests}"
        self._num_requests += 1

        def finish(output: list[int]) -> None:
            self.ids[state] += output
            then()

        self._simulation.submit(
            Generate(
                rid=name,
                tokens=self.ids[state].copy(),
                sampling=SamplingParams(
                    max_new_tokens=num_tokens, ignore_eos=True, seed=zlib.crc32(f"{self._name} {state}".encode())
                ),
                program=self._name,
                claims=[*(SoftPin(number, held) for number, held in unmoved), SoftPin(state)],
            ),
            finish,
        )

    def think(self, seconds: float, then: Callable[[], None]) -> None:
        self._simulation.after(seconds, then)


class Simulation:
    """One core's scheduler and cache with an engine that takes no time but virtual time."""

    def __init__(self, config: CoreConfig, cache: PrefixCache) -> None:
        self._cache = cache
        self._scheduler = Scheduler(
            config,
            cache=cache,
            vocabulary=VOCABULARY,
            grammars=NoGrammars(),
            context_length=1 << 20,
            retokenise=lambda before, data: [],  # nothing here is constrained
        )
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._requests: dict[str, Asked] = {}
        self._waiting: dict[str, Callable[[list[int]], None]] = {}
        self.peak_pages = 0  # in use or cached, at most
        self.events: list[Event] = []
        self.job_times: list[float] = []  # seconds of each program from begin to end, its pauses included
        self._started: set[str] = set()

    def run(self, workload: Workload) -> Run:
        """Play the whole workload. Raises AssertionError when something never ends."""
        play_all(workload, lambda number: Program(self, number))
        while True:
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            plan = self._scheduler.plan(self.now)
            self._take(self._scheduler.answers())
            if plan is not None:
                for row in plan.rows:
                    if row.rid not in self._started:  # else: it decodes, or had been retracted
                        self._started.add(row.rid)
                        self.events.append(("starts", self._requests[row.rid]))
                self.now += STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens
                self.peak_pages = max(self.peak_pages, self._cache.num_pages - self._cache.num_free)
                self._take(self._scheduler.commit(plan, make_believe(plan), self.now))
            elif self._timers:
                self.now = self._timers[0][0]
            else:
                break
        assert not self._waiting, "requests without an answer"
        return Run(list(self._requests.values()), self.now)

    def send(self, message: EndStates | Generate) -> None:
        self._take(self._scheduler.handle(message, self.now))

    def submit(self, request: Generate, then: Callable[[list[int]], None]) -> None:
        self._requests[request.rid] = Asked(request.tokens, self.now)
        self._waiting[request.rid] = then
        self.send(request)

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._serial), then))

    def _take(self, messages: Sequence[FromCore]) -> None:
        for message in messages:
            assert not isinstance(message, RequestFailed), message
            if not isinstance(message, Tokens):
                continue
            request = self._requests[message.rid]
            if request.first_token is None:
                request.first_token = self.now
                request.num_cached = message.num_cached
            request.output.extend(message.ids)
            if message.finish is not None:
                self.events.append(("ends", request))
                self._waiting.pop(message.rid)(request.output)


@dataclass(frozen=True)
class Simulated:
    run: Run
    events: list[Event]
    peak_pages: int  # in use or cached, at most
    job_times: list[float]  # seconds of each program, its pauses included


def simulate(workload: Workload, config: CoreConfig, num_pages: int) -> Simulated:
    """Play a workload in a cache of `num_pages` pages."""
    simulation = Simulation(config, PrefixCache(num_pages, strategy=config.eviction))
    return Simulated(simulation.run(workload), simulation.events, simulation.peak_pages, simulation.job_times)


def quarter_of(ample: Simulated) -> int:
    """Return a quarter of the pages that a run with memory for everything used."""
    longest = max(len(request.computed) for request in ample.run.requests)
    return max(ample.peak_pages // 4, 2 * -(-longest // 16))  # or nothing could run beside the longest


def make_believe(plan: ForwardPlan) -> ForwardResult:
    rows = [
        RowResult(tokens=[] if row.sample is None else [row.sample.draw % VOCABULARY.vocab_size]) for row in plan.rows
    ]
    return ForwardResult(step=plan.step, rows=rows)
