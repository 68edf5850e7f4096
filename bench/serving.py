"""Latency and throughput over HTTP: a load generator for the native `/generate` route.

    python -P bench/serving.py [MODEL] [--url URL] [--concurrency 8 | --rate 4] [--json FILE]

Closed loop (`--concurrency`): so many clients, each sending its next request when the last one is answered. Open
loop (`--rate`): requests arrive by a Poisson process whether or not the others are answered, which is what users
do. Without `--url` it starts a runtime of its own. TTFT is the time to the first token, ITL the time between tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Annotated, Any

import httpx
import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

import ramiform
from ramiform.bench.harness import Json, Model, percentile, table, write_json


class Timing(msgspec.Struct, frozen=True):
    """One request, in seconds since it was sent; `token_times` has one entry per streamed event."""

    token_times: list[float]
    num_tokens: int
    num_cached: int

    @property
    def ttft(self) -> float:
        return self.token_times[0]

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]


async def send(client: httpx.AsyncClient, body: dict[str, Any]) -> Timing:
    """One streamed request. Raises on any answer but a whole one."""
    start = time.perf_counter()
    times: list[float] = []
    last: dict[str, Any] = {}
    async with client.stream("POST", "/generate", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter() - start)
                last = json.loads(line.removeprefix("data: "))
    if "error" in last or not times:
        raise RuntimeError(f"no whole answer: {last}")
    return Timing(times, last["meta_info"]["completion_tokens"], last["meta_info"]["cached_tokens"])


async def closed_loop(
    client: httpx.AsyncClient, bodies: list[dict[str, Any]], concurrency: int, tick: Any
) -> list[Timing]:
    queue = iter(bodies)
    done: list[Timing] = []

    async def worker() -> None:
        for body in queue:
            done.append(await send(client, body))
            tick()

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return done


async def open_loop(client: httpx.AsyncClient, bodies: list[dict[str, Any]], rate: float, tick: Any) -> list[Timing]:
    draw = random.Random(0)

    async def one(body: dict[str, Any]) -> Timing:
        timing = await send(client, body)
        tick()
        return timing

    tasks = []
    for body in bodies:
        tasks.append(asyncio.create_task(one(body)))
        await asyncio.sleep(draw.expovariate(rate))
    return await asyncio.gather(*tasks)


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    return {"p50": percentile(values, 50) * 1e3, "p99": percentile(values, 99) * 1e3}


async def measure(
    url: str,
    num_requests: int,
    prompt_tokens: int,
    output_tokens: int,
    shared_tokens: int,
    concurrency: int,
    rate: float | None,
) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        info = (await client.get("/get_server_info")).raise_for_status().json()
        draw = random.Random(0)
        vocabulary = range(info["vocab_size"])
        shared = draw.choices(vocabulary, k=shared_tokens)
        bodies = [
            {
                "input_ids": shared + draw.choices(vocabulary, k=prompt_tokens - shared_tokens),
                "sampling_params": {"max_new_tokens": output_tokens, "temperature": 0.0, "ignore_eos": True},
                "stream": True,
            }
            for _ in range(num_requests)
        ]
        await send(client, bodies[0] | {"input_ids": draw.choices(vocabulary, k=prompt_tokens)})  # warm up
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("requests", total=num_requests)
            start = time.perf_counter()
            if rate is None:
                timings = await closed_loop(client, bodies, concurrency, lambda: progress.advance(task))
            else:
                timings = await open_loop(client, bodies, rate, lambda: progress.advance(task))
            seconds = time.perf_counter() - start
    return {
        "load": f"closed, {concurrency} clients" if rate is None else f"open, {rate:g} requests/s",
        "num_requests": num_requests,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "shared_tokens": shared_tokens,
        "requests/s": num_requests / seconds,
        "output tok/s": sum(t.num_tokens for t in timings) / seconds,
        "cached tokens": sum(t.num_cached for t in timings),
        "TTFT ms": percentiles([t.ttft for t in timings]),
        "ITL ms": percentiles([gap for t in timings for gap in t.gaps]),
        "E2E ms": percentiles([t.token_times[-1] for t in timings]),
        "server": info,
    }


def show(result: dict[str, Any]) -> str:
    """Format the figures of a run."""
    figures = {}
    for key, value in result.items():
        if isinstance(value, dict) and "p50" in value:
            figures |= {f"{key}, p50": value["p50"], f"{key}, p99": value["p99"]}
        elif isinstance(value, int | float):
            figures[key] = value
    return table([{"figure": name, "value": value} for name, value in figures.items()])


def main(
    model: Model = None,
    url: Annotated[str | None, typer.Option(help="of a running server, instead of starting one")] = None,
    num_requests: Annotated[int, typer.Option(help="requests in all")] = 64,
    prompt_tokens: Annotated[int, typer.Option(help="per request")] = 128,
    output_tokens: Annotated[int, typer.Option(help="per request")] = 64,
    shared_tokens: Annotated[int, typer.Option(help="of the prompt, the same in all requests")] = 0,
    concurrency: Annotated[int, typer.Option(help="clients of the closed loop")] = 8,
    rate: Annotated[float | None, typer.Option(help="requests per second: an open loop instead")] = None,
    output: Json = None,
) -> None:
    load = (num_requests, prompt_tokens, output_tokens, shared_tokens, concurrency, rate)
    if url is not None:
        result = asyncio.run(measure(url, *load))
    else:
        with ramiform.Runtime(model, port=0) as runtime:
            assert runtime.url is not None
            result = asyncio.run(measure(runtime.url, *load))
    print(f"{result['num_requests']} requests, {result['load']}\n\n{show(result)}")
    write_json(result, output)


if __name__ == "__main__":
    typer.run(main)
