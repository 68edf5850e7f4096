"""Delays of a running stream while expensive constraints compile in the same process.

    python -P bench/grammar_stall.py [--seconds 6] [--name 2core-cpu_202611]

One stream on the model that ships, its steps taken as the core takes them. Beside it the runtime's own `Grammars`
compile, over and over, constraints that are as costly as the bounds allow, or nothing. Each with the interpreter's own
switch interval, with the core's, and with one between, in turn. Measured is the wall's time from one step's end to the
next one's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ramiform.bench.harness import table, write
from ramiform.runtime.core.grammar_cache import GrammarCache
from ramiform.runtime.core.main import SWITCH_INTERVAL, load_core
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate, Tokens
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams

RESULTS = Path(__file__).parent / "results"
TOKENS = [bytes([byte]) for byte in range(256)]


@dataclass(frozen=True)
class Setting:
    is_hostile: bool
    interval: float  # seconds that a thread may keep the interpreter while another waits for it

    def __str__(self) -> str:
        return f"{'hostile' if self.is_hostile else 'nothing beside'}, {self.interval * 1e3:g} ms"


SETTINGS = [Setting(is_hostile, interval) for is_hostile in (False, True) for interval in (5e-3, 1e-3, SWITCH_INTERVAL)]


@dataclass
class Found:
    """Milliseconds between steps, and of each expensive constraint; mean processor time of a step in each run."""

    gaps: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.gaps += other.gaps
        self.answers += other.answers
        self.processor_ms += other.processor_ms


def hostile() -> Iterator[Constraint]:
    """Yield ever new constraints, because known ones are cached."""
    for number in count():
        yield Constraint("regex", f"(a|b)*a(a|b){{{18 + number % 3}}}{number}")
        yield Constraint("regex", f"(?=.*a.{{12}}b)(?=.*c.{{12}}d)(?=.*{number}).*")
        yield Constraint("regex", f"x(?=.*a.{{12}}b)(?=.*c.{{12}}d).*{number}")
        words = ",".join(f'{{"pattern": "^[a-z]{{{n},40}}{number}.*[a-z]{{3,{n + 9}}}$"}}' for n in range(8))
        yield Constraint("json_schema", f'{{"type": "string", "oneOf": [{words}]}}')
        names = ",".join(f'"k{n}_{number}": {{"$ref": "#/$defs/{n * 7 % 400}"}}' for n in range(400))
        inner = ",".join(
            f'"{n}": {{"type": "object", "properties": {{"x": {{"maxLength": {n}}}}}}}' for n in range(400)
        )
        yield Constraint("json_schema", f'{{"type": "object", "properties": {{{names}}}, "$defs": {{{inner}}}}}')


class Stream:
    """One request after another on the model that ships, its tokens computed one step at a time."""

    def __init__(self) -> None:
        self._core = load_core(CoreConfig(num_pages=256))
        self._numbers = count()
        self._num_live = 0

    def step(self) -> None:
        """Run one step as the core does: plan, forward, commit."""
        scheduler = self._core.scheduler
        if not self._num_live:
            sampling = SamplingParams(max_new_tokens=400, temperature=0, ignore_eos=True, seed=0)
            request = Generate(rid=str(next(self._numbers)), tokens=[5, 6, 7], sampling=sampling)
            assert not scheduler.handle(request, time.monotonic())
            self._num_live += 1
        plan = scheduler.plan(time.monotonic())
        assert plan is not None, "the stream goes on"
        for answer in scheduler.commit(plan, self._core.engine.run(plan), time.monotonic()):
            assert isinstance(answer, Tokens), answer
            self._num_live -= answer.finish is not None


def run(stream: Stream, seconds: float, setting: Setting) -> Found:
    grammars, sources = GrammarCache(TOKENS, [0]), hostile()
    grammars.warm_up().result()
    before = sys.getswitchinterval()
    found = Found()
    running: list[tuple[Future[Any], float]] = []
    try:
        sys.setswitchinterval(setting.interval)
        stream.step()
        end = time.monotonic() + seconds
        last, processor = time.monotonic(), time.thread_time()
        while last < end:
            for future, began in [pair for pair in running if pair[0].done()]:
                running.remove((future, began))
                assert future.exception() is None or isinstance(future.exception(), RequestError), future.exception()
                found.answers.append((time.monotonic() - began) * 1e3)
            while setting.is_hostile and len(running) < 2:
                running.append((grammars.get(next(sources)), time.monotonic()))
            stream.step()
            now = time.monotonic()
            found.gaps.append((now - last) * 1e3)
            last = now
        found.processor_ms.append((time.thread_time() - processor) * 1e3 / len(found.gaps))
    finally:
        grammars.close()
        for future, _ in running:
            future.exception()
        sys.setswitchinterval(before)
    return found


def main(
    seconds: Annotated[float, typer.Option(help="of each run")] = 6.0,
    rounds: Annotated[int, typer.Option(help="of the runs")] = 2,
    name: Annotated[str | None, typer.Option(help="write bench/results/grammar_stall_NAME.md")] = None,
) -> None:
    stream = Stream()
    whole = {setting: Found() for setting in SETTINGS}
    for _ in range(rounds):
        for setting, found in whole.items():
            found.add(run(stream, seconds, setting))
    rows = [
        {
            "ms": str(setting),
            **{f"step p{percent}": float(np.percentile(found.gaps, percent)) for percent in (50, 90, 99)},
            "step max": max(found.gaps),
            "processor time of a step": float(np.median(found.processor_ms)),
            "steps": len(found.gaps),
            "answers": len(found.answers),
            "answer p50": float(np.median(found.answers)) if found.answers else "-",
            "answer max": max(found.answers, default="-"),
        }
        for setting, found in whole.items()
    ]
    text = f"`python -P bench/grammar_stall.py --seconds {seconds:g} --rounds {rounds}`\n\n{table(rows)}"
    write(text, None if name is None else RESULTS / f"grammar_stall_{name}.md")


if __name__ == "__main__":
    typer.run(main)
