"""Tokens a second of streamed programs whose events are read, beside those whose text is read and those nobody reads.

    python -P bench/agents/events.py [MODEL] [--at-once 32] [--tokens 128] [--repeat 7] [--out FILE.md]

All programs run at once in one event loop, on one runtime, by turns. One way reads nothing, one each program's text,
one its events, and one its events as server-sent events.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Annotated, Any

import typer

import ramiform
from ramiform.bench.harness import Model, Out, interleaved, report, table

WAYS = ("nothing is read", "text", "events", "server-sent events")


@ramiform.function
async def story(s: ramiform.ProgramState, number: int, tokens: int) -> None:
    s += f"Story {number}:" + ramiform.gen("tale", max_tokens=tokens, ignore_eos=True, seed=number)


async def follow(way: str, number: int, tokens: int) -> int:
    state = await story.arun(number, tokens, stream=True)
    count = 0
    if way == "text":
        async for _ in state.text_async_iter("tale"):
            count += 1
    elif way == "events":
        async for _ in state.async_events():
            count += 1
    elif way == "server-sent events":
        async for _ in state.server_sent_events():
            count += 1
    await state.wait()  # where nothing was read: to the end
    return count


def run(way: str, at_once: int, tokens: int) -> tuple[float, float, int]:
    """Return tokens a second, processor seconds of this process, and the pieces or events that were read."""

    async def main() -> int:
        return sum(await asyncio.gather(*(follow(way, number, tokens) for number in range(at_once))))

    began, cpu = time.perf_counter(), time.process_time()
    count = asyncio.run(main())
    return at_once * tokens / (time.perf_counter() - began), time.process_time() - cpu, count


def main(
    model: Model = None,
    at_once: Annotated[int, typer.Option(help="programs at once")] = 32,
    tokens: Annotated[int, typer.Option(help="of each program")] = 128,
    repeat: Annotated[int, typer.Option(help="interleaved runs of each, after one that warms up")] = 7,
    out: Out = None,
) -> None:
    with ramiform.Runtime(model, log_level="error") as runtime:
        ramiform.set_default_backend(runtime)
        ways = {way: lambda _, way=way: run(way, at_once, tokens) for way in WAYS}
        results = interleaved(repeat, ways)
    rows: list[dict[str, Any]] = []
    base = [speed for speed, _, _ in results[WAYS[0]]]
    for way, found in results.items():
        speeds = [speed for speed, _, _ in found]
        rows.append(
            {
                "read": way,
                "tokens/s": f"{statistics.median(speeds):,.0f}",
                "of nothing read": f"{statistics.median(map(lambda a, b: a / b, speeds, base)):.3f}",
                "client, CPU s": f"{statistics.median(cpu for _, cpu, _ in found):.3f}",
                "pieces or events": f"{statistics.median(count for _, _, count in found):,.0f}",
            }
        )
    said = f"{at_once} programs at once, {tokens} tokens each, medians of {repeat} runs; ratios are of one round."
    report("Events of streamed programs", said, table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
