"""Time of the calling thread for a generation in a program called through two levels, beside the same inline.

    python -P bench/agents/composition.py [--repeat 15] [--at-once] [--out FILE]

The backend is `Scripted`, so that nothing is computed but the language's own work; with `--at-once` its answers come
from the thread that asks, which leaves out the threads' turns. A run makes 20 generations on its
state, in a fresh state each, in a called program each, or in a program that another one calls for it. The ways take
turns; a figure is the median over the rounds, in microseconds of processor time of the calling thread for a generation.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Annotated, Any

import typer

import ramiform
from ramiform import ProgramState, Scripted, gen
from ramiform.bench.harness import Out, Repeat, interleaved, report, table, timed
from ramiform.runtime.protocol.session import Append, Done, Gen, Play, Sequence

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


class AtOnce:
    """A backend that is its own channel, and answers in the thread that asks: every generation by the same word."""

    def __init__(self) -> None:
        self._numbers, self._listeners = itertools.count(1), dict[int, Any]()
        self._sequence: Sequence | None = None
        state = inline.run(backend=Scripted(lambda text: "word"))  # whose answers have all that a real one has
        self._sequence = state._handle.log.done[1].sequences[0]

    def connection(self) -> Any:
        return self

    def attach(self, listener: Any) -> int:
        self._listeners[number := next(self._numbers)] = listener
        return number

    def detach(self, state: int) -> None:
        self._listeners.pop(state, None)

    def send(self, message: Any) -> None:
        match message:
            case Play(messages=messages):
                for one in messages:
                    self.send(one)
            case Append(state=state, first=first, operations=operations):
                for op, operation in enumerate(operations, start=first):
                    found = [self._sequence] if isinstance(operation, Gen) else None
                    self._listeners[state].receive(Done(state, op, "word" if found else "", found))


def main(
    repeat: Repeat = 15,
    at_once: Annotated[bool, typer.Option("--at-once", help="answer in the thread that asks")] = False,
    out: Out = None,
) -> None:
    backend: Any = AtOnce() if at_once else Scripted(lambda text: "word")
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
