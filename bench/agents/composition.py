"""Time of the calling thread for a generation in a program called through two levels, beside the same inline.

    python -P bench/agents/composition.py [--repeat 15] [--out FILE]

The backend is `Scripted`, so that nothing is computed but the language's own work. A run makes 20 generations on its
state, in a fresh state each, in a called program each, or in a program that another one calls for it. The ways take
turns; a figure is the median over the rounds, in microseconds of processor time of the calling thread for a generation.
"""

from __future__ import annotations

import statistics
import time

import typer

import ramiform
from ramiform import ProgramState, Scripted, gen
from ramiform.bench.harness import Out, Repeat, interleaved, report, table, timed

NUM_GENERATIONS = 20
NUM_RUNS = 25


@ramiform.function
def inner(s: ProgramState, q: int) -> str:
    s += f"{q}:" + gen("a")
    return s["a"]  # type: ignore[no-any-return]


@ramiform.function
def middle(s: ProgramState, q: int) -> str:
    return inner(q)


@ramiform.function
def inline(s: ProgramState) -> None:
    for q in range(NUM_GENERATIONS):
        s += f"{q}:" + gen("a")
        assert s["a"]


@ramiform.function
def fresh(s: ProgramState) -> None:
    for q in range(NUM_GENERATIONS):
        side = s.fresh()
        side += f"{q}:" + gen("a")
        assert side["a"]


@ramiform.function
def one_level(s: ProgramState) -> None:
    for q in range(NUM_GENERATIONS):
        assert inner(q)


@ramiform.function
def two_levels(s: ProgramState) -> None:
    for q in range(NUM_GENERATIONS):
        assert middle(q)


def main(repeat: Repeat = 15, out: Out = None) -> None:
    backend = Scripted(lambda text: "word")
    ways = {one.function.__name__: one for one in (inline, fresh, one_level, two_levels)}

    def run(name: str) -> float:
        def call() -> None:
            for _ in range(NUM_RUNS):
                ways[name].run(backend=backend)

        return timed(time.thread_time, call) / NUM_RUNS / NUM_GENERATIONS * 1e6

    times = interleaved(repeat, {name: lambda _, name=name: run(name) for name in ways})  # type: ignore[misc]
    rows = [
        {
            "way": name.replace("_", " "),
            "µs a generation": statistics.median(found),
            "µs more than inline": statistics.median(a - b for a, b in zip(found, times["inline"], strict=True)),
        }
        for name, found in times.items()
    ]
    report("A generation in a called program", table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
