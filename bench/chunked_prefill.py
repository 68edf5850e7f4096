"""Disturbance of running streams by long prompts: the time between tokens with prompts in chunks, and at once.

    python -P bench/chunked_prefill.py [MODEL] [--budgets 128,512,2048] [--json FILE]

`--streams` requests decode; then `--prompts` long prompts arrive, two at a time. Gaps between the streams' tokens count
from the first prompt's submission to the last one's answer. A runtime for each `--prefill-budget`, all measured in turn
and `--repeat` times; medians. A budget of the context's length is chunking switched off.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import Annotated, Any

import httpx
import msgspec
import typer

import ramiform
from ramiform.bench.harness import Json, Model, interleaved, medians, numbers, table, write_json
from ramiform.bench.serving import closed_loop, percentiles, send


class Load(msgspec.Struct, frozen=True):
    """Load of one measurement."""

    num_streams: int
    num_prompts: int
    prompt_tokens: int
    stream_tokens: int  # at most: the streams are left when the last prompt is answered


async def stream(client: httpx.AsyncClient, body: dict[str, Any], started: asyncio.Event, times: list[float]) -> None:
    """Note when each token comes, until cancelled. Raises RuntimeError when the stream ends before that."""
    async with client.stream("POST", "/generate", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
                started.set()
    raise RuntimeError("a stream ended while it was measured: it needs more tokens, or the prompts less time")


async def measure(url: str, load: Load, vocab_size: int, seed: int) -> dict[str, float]:
    """Milliseconds: the gaps between the streams' tokens, and the long prompts' time to their first token."""
    draw = random.Random(seed)

    def body(num_prompt: int, num_output: int) -> dict[str, Any]:
        params = {"max_new_tokens": num_output, "temperature": 0.0, "ignore_eos": True}
        return {"input_ids": draw.choices(range(vocab_size), k=num_prompt), "sampling_params": params, "stream": True}

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        times: list[list[float]] = [[] for _ in range(load.num_streams)]
        started = [asyncio.Event() for _ in times]
        streams = [
            asyncio.create_task(stream(client, body(16, load.stream_tokens), event, own))
            for event, own in zip(started, times, strict=True)
        ]
        waiting = asyncio.gather(*(event.wait() for event in started))
        await asyncio.wait([*streams, waiting], return_when=asyncio.FIRST_COMPLETED)
        began = time.perf_counter()
        long = [body(load.prompt_tokens, 1) for _ in range(load.num_prompts)]
        arriving = asyncio.ensure_future(closed_loop(client, long, 2, lambda: None))
        await asyncio.wait([*streams, arriving], return_when=asyncio.FIRST_COMPLETED)
        ended = time.perf_counter()
        for task in streams:
            task.cancel()
        for outcome in await asyncio.gather(*streams, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise RuntimeError(f"a stream failed: {outcome}") from outcome
        timings = await arriving
    gaps = [b - a for own in times for a, b in pairwise(own) if b > began and a < ended]
    return {
        "ITL p50 ms": percentiles(gaps)["p50"],
        "p99": percentiles(gaps)["p99"],
        "max": 1e3 * max(gaps),
        "TTFT of prompts ms": 1e3 * statistics.median(timing.ttft for timing in timings),
        "prompt tok/s": load.num_prompts * load.prompt_tokens / (ended - began),
    }


async def warm_up(url: str, vocab_size: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        ids = [token % vocab_size for token in range(64)]
        await send(client, {"input_ids": ids, "sampling_params": {"max_new_tokens": 4}, "stream": True})


def main(
    model: Model = None,
    budgets: Annotated[str, typer.Option(help="values of --prefill-budget, besides the context length")] = (
        "64,128,256,512,1024"
    ),
    num_streams: Annotated[int, typer.Option("--streams", help="requests that decode")] = 8,
    num_prompts: Annotated[int, typer.Option("--prompts", help="long prompts that arrive")] = 8,
    prompt_tokens: Annotated[int | None, typer.Option(help="of a long prompt; default: 1,536 if they fit")] = None,
    repeat: Annotated[int, typer.Option(help="measurements with each budget")] = 3,
    output: Json = None,
) -> None:
    sizes = numbers(budgets)
    with ExitStack() as stack:
        runtimes = {size: stack.enter_context(ramiform.Runtime(model, port=0, prefill_budget=size)) for size in sizes}
        info = next(iter(runtimes.values())).info
        off = info.context_length + num_streams  # so that a whole prompt and every stream's token are one step
        runtimes[off] = stack.enter_context(ramiform.Runtime(model, port=0, prefill_budget=off))
        long = prompt_tokens or min(1536, info.context_length * 3 // 4)
        load = Load(num_streams, num_prompts, long, stream_tokens=info.context_length - 16)
        for runtime in runtimes.values():
            assert runtime.url is not None
            asyncio.run(warm_up(runtime.url, info.vocab_size))
        runs = interleaved(
            repeat,
            {
                str(size): lambda seed, runtime=runtime: asyncio.run(measure(runtime.url, load, info.vocab_size, seed))
                for size, runtime in runtimes.items()
            },
        )
    figures = {size: medians(runs[str(size)]) for size in runtimes}
    rows = [
        {
            "prefill budget": f"{size} (no chunks)" if size == off else str(size),
            **own,
            "p99, off / on": figures[off]["p99"] / own["p99"],
            "max, off / on": figures[off]["max"] / own["max"],
            "prompt tok/s, on / off": own["prompt tok/s"] / figures[off]["prompt tok/s"],
        }
        for size, own in figures.items()
    ]
    print(
        f"\n{num_streams} streams, {num_prompts} prompts of {load.prompt_tokens} tokens, two at a time, "
        f"on {info.name}, {info.dtype} on {info.device}; medians of {repeat}\n"
    )
    print(table(rows))
    write_json({"info": msgspec.to_builtins(info), "load": msgspec.to_builtins(load), "rows": rows}, output)


if __name__ == "__main__":
    typer.run(main)
