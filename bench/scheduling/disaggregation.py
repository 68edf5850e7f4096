"""Compares prefill and decode apart with equal replicas: the time between tokens, by simulated step costs.

    python -P bench/scheduling/disaggregation.py [--out FILE]

Streams decode; bursts of long prompts arrive. Two replicas that do both, each with half of all requests, are compared
with a prefill and a decode replica. Scheduler, prefix cache and transfers are the runtime's own; a step takes
`--step-ms` plus `--prefill-us` per prompt token and `--decode-us` per decode row, and pages take the link's time.
Messages are handled between steps, as in the core.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import torch
import typer

from ramiform.bench.harness import Out, report, table
from ramiform.bench.scheduling.simulation import VOCABULARY, VirtualTime, make_believe, make_scheduler
from ramiform.radix.cache import PrefixCache
from ramiform.runtime.engine.kv_pool import KvShape
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import FromCore, Generate, RequestFailed, Tokens
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.plan import ForwardPlan, PageCopy, Row
from ramiform.runtime.transfer.exporter import PrefixExporter
from ramiform.runtime.transfer.fetcher import PrefixFetcher
from ramiform.runtime.transfer.messages import CancelFetch, FetchEnded, FetchPrefix, PagesSent, PagesTaken
from ramiform.runtime.transfer.pages import CachePages

LLAMA_8B = KvShape(num_layers=32, num_kv_heads=8, head_bytes=256, scales="none")  # 2 MiB a page in bfloat16
LATENCY = 50e-6  # seconds of a message


class Costs(msgspec.Struct, frozen=True):
    """Seconds of a step, and bytes per second between replicas."""

    step: float
    prefill_token: float
    decode_row: float
    bandwidth: float

    def of(self, plan: ForwardPlan) -> float:
        num_prompt = sum(len(row.tokens) for row in plan.rows if len(row.tokens) > 1)
        return self.step + self.prefill_token * num_prompt + self.decode_row * (plan.num_tokens - num_prompt)


class Load(msgspec.Struct, frozen=True):
    """Streams from the beginning, and bursts of prompts, each with a short output."""

    num_streams: int
    num_bursts: int
    burst_size: int
    burst_seconds: float
    prompt_tokens: int
    output_tokens: int


class NoMemory:
    """An engine whose pages have sizes and no contents."""

    kv_shape = LLAMA_8B
    device = torch.device("meta")

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy nothing."""

    def read_pages(self, pages: Sequence[int]) -> torch.Tensor:
        return torch.empty((len(pages), *self.kv_shape.page_shape), dtype=torch.uint8, device="meta")

    def write_pages(self, row: Row, first: int, bytes_P: torch.Tensor) -> None:
        """Write nothing."""


@dataclass
class Timing:
    arrived: float
    tokens: list[float] = field(default_factory=list)


class Replica:
    """A core that computes one step after the other; messages of other replicas wait for its step to end."""

    def __init__(self, clock: VirtualTime, costs: Costs, num_pages: int, prefill_budget: int) -> None:
        self.clock, self.costs = clock, costs
        self.cache = PrefixCache(num_pages, 16)
        self.pages = CachePages(self.cache, NoMemory())
        self.timings: dict[str, Timing] = {}
        self.num_done = 0
        self._inbox: deque[Callable[[], None]] = deque()
        self._busy = False
        self._wakes = False
        self._link_free = 0.0
        self.fetcher: PrefixFetcher | None = None
        self.exporter: PrefixExporter | None = None
        config = CoreConfig(prefill_budget=prefill_budget, max_running=256, speculative="off")
        self.scheduler = make_scheduler(
            config,
            self.cache,
            fetch_prefix=lambda request: None if self.fetcher is None else self.fetcher.fetch(request),
        )

    def deliver(self, message: Callable[[], None], num_bytes: int, sender: Replica) -> None:
        """Let a message of another replica arrive, after those that its link still sends."""
        sender._link_free = max(self.clock.now, sender._link_free) + num_bytes / self.costs.bandwidth
        self.clock.at(sender._link_free + LATENCY, lambda: self.receive(message))

    def receive(self, message: Callable[[], None]) -> None:
        self._inbox.append(message)
        self.wake()

    def ask(self, rid: str, tokens: list[int], num_output: int) -> None:
        sampling = SamplingParams(max_new_tokens=num_output, ignore_eos=True, seed=1)
        self.timings[rid] = Timing(self.clock.now)
        self.receive(
            lambda: self.take(
                self.scheduler.handle(Generate(rid=rid, tokens=tokens, sampling=sampling), self.clock.now)
            )
        )

    def wake(self) -> None:
        if not self._busy and not self._wakes:
            self._wakes = True
            self.clock.at(self.clock.now, self._turn)

    def _turn(self) -> None:
        """One round of the core's loop."""
        self._wakes = False
        while self._inbox:
            self._inbox.popleft()()
        if self.exporter is not None:
            self.exporter.work(self.clock.now, None, set())
        plan = self.scheduler.plan(self.clock.now)
        self.take(self.scheduler.answers())
        if plan is None:
            return
        self._busy = True
        self.clock.at(self.clock.now + self.costs.of(plan), lambda: self._commit(plan))

    def _commit(self, plan: ForwardPlan) -> None:
        self._busy = False
        self.take(self.scheduler.commit(plan, make_believe(plan), self.clock.now))
        self.wake()

    def take(self, answers: Sequence[FromCore]) -> None:
        if self.exporter is not None:
            self.exporter.note_answers(list(answers))
        for answer in answers:
            assert not isinstance(answer, RequestFailed), answer
            if isinstance(answer, Tokens) and answer.rid in self.timings:
                self.timings[answer.rid].tokens += [self.clock.now] * len(answer.ids)
                self.num_done += answer.finish is not None


def connect(prefill: Replica, decode: Replica, min_tokens: int) -> None:
    """Let a decode replica fetch prompts from a prefill replica."""

    def ask(peer: int, message: Any) -> None:
        def arrive() -> None:
            assert prefill.exporter is not None
            match message:
                case FetchPrefix():
                    prefill.exporter.begin(b"decode", message, prefill.clock.now)
                case PagesTaken():
                    prefill.exporter.confirm(b"decode", message, None, prefill.clock.now)
                case CancelFetch(call=call):
                    prefill.exporter.cancel(b"decode", call, None)

        prefill.deliver(arrive, 0, decode)

    def answer(peer: bytes, message: Any, bytes_PB: torch.Tensor | None) -> bool:
        def arrive() -> None:
            assert decode.fetcher is not None
            match message:
                case PagesSent():
                    assert bytes_PB is not None
                    decode.fetcher.take(0, message, bytes_PB)
                case FetchEnded():
                    decode.fetcher.end(0, message)

        decode.deliver(arrive, 0 if bytes_PB is None else bytes_PB.numel(), prefill)
        return True

    decode.fetcher = PrefixFetcher(decode.pages, ask, min_tokens=min_tokens, clock=lambda: decode.clock.now)
    decode.fetcher.connected.add(0)
    prefill.exporter = PrefixExporter(
        prefill.pages,
        lambda message, owner: prefill.scheduler.handle(message, prefill.clock.now, owner),
        prefill.scheduler.num_computed,
        answer,
    )


def simulate(load: Load, costs: Costs, *, apart: bool, budget: int, num_pages: int = 1 << 15) -> dict[str, float]:
    """Return the milliseconds between the streams' tokens during the bursts, and to the prompts' first tokens."""
    clock, draw = VirtualTime(), random.Random(0)
    replicas = [Replica(clock, costs, num_pages, budget) for _ in range(2)]
    targets = replicas
    if apart:
        connect(replicas[0], replicas[1], min_tokens=256)
        targets = replicas[1:]
    vocab = range(VOCABULARY.vocab_size)
    begin, end = 1.0, 1.0 + load.num_bursts * load.burst_seconds
    for number in range(load.num_streams):
        targets[number % len(targets)].ask(f"stream {number}", draw.choices(vocab, k=64), 1 << 14)
    for burst in range(load.num_bursts):
        for number in range(load.burst_size):
            target, tokens = targets[number % len(targets)], draw.choices(vocab, k=load.prompt_tokens)
            rid = f"prompt {burst} {number}"
            clock.at(
                begin + burst * load.burst_seconds,
                lambda target=target, rid=rid, tokens=tokens: target.ask(rid, tokens, load.output_tokens),  # type: ignore[misc]
            )
    num_prompts = load.num_bursts * load.burst_size
    while sum(replica.num_done for replica in replicas) < num_prompts:
        clock.run_next()
    timings = {rid: timing for replica in replicas for rid, timing in replica.timings.items()}
    gaps = sorted(
        later - earlier
        for rid, timing in timings.items()
        if rid.startswith("stream")
        for earlier, later in pairwise(timing.tokens)
        if later > begin and earlier < end
    )
    ttft = [timing.tokens[0] - timing.arrived for rid, timing in timings.items() if rid.startswith("prompt")]
    figures = {
        "ITL p50 ms": 1e3 * gaps[len(gaps) // 2],
        "p99": 1e3 * gaps[len(gaps) * 99 // 100],
        "max": 1e3 * gaps[-1],
        "TTFT p50 ms": 1e3 * statistics.median(ttft),
        "TTFT max": 1e3 * max(ttft),
        "all done s": clock.now - begin,
    }
    if apart:
        fetcher = replicas[1].fetcher
        assert fetcher is not None
        figures["pages sent early"] = fetcher.counters.num_early_tokens / max(1, fetcher.counters.num_tokens)
    return figures


def main(
    step_ms: Annotated[float, typer.Option(help="a step's fixed time: reading the weights")] = 8.0,
    prefill_us: Annotated[float, typer.Option(help="for each prompt token")] = 40.0,
    decode_us: Annotated[float, typer.Option(help="for each decode row")] = 20.0,
    gigabytes: Annotated[float, typer.Option(help="per second between replicas")] = 25.0,
    num_streams: Annotated[int, typer.Option("--streams", help="requests that decode")] = 32,
    num_bursts: Annotated[int, typer.Option("--bursts", help="bursts of prompts")] = 10,
    burst_size: Annotated[int, typer.Option(help="prompts in a burst")] = 4,
    burst_seconds: Annotated[float, typer.Option(help="from one burst to the next")] = 1.5,
    prompt_tokens: Annotated[int, typer.Option(help="of a prompt")] = 4096,
    output_tokens: Annotated[int, typer.Option(help="of a prompt's output")] = 64,
    out: Out = None,
) -> None:
    costs = Costs(step_ms / 1e3, prefill_us / 1e6, decode_us / 1e6, gigabytes * 1e9)
    load = Load(num_streams, num_bursts, burst_size, burst_seconds, prompt_tokens, output_tokens)
    rows = []
    for apart, budgets in ((False, (256, 512, 1024, 2048, 8192)), (True, (1024, 2048, 8192))):
        for budget in budgets:
            row = {"replicas": "1 prefill, 1 decode" if apart else "2 both", "prefill budget": str(budget)}
            rows.append(row | simulate(load, costs, apart=apart, budget=budget))
    said = (
        f"{num_streams} streams; {num_bursts} bursts of {burst_size} prompts of {prompt_tokens} tokens, one every "
        f"{burst_seconds:g} s; a step of {step_ms:g} ms + {prefill_us:g} us a prompt token + {decode_us:g} us a row; "
        f"{gigabytes:g} GB/s"
    )
    report("Prefill and decode apart, simulated", said, table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
