"""Measure the page's cost: throughput without and with a viewer, and the work and bytes of large logs and trees.

    python -P bench/serving/page_cost.py [--rounds 8] [--out FILE]

The same requests go in turn to a server with `--no-page`, to one with the page that nobody looks at, and to that one
with a viewer of all topics. The ratios of a round's throughputs count, and those of the servers' processor time per
token, which other load on the machine disturbs less.

The second part is in one process: a radix tree of `--nodes` nodes and a log of `--programs` records, of which some
change between two messages of a viewer.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Annotated, Any, NamedTuple

import httpx
import msgspec
import typer
from websockets.sync.client import connect

import ramiform
from ramiform.bench import harness
from ramiform.bench.harness import Out, cpu_seconds, interleaved, percentile, report
from ramiform.radix.cache import PrefixCache
from ramiform.runtime.core.main import start_collections
from ramiform.runtime.core.tree_view import TreeViewer
from ramiform.runtime.frontend.http.dashboard.access import PageAccess, Viewer
from ramiform.runtime.frontend.http.dashboard.topics import LogPeers, ProgramsTopic
from ramiform.runtime.frontend.http.middleware.auth import ApiKeys
from ramiform.runtime.frontend.records.log import Owner, ProgramLog
from ramiform.runtime.programs.records.view import ProgramRow
from ramiform.runtime.protocol.tree import GetTree

PAGE_SIZE = 16
CHANGES = 50  # requests, or records, between two messages


def bodies(draw: random.Random, num: int, vocab_size: int) -> list[dict[str, Any]]:
    """Return requests of which groups share their first 64 tokens."""
    prefixes = [draw.choices(range(300, vocab_size), k=64) for _ in range(4)]
    return [
        {
            "input_ids": draw.choice(prefixes) + draw.choices(range(300, vocab_size), k=32),
            "sampling_params": {"max_new_tokens": 32, "temperature": 0.0, "ignore_eos": True},
        }
        for _ in range(num)
    ]


class Run(NamedTuple):
    """One run's tokens per second, and milliseconds of the server's processes per token."""

    rate: float
    cost: float


async def steady(url: str, requests: list[dict[str, Any]], interval: float) -> None:
    """Send requests one after the other, at fixed times."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        began = time.perf_counter()
        for index, body in enumerate(requests):
            await asyncio.sleep(began + index * interval - time.perf_counter())
            (await client.post("/generate", json=body)).raise_for_status()


async def throughput(url: str, requests: list[dict[str, Any]], concurrency: int) -> tuple[int, float]:
    """Return the output tokens of a closed loop, and its seconds."""
    queue, tokens = iter(requests), 0
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def worker() -> None:
            nonlocal tokens
            for body in queue:
                answer = (await client.post("/generate", json=body)).raise_for_status().json()
                tokens += answer["meta_info"]["completion_tokens"]

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return tokens, time.perf_counter() - began


@dataclass
class Watched:
    """Messages that a viewer received."""

    num_bytes: int = 0
    num_messages: int = 0
    seconds: float = 0.0


@contextmanager
def viewer(url: str, watched: Watched) -> Iterator[None]:
    """Have a viewer of all topics in a thread, which reads and does nothing with it."""
    over = Event()

    def read() -> None:
        with connect(url.replace("http", "ws") + "/v1/ramiform/live", max_size=None) as socket:
            socket.send(json.dumps({"key": None}))
            topics: dict[str, Any] = {"health": {}, "programs": {}, "tree": {}}
            socket.send(json.dumps({"subscribe": topics}))
            began = time.perf_counter()
            while not over.is_set():
                try:
                    data = socket.recv(timeout=0.2)
                except TimeoutError:
                    continue
                watched.num_bytes += len(data)
                watched.num_messages += 1
                if "program" not in topics and b'"rows":[{' in (data.encode() if isinstance(data, str) else data):
                    topics["program"] = {"id": json.loads(data)["rows"][0]["id"]}
                    socket.send(json.dumps({"subscribe": topics}))
            watched.seconds += time.perf_counter() - began

    thread = Thread(target=read)
    thread.start()
    try:
        time.sleep(0.5)  # it is connected by then
        yield
    finally:
        over.set()
        thread.join()


def servers(rounds: int, num_requests: int, concurrency: int) -> dict[str, Any]:
    """Return the ratios of throughputs, and what the viewer received."""
    settings: dict[str, Any] = {"port": 0, "num_pages": 4096, "log_level": "error", "wait_for_loops": True}
    watched = Watched()
    with ramiform.Runtime(page=False, **settings) as off, ramiform.Runtime(**settings) as on:

        def run(runtime: ramiform.Runtime, number: int) -> Run:
            requests = bodies(random.Random(number), num_requests, runtime.info.vocab_size)
            httpx.post(f"{runtime.url}/flush_cache", timeout=60).raise_for_status()
            before = cpu_seconds([runtime.pid])
            tokens, seconds = asyncio.run(throughput(runtime.url or "", requests, concurrency))
            return Run(tokens / seconds, (cpu_seconds([runtime.pid]) - before) * 1e3 / tokens)

        def with_viewer(number: int) -> Run:
            with viewer(on.url or "", watched):
                return run(on, number)

        def load(number: int) -> float:
            requests = bodies(random.Random(number), 24, on.info.vocab_size)
            before, began = cpu_seconds([on.pid]), time.perf_counter()
            asyncio.run(steady(on.url or "", requests, 0.25))
            return (cpu_seconds([on.pid]) - before) * 1e3 / (time.perf_counter() - began)

        def load_with_viewer(number: int) -> float:
            with viewer(on.url or "", Watched()):
                return load(number)

        loads = interleaved(rounds, {"nobody": load, "viewer": load_with_viewer})
        without = partial(run, off)
        ways = {"no page": without, "page": partial(run, on), "viewer": with_viewer, "no page again": without}
        runs = interleaved(rounds, ways)

    found = {
        "no page: tokens/s": statistics.median(one.rate for one in runs["no page"]),
        "no page: processor ms/token": statistics.median(one.cost for one in runs["no page"]),
    }
    for name, base in (("no page again", "no page"), ("page", "no page"), ("viewer", "no page"), ("viewer", "page")):
        pairs = list(zip(runs[name], runs[base], strict=True))
        found[f"{name} : {base}, throughput"] = statistics.median(one.rate / other.rate for one, other in pairs)
        found[f"{name} : {base}, processor time"] = statistics.median(one.cost / other.cost for one, other in pairs)
    more = [after - before for before, after in zip(loads["nobody"], loads["viewer"], strict=True)]
    return found | {
        "4 requests/s, nobody looks: processor ms/s": statistics.median(loads["nobody"]),
        "a viewer more: processor ms/s": statistics.median(more),
        "viewer: kB/s": watched.num_bytes / watched.seconds / 1000,
        "viewer: messages/s": watched.num_messages / watched.seconds,
    }


def serve(cache: PrefixCache, tokens: list[int]) -> None:
    lease = cache.acquire(tokens, num_tokens=len(tokens))
    assert lease is not None
    cache.take_copies()
    cache.commit(lease, tokens)
    cache.release(lease, tokens)


def answer(viewing: TreeViewer, question: GetTree) -> tuple[Any, list[float]]:
    """Return the answer, and the seconds of each slice of the core's loop."""
    viewing.ask(b"viewer", question)
    slices = []
    while True:
        began = time.process_time()
        answers = viewing.work()
        slices.append(time.process_time() - began)
        if answers:
            return answers[0][1].tree, slices


def tree(num_nodes: int, updates: int) -> dict[str, Any]:
    """Return the work and bytes of viewing a large tree, of which CHANGES requests change something per message."""
    draw = random.Random(0)
    prefixes = [[draw.randrange(32_000) for _ in range(64)] for _ in range(num_nodes // 100)]

    def prompt() -> list[int]:
        return draw.choice(prefixes) + [draw.randrange(32_000) for _ in range(PAGE_SIZE * draw.choice((1, 1, 2, 4)))]

    cache = PrefixCache(4 * num_nodes, PAGE_SIZE)
    while cache.tree.num_nodes < num_nodes:
        serve(cache, prompt())
    start_collections()
    viewing, question = TreeViewer(cache), GetTree(call=1, watch=1)
    first, slices = answer(viewing, question)
    seconds_first = sum(slices)
    work, sizes, every, requests = [], [], list(slices), []
    for _ in range(updates):
        began = time.process_time()
        for _ in range(CHANGES):
            serve(cache, prompt())
        requests.append((time.process_time() - began) / CHANGES)
        message, slices = answer(viewing, question)
        work.append(sum(slices))
        every += slices
        sizes.append(len(msgspec.json.encode(message)))
    return {
        "nodes": cache.tree.num_nodes,
        "first answer: ms of the core": seconds_first * 1e3,
        "first answer: kB": len(msgspec.json.encode(first)) / 1000,
        "slice, median: ms": statistics.median(every) * 1e3,
        "slice, p99: ms": percentile(every, 99) * 1e3,
        f"update after {CHANGES} requests: ms of the core": statistics.median(work) * 1e3,
        "mean update: ms of the core": statistics.mean(work) * 1e3,
        "update: kB": statistics.median(sizes) / 1000,
        "radix tree, watched: us/request": statistics.median(requests) * 1e6,
    }


class _Record:
    """A record as the log asks it for its row."""

    def __init__(self, log: ProgramLog) -> None:
        self.entry = log.add(Owner(), self)

    def row(self, now: float) -> ProgramRow:
        return ProgramRow(
            id=self.entry.id,
            seq=self.entry.seq,
            title="POST /v1/chat/completions",
            status="running",
            began_at=self.entry.began_at,
            seconds=now - self.entry.began,
            states=4,
            generations=8,
            prompt_tokens=1234,
            cached_tokens=1000,
            completion_tokens=345,
        )

    def view(self, now: float, texts: bool) -> Any:
        raise NotImplementedError


class _NoPeers:
    index = 0

    def on(self, kind: str, handler: Any) -> None:
        pass

    async def ask(self, kind: str, about: str, answer_type: Any) -> list[Any]:
        return []


async def programs(num_records: int, updates: int) -> dict[str, Any]:
    """Return the work and bytes of viewing a log of many records, CHANGES of which change per message."""
    log, draw = ProgramLog(max_records=num_records), random.Random(0)
    records = [_Record(log) for _ in range(num_records)]
    access = PageAccess(ApiKeys([]), "auto")
    topic = ProgramsTopic(LogPeers(log, _NoPeers(), access), Viewer(None, True))  # type: ignore[arg-type]
    while await topic.news() is not None:
        pass
    work, sizes = [], []
    for _ in range(updates):
        for record in draw.sample(records, CHANGES):
            record.entry.touch()
        began = time.process_time()
        data = msgspec.json.encode(await topic.news())
        work.append(time.process_time() - began)
        sizes.append(len(data))
    return {
        "records": len(log),
        f"update of {CHANGES} rows: ms of the frontend": statistics.median(work) * 1e3,
        "update: kB": statistics.median(sizes) / 1000,
    }


def main(
    rounds: Annotated[int, typer.Option(help="rounds of the servers, after one that warms up; 0: leave them out")] = 8,
    requests: Annotated[int, typer.Option(help="requests of one run")] = 48,
    concurrency: Annotated[int, typer.Option(help="clients")] = 8,
    nodes: Annotated[int, typer.Option(help="nodes of the tree")] = 100_000,
    records: Annotated[int, typer.Option("--programs", help="records in the log")] = 10_000,
    updates: Annotated[int, typer.Option(help="messages about the tree, and the log")] = 60,
    out: Out = None,
) -> None:
    figures: dict[str, Any] = {"tree": tree(nodes, updates), "log": asyncio.run(programs(records, updates))}
    if rounds:
        figures["servers"] = servers(rounds, requests, concurrency)
    tables = [f"## {name}\n\n{harness.figures(values)}" for name, values in figures.items()]
    report("The page's cost", *tables, out=out)


if __name__ == "__main__":
    typer.run(main)
