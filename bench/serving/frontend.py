"""Cost of the frontend: processor time per request and per streamed token; and completeness of many streams.

    python -P bench/serving/frontend.py [--frontends 2] [--out FILE]

Processor time is that of the frontend processes alone, read from their clocks; the core, which computes the model, and
this client are other processes. On a machine that others use too, the least of several runs is what the work itself
takes. The model is the one that ships: it takes little time, so that the frontend shows.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

import ramiform
from ramiform.bench.harness import Out, figures, report
from ramiform.bench.raw_http import RawClient

WORDS = "the a red old river stone house seven quiet green under over with small market near train".split()


class Processors:
    """Processor time of several processes, in seconds."""

    def __init__(self, pids: list[int]) -> None:
        self._clocks = [(~pid << 3) | 2 for pid in pids]  # as clock_getcpuclockid(3) makes them

    def seconds(self) -> float:
        return sum(time.clock_gettime(clock) for clock in self._clocks)


def frontend_pids(runtime: ramiform.Runtime) -> list[int]:
    """Return the process ids of the first frontend and its siblings; not the core's."""
    children = Path(f"/proc/{runtime.pid}/task/{runtime.pid}/children").read_text().split()
    worker = b"ramiform.runtime.processes.frontend_worker"
    siblings = [pid for pid in children if worker in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [runtime.pid, *map(int, siblings)]


def num_steps(url: str) -> float:
    """Return the number of forwards since the core started."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith("ramiform_steps_total"))


def text_of(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choices(WORDS, k=num_words))


async def one_token_requests(url: str, route: str, bodies: list[dict[str, Any]], concurrency: int) -> float:
    """Return the seconds for all requests."""
    queue = iter(bodies)

    async def worker() -> None:
        async with RawClient(url) as client:
            for body in queue:
                status, answer = await client.post(route, body)
                assert status == 200, answer

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - start


async def streams(url: str, route: str, body: dict[str, Any], num: int) -> tuple[int, list[float], list[float], float]:
    """`num` streams at once: how many were whole, times to the first part, gaps between parts, seconds in all."""
    draw = random.Random(num)
    first: list[float] = []
    gaps: list[float] = []

    async def one(text: str) -> bool:
        async with RawClient(url) as client:
            times, answer = await client.stream(route, body | {"prompt": text})
        events = [event for event in answer.split(b"\n\n") if event]
        first.append(times[0])
        gaps.extend(later - earlier for earlier, later in pairwise(times))
        usage = json.loads(events[-2].removeprefix(b"data: "))["usage"]
        return events[-1] == b"data: [DONE]" and usage["completion_tokens"] == body["max_tokens"]

    start = time.perf_counter()
    whole = await asyncio.gather(*(one(text_of(draw, 12)) for _ in range(num)))
    return sum(whole), first, gaps, time.perf_counter() - start


def measure_load(url: str, model: str, processors: Processors) -> dict[str, str]:
    draw, found = random.Random(1), dict[str, str]()
    short = {"model": model, "max_tokens": 1, "temperature": 0}
    bodies = [short | {"prompt": text_of(draw, 12)} for _ in range(600)]
    asyncio.run(one_token_requests(url, "/v1/completions", bodies[:100], 8))  # warm
    for route, made in (
        ("/v1/completions", bodies),
        ("/v1/chat/completions", [short | {"messages": [{"role": "user", "content": b["prompt"]}]} for b in bodies]),
    ):
        costs, rates = [], []
        for _ in range(3):
            before = processors.seconds()
            seconds = asyncio.run(one_token_requests(url, route, made, 16))
            rates.append(len(made) / seconds)
            costs.append((processors.seconds() - before) / len(made) * 1e3)
        found[f"{route}, max_tokens=1, 16 clients: requests/s"] = f"{statistics.median(rates):.0f}"
        cost = f"{min(costs):.2f} ms at best, median {statistics.median(costs):.2f}"
        found[f"{route}: frontend CPU per request"] = cost
    body = short | {"stream": True, "max_tokens": 100, "ignore_eos": True, "stream_options": {"include_usage": True}}
    asyncio.run(streams(url, "/v1/completions", body, 4))
    for num, repeats in ((1, 15), (64, 4), (256, 3)):
        costs, results = [], []
        for _ in range(repeats):
            before = processors.seconds()
            results.append(asyncio.run(streams(url, "/v1/completions", body, num)))
            costs.append((processors.seconds() - before) / num * 1e4)
        found[f"{num} streams of 100 tokens: whole ones"] = f"{sum(r[0] for r in results)} of {num * repeats}"
        found[f"{num} streams: tokens/s"] = f"{statistics.median(num * 100 / r[3] for r in results):.0f}"
        first = statistics.median(seconds for r in results for seconds in r[1])
        gap = statistics.median(seconds for r in results for seconds in r[2])
        found[f"{num} streams: first part, median"] = f"{first * 1e3:.0f} ms"
        found[f"{num} streams: gap between parts, median"] = f"{gap * 1e3:.2f} ms"
        cost = f"{min(costs):.0f} us at best, median {statistics.median(costs):.0f}"
        found[f"{num} streams: frontend CPU per token, requests included"] = cost
    return found


def measure_decisions(url: str, model: str, processors: Processors) -> dict[str, str]:
    draw = random.Random(2)
    questions = [
        {"type": "predicate", "instructions": f"Does it speak of {draw.choice(WORDS)} ({index})?"}
        for index in range(100)
    ]

    async def ask(text: str) -> dict[str, Any]:
        async with RawClient(url) as client:
            status, answer = await client.post("/v1/decisions", {"model": model, "input": text, "questions": questions})
        assert status == 200, answer
        return json.loads(answer)  # type: ignore[no-any-return]

    async def plain(text: str) -> float:
        start = time.perf_counter()
        async with RawClient(url) as client:
            await client.post("/v1/completions", {"model": model, "prompt": text, "max_tokens": 1, "temperature": 0})
        return time.perf_counter() - start

    text = text_of(draw, 900)
    asyncio.run(ask(text_of(draw, 900)))
    alone = asyncio.run(plain(text_of(draw, 900)))
    steps = num_steps(url)
    before = processors.seconds()
    start = time.perf_counter()
    answer = asyncio.run(ask(text))
    seconds = time.perf_counter() - start
    steps = num_steps(url) - steps
    usage = answer["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"] / usage["input_tokens"]
    return {
        "100 decisions over one input: input tokens": f"{usage['input_tokens']} ({cached:.0%} cached)",
        "100 decisions: time": f"{seconds * 1e3:.0f} ms ({seconds / alone:.1f}x one completion of that input)",
        "100 decisions, 200 labels: forwards of the model": f"{steps:.0f}",
        "100 decisions: frontend CPU": f"{(processors.seconds() - before) * 1e3:.0f} ms",
    }


def main(frontends: Annotated[int, typer.Option(help="processes")] = 1, out: Out = None) -> None:
    with ramiform.Runtime(port=0, num_pages=8192, max_running=256, frontends=frontends) as runtime:
        assert runtime.url is not None
        server = (runtime.url, runtime.info.name, Processors(frontend_pids(runtime)))
        found = measure_load(*server) | measure_decisions(*server)
    report(f"The frontend's cost, {frontends} process(es)", figures(found), out=out)


if __name__ == "__main__":
    typer.run(main)
