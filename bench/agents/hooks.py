"""Programs a second with hooks, beside the same programs without.

    python -P bench/agents/hooks.py [--programs 300] [--repeat 9] [--out FILE]

A batch of programs that generate 16 tokens each runs on the model that ships: without hooks, with one that counts
tokens, and with spans of OpenTelemetry that nobody exports. The ways take turns; a ratio is the median over the rounds.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from opentelemetry.sdk.trace import TracerProvider

import ramiform
from ramiform import Hook, HookedCall, OpenTelemetryHook, ProgramState, Runtime, gen
from ramiform.bench.harness import Out, Repeat, interleaved, median_ratio, report, table, timed


class CountTokens(Hook):
    """Counts what is generated."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def after(self, call: HookedCall) -> None:
        assert call.tokens is not None
        self.num_tokens += call.tokens.completion


@ramiform.function
async def short(s: ProgramState, index: int) -> None:
    s += f"Story {index}: Once upon a time" + gen("a", max_tokens=16, ignore_eos=True, temperature=0)
    await s.get("a")


def main(programs: Annotated[int, typer.Option(help="in a batch")] = 300, repeat: Repeat = 9, out: Out = None) -> None:
    items = [{"index": index} for index in range(programs)]
    counted = CountTokens()
    ways: dict[str, tuple[Hook, ...]] = {
        "off": (),
        "count": (counted,),
        "spans": (OpenTelemetryHook(TracerProvider()),),
    }
    with Runtime() as runtime:

        def run(name: str) -> float:
            with ramiform.hooks(*ways[name]):
                return timed(time.perf_counter, lambda: short.run_batch(items, backend=runtime))

        times = interleaved(repeat, {name: lambda _, name=name: run(name) for name in ways})  # type: ignore[misc]
    assert counted.num_tokens == 16 * programs * (repeat + 1)
    rows = [
        {"hooks": name, "programs a second / off": median_ratio(times["off"], found)} for name, found in times.items()
    ]
    report(f"{programs} programs with hooks", table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
