"""Simulates routers with and without knowledge of caches; measures what an engine before a runtime adds to requests.

    python -P bench/scheduling/scale.py route
    python -P bench/scheduling/scale.py overhead URL... --pid PID

`route`: schedulers and caches of 1, 2 and 4 replicas in virtual time (`simulation.py` has the costs of a step), behind
a router that knows their KV events, or what it sent where, or nothing. `overhead`: servers of one model in turn, the
first one as the baseline.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import httpx
import typer

from ramiform.bench.harness import cpu_seconds, interleaved, percentile, report, table
from ramiform.bench.scheduling.simulation import (
    STEP_SECONDS,
    TOKEN_SECONDS,
    VOCABULARY,
    VirtualTime,
    make_believe,
    make_scheduler,
)
from ramiform.radix.cache import PrefixCache
from ramiform.radix.events import Cleared, Removed, Stored, page_hash
from ramiform.radix.packed_tokens import pack
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate, Tokens
from ramiform.runtime.protocol.sampling import SamplingParams

PAGE = 16
MEMORY_SECONDS = 120.0  # an approximate router forgets what it sent after this: Dynamo's default
Knowledge = Literal["events", "sent", "round robin"]
app = typer.Typer(add_completion=False, no_args_is_help=True)


def page_hashes(tokens: Sequence[int]) -> list[int]:
    """Hash the whole pages of a prompt, as the cache does for its events."""
    hashes: list[int] = []
    for at in range(0, len(tokens) // PAGE * PAGE, PAGE):
        hashes.append(page_hash(hashes[-1] if hashes else None, pack(tokens[at : at + PAGE]), ""))
    return hashes


@dataclass
class Turn:
    """A request of a session. `reusable` tokens of the prompt were in the session's request before."""

    session: int
    tokens: list[int]
    num_output: int
    arrived: float
    reusable: int
    first: float | None = None
    num_cached: int = 0


@dataclass(frozen=True)
class Session:
    """A conversation: a system prompt that others share, and turns of (user's tokens, output tokens, pause before)."""

    system: list[int]
    turns: list[tuple[list[int], int, float]]
    start: float


def sessions(num_replicas: int, seed: int, per_replica: int) -> list[Session]:
    """Draw a load in proportion to the number of replicas: chats of 3 to 8 turns over ten system prompts."""
    draw = random.Random(seed)

    def words(num: int) -> list[int]:
        return [draw.randrange(VOCABULARY.vocab_size) for _ in range(num)]

    systems = [words(draw.randrange(200, 900)) for _ in range(10)]
    at, made = 0.0, []
    for _ in range(per_replica * num_replicas):
        at += draw.expovariate(num_replicas / 1.5)
        turns = [
            (words(draw.randrange(20, 160)), draw.randrange(20, 120), min(60.0, draw.lognormvariate(1.6, 0.8)))
            for _ in range(draw.randrange(3, 9))
        ]
        made.append(Session(draw.choice(systems), turns, at))
    return made


@dataclass
class Replica:
    """A scheduler and its cache, busy until `free_at`. `known` is what the router knows of its pages."""

    number: int
    num_pages: int
    known: OrderedDict[int, float] = field(default_factory=OrderedDict)  # page hash: when it is forgotten
    free_at: float = 0.0
    pages_of: dict[str, int] = field(default_factory=dict)  # of running requests, by rid: pages of the prompt

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.num_pages, 16, events=True)
        self.scheduler = make_scheduler(CoreConfig(order="fcfs", eviction="lru"), self.cache)

    def overlap(self, hashes: Sequence[int], now: float) -> int:
        """Return how many pages of a prompt the router believes to be here."""
        num = 0
        for name in hashes:
            if self.known.get(name, -1.0) < now:
                break
            num += 1
        return num

    def learn(self, events: Sequence[Stored | Removed | Cleared]) -> None:
        for event in events:
            match event:
                case Stored():
                    self.known.update(dict.fromkeys(event.hashes, float("inf")))
                case Removed():
                    for name in event.hashes:
                        self.known.pop(name, None)
                case Cleared():
                    self.known.clear()


class Cluster:
    """Replicas behind a router, in virtual time. Events reach the router after `delay` seconds."""

    def __init__(self, num_replicas: int, num_pages: int, knowledge: Knowledge, delay: float) -> None:
        self.replicas = [Replica(number, num_pages) for number in range(num_replicas)]
        self.knowledge = knowledge
        self.delay = delay
        self.time = VirtualTime()
        self.turns: list[Turn] = []
        self._running: dict[str, tuple[Turn, Replica, Callable[[list[int]], None], list[int]]] = {}
        self._next = 0

    def play(self, load: Sequence[Session]) -> None:
        """Play all sessions to their ends."""
        for number, session in enumerate(load):
            self.time.after(
                session.start, lambda number=number, session=session: self._turn(number, session, 0, session.system, 0)
            )
        while self.time.next_due < math.inf:
            self.time.run_next()
        assert not self._running

    def _turn(self, number: int, session: Session, index: int, before: list[int], reusable: int) -> None:
        said, num_output, _ = session.turns[index]
        turn = Turn(number, [*before, *said], num_output, self.time.now, reusable)
        self.turns.append(turn)

        def then(output: list[int]) -> None:
            whole = [*turn.tokens, *output]
            if index + 1 < len(session.turns):
                pause = session.turns[index + 1][2]
                self.time.after(pause, lambda: self._turn(number, session, index + 1, whole, len(whole) - 1))

        self._submit(turn, then)

    def _submit(self, turn: Turn, then: Callable[[list[int]], None]) -> None:
        hashes = page_hashes(turn.tokens)
        replica = self._choose(hashes)
        rid = f"{turn.session} {len(self.turns)}"
        replica.pages_of[rid] = len(hashes)
        if self.knowledge == "sent":
            replica.known.update(dict.fromkeys(hashes, self.time.now + MEMORY_SECONDS))
        self._running[rid] = (turn, replica, then, [])
        sampling = SamplingParams(max_new_tokens=turn.num_output, ignore_eos=True, seed=zlib.crc32(rid.encode()))
        self._take(replica.scheduler.handle(Generate(rid=rid, tokens=turn.tokens, sampling=sampling), self.time.now))
        self._wake(replica)

    def _choose(self, hashes: Sequence[int]) -> Replica:
        """Return the replica with the least to do: pages to compute, and pages of requests that run there."""
        if self.knowledge == "round robin":
            self._next += 1
            return self.replicas[self._next % len(self.replicas)]
        return min(
            self.replicas,
            key=lambda each: (
                len(hashes) - each.overlap(hashes, self.time.now) + sum(each.pages_of.values()),
                each.number,
            ),
        )

    def _wake(self, replica: Replica) -> None:
        if replica.free_at <= self.time.now:
            self._step(replica)

    def _step(self, replica: Replica) -> None:
        plan = replica.scheduler.plan(self.time.now)
        self._take(replica.scheduler.answers())
        if plan is None:
            return
        seconds = STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens
        replica.free_at = self.time.now + seconds

        def done() -> None:
            replica.free_at = 0.0
            self._take(replica.scheduler.commit(plan, make_believe(plan), self.time.now))
            events = replica.cache.take_events()
            if self.knowledge == "events" and events:
                self.time.after(self.delay, lambda: replica.learn(events))
            self._wake(replica)

        self.time.after(seconds, done)

    def _take(self, messages: Sequence[object]) -> None:
        for message in messages:
            assert isinstance(message, Tokens), message
            turn, replica, then, output = self._running[message.rid]
            if turn.first is None:
                turn.first, turn.num_cached = self.time.now, message.num_cached
            output += message.ids
            if message.finish is not None:
                del self._running[message.rid], replica.pages_of[message.rid]
                then(output)


def figures(cluster: Cluster) -> dict[str, float]:
    """Return the shares and times of a run."""
    waits = [turn.first - turn.arrived for turn in cluster.turns if turn.first is not None]
    later = [turn for turn in cluster.turns if turn.reusable]
    num_prompt = sum(len(turn.tokens) for turn in cluster.turns)
    return {
        "reusable tokens cached": sum(min(t.num_cached, t.reusable) for t in later) / sum(t.reusable for t in later),
        "prompt tokens computed": num_prompt - sum(turn.num_cached for turn in cluster.turns),
        "TTFT p50": percentile(waits, 50),
        "TTFT p95": percentile(waits, 95),
    }


@app.command()
def route(
    pages: Annotated[int, typer.Option(help="KV pages of a replica, of 16 tokens")] = 2000,
    replicas: Annotated[str, typer.Option(help="numbers of replicas, separated by commas")] = "1,2,4",
    per_replica: Annotated[int, typer.Option(help="sessions for each replica")] = 60,
    delay: Annotated[float, typer.Option(help="seconds until an event is known to the router")] = 0.005,
    seeds: Annotated[int, typer.Option(help="loads, of which the medians are shown")] = 3,
) -> None:
    """Print what routers with different knowledge make of one load."""
    rows = []
    for num_replicas in map(int, replicas.split(",")):
        of: dict[str, list[dict[str, float]]] = {}
        for seed in range(seeds):
            load = sessions(num_replicas, seed, per_replica)
            for knowledge in ("events", "sent", "round robin"):
                cluster = Cluster(num_replicas, pages, knowledge, delay)  # type: ignore[arg-type]
                cluster.play(load)
                of.setdefault(knowledge, []).append(figures(cluster))
        for knowledge, runs in of.items():
            row: dict[str, object] = {"replicas, router": f"{num_replicas}, {knowledge}"}
            row["reusable tokens cached"] = f"{statistics.median(r['reusable tokens cached'] for r in runs):.1%}"
            for name in ("prompt tokens computed", "TTFT p50", "TTFT p95"):
                ratios = [run[name] / blind[name] for run, blind in zip(runs, of["round robin"], strict=True)]
                row[f"{name} / round robin"] = statistics.median(ratios)
            rows.append(row)
    report("Routers by what they know", table(rows))


@dataclass(frozen=True)
class Cost:
    """Seconds, and seconds of processors, of a request for one token and of each streamed token after the first."""

    request: float
    request_cpu: float
    token: float
    token_cpu: float


class Server:
    """A server that is measured over one connection. Processor time counts of `pid` and its descendants."""

    def __init__(self, url: str, number: int, pid: int) -> None:
        self._client = httpx.Client(base_url=url, timeout=120, trust_env=False)
        self._model = self._client.get("/v1/models").json()["data"][0]["id"]
        self._number = number  # in the prompts, so that none is cached when it comes
        self._pid = pid

    def measure(self, num_requests: int, num_tokens: int, number: int) -> Cost:
        """Measure requests for one token in a row, and the tokens of a stream."""
        spent, seconds = cpu_seconds([self._pid]), []
        for each in range(num_requests):
            began = time.perf_counter()
            question = self._body(f"{self._number} {number} {each} hello", 1)
            self._client.post("/v1/chat/completions", json=question).raise_for_status()
            seconds.append(time.perf_counter() - began)
        between, times = cpu_seconds([self._pid]), []
        body = self._body(f"{self._number} {number} tell", num_tokens) | {"stream": True}
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                    times.append(time.perf_counter())
        request_cpu = (between - spent) / num_requests
        token_cpu = (cpu_seconds([self._pid]) - between - request_cpu) / (num_tokens - 1)
        return Cost(statistics.median(seconds), request_cpu, (times[-1] - times[0]) / (num_tokens - 1), token_cpu)

    def _body(self, text: str, num_tokens: int) -> dict[str, object]:
        asked = {"model": self._model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        return {**asked, "max_tokens": num_tokens, "ignore_eos": True}


@app.command()
def overhead(
    urls: Annotated[list[str], typer.Argument(help="servers of one model; the first is the baseline")],
    pid: Annotated[int, typer.Option(help="process that started all servers: `ramiform cluster`")],
    rounds: Annotated[int, typer.Option(min=2, help="rounds in turn, after one that warms up")] = 9,
    requests: Annotated[int, typer.Option(min=1, help="requests for one token in a row")] = 20,
    tokens: Annotated[int, typer.Option(min=2, help="tokens of a stream")] = 200,
) -> None:
    """Print each server's times as ratios to the first one's, and how much more they are: medians of the rounds."""
    servers = [(url, Server(url, number, pid)) for number, url in enumerate(urls)]
    runs = interleaved(
        rounds,
        {url: lambda number, server=server: server.measure(requests, tokens, number) for url, server in servers},
    )
    rows = []
    for url, costs in runs.items():
        for name, title in (("request", "request of one token"), ("token", "streamed token")):
            row: dict[str, object] = {"server": url, "of a": title}
            for part, unit in (("", "time"), ("_cpu", "processors")):
                pairs = [
                    (getattr(mine, name + part), getattr(first, name + part))
                    for mine, first in zip(costs, runs[urls[0]], strict=True)
                ]
                ratios = [mine / first for mine, first in pairs if first]  # a clock of ticks may count none
                row[f"{unit}, ratio"] = statistics.median(ratios) if ratios else math.nan
                row[f"{unit}, ms more"] = 1e3 * statistics.median(mine - first for mine, first in pairs)
            rows.append(row)
    report("What servers add to requests", table(rows))


if __name__ == "__main__":
    app()
