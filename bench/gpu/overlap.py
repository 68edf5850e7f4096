"""Savings of one plan in flight: equal requests with steps in turn and one step ahead, interleaved.

    python -P bench/gpu/overlap.py [MODEL] [--device simulated|cuda] [--repeat N] [--out FILE]

The scheduler, its grammars and its masks are the real ones. A simulated device takes no time of the host: a step is
done when its deadline has passed. That shows what the order of the work can save and nothing of how fast a device is;
`--step-ms` says how long a forward takes, `--launch-ms` how long the host is busy queueing it. The host's time is then
the processor's for this thread, so that others on the machine do not count, and waiting only moves the clock on. With
`--device cuda` engine and clock are real. Prints Markdown.
"""

from __future__ import annotations

import json
import random
import statistics
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
import typer

from ramiform.bench.harness import Batches, Model, Out, Repeat, interleaved, median_ratio, numbers, report, table
from ramiform.runtime.core.main import load_core
from ramiform.runtime.core.pipeline import Pipeline, StepLauncher
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import FlushCache, FromCore, Generate, Tokens
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, Row, RowResult, SamplingPlan

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 40},
        "pets": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 6},
    },
    "required": ["name", "city", "pets"],
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"ignore_eos": True},
    "sampled, penalised": {"ignore_eos": True, "temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5},
    "JSON Schema": {"constraint": Constraint("json_schema", json.dumps(PERSON)), "temperature": 1.0},
}


class Clock:
    """Simulated clock: processor time of this thread, plus the waiting time."""

    def __init__(self) -> None:
        self._waited = 0.0

    def now(self) -> float:
        return time.thread_time() + self._waited

    def wait(self, seconds: float) -> None:
        self._waited += max(0.0, seconds)


@dataclass
class SimulatedDevice:
    """One queue of work; what is sampled is any token that may come."""

    step: float  # seconds of a forward, beside those of its tokens
    token: float
    sampling: float
    launching: float  # of the host
    clock: Clock
    vocab_size: int = 0
    busy: float = 0.0  # seconds of work done
    free: float = 0.0  # when all that is queued is done

    def launch(self, plan: ForwardPlan) -> SimulatedStep:
        self.clock.wait(self.launching)
        self.work(self.step + self.token * plan.num_tokens)
        launched = SimulatedStep(self, plan)
        if not plan.is_open:
            launched.decide(plan.rows)
        return launched

    def work(self, seconds: float) -> None:
        self.free = max(self.free, self.clock.now()) + seconds
        self.busy += seconds


@dataclass
class SimulatedStep:
    device: SimulatedDevice
    plan: ForwardPlan
    rows: Sequence[Row] = ()
    done: float = 0.0

    def sample(self, sampling: SamplingPlan) -> None:
        own = iter(sampling.rows)
        self.decide([row if row.follows is None else _completed(row, next(own)) for row in self.plan.rows])

    def decide(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.device.work(self.device.sampling)
        self.done = self.device.free

    def wait(self) -> ForwardResult:
        results = [self._result(row) for row in self.rows]  # while the device computes, unless that takes longer
        self.device.clock.wait(self.done - self.device.clock.now())
        return ForwardResult(step=self.plan.step, rows=results)

    def _result(self, row: Row) -> RowResult:
        if row.sample is None:
            return RowResult()
        number = zlib.crc32(f"{row.rid} {row.first_position + len(row.tokens)}".encode())
        if row.mask is None:
            token = number % self.device.vocab_size
        else:
            allowed = np.flatnonzero(np.unpackbits(np.frombuffer(row.mask, np.uint8), bitorder="little"))
            token = int(allowed[number % len(allowed)])
        return RowResult(tokens=[token])


def _completed(row: Row, own: Any) -> Row:
    return row if own is None else msgspec.structs.replace(row, sample=own.sample, mask=own.mask)


class Bench:
    """One scheduler, and an engine that both orders of work drive."""

    def __init__(self, model: str | None, device: SimulatedDevice | None) -> None:
        """`device` None: the first CUDA device."""
        real = device is None
        config = CoreConfig(model=model, device="cuda" if real else "cpu", num_pages=2048, speculative="off")
        self._core = load_core(config)
        self.info = self._core.info
        self._device = device
        if device is not None:
            device.vocab_size = self.info.vocab_size
        self._engine: StepLauncher = self._core.engine if device is None else device
        self._now = time.perf_counter if device is None else device.clock.now

    def run(self, kind: dict[str, Any], batch: int, *, ahead: bool) -> dict[str, float]:
        """Run prompts that share nothing, all at once, on an empty cache; return the figures of the run.

        The device idles while it has no work; how long is not known of a real one.
        """
        scheduler, num_tokens, num_steps = self._core.scheduler, 0, 0

        def on_step(plan: ForwardPlan, seconds: float) -> None:
            nonlocal num_steps
            num_steps += 1

        scheduler.handle(FlushCache(0), time.monotonic(), b"")
        for request in _requests(kind, batch, self.info.vocab_size):
            scheduler.handle(request, time.monotonic(), b"")
        pipeline = Pipeline(self._engine, scheduler, ahead=ahead, on_step=on_step)
        busy, began = 0.0 if self._device is None else self._device.busy, self._now()
        while not scheduler.idle or scheduler.pending_grammars:
            for answers in pipeline.advance():
                num_tokens += _count(answers)
        seconds = self._now() - began
        found = {"tok/s": num_tokens / seconds, "steps": num_steps, "ms/step": 1e3 * seconds / num_steps}
        if self._device is not None:
            found["device idle %"] = 100 - 100 * (self._device.busy - busy) / seconds
        return found


def _requests(kind: dict[str, Any], batch: int, vocab_size: int) -> list[Generate]:
    draw = random.Random(batch)
    params = {"max_new_tokens": OUTPUT_TOKENS, "temperature": 0.0, **kind}
    return [
        Generate(
            rid=str(index),
            tokens=draw.choices(range(vocab_size), k=PROMPT_TOKENS),
            sampling=SamplingParams(**params, seed=index),
        )
        for index in range(batch)
    ]


def _count(answers: Sequence[FromCore]) -> int:
    num_tokens = 0
    for answer in answers:
        assert isinstance(answer, Tokens), answer
        num_tokens += len(answer.ids)
    return num_tokens


def compare(bench: Bench, name: str, batch: int, repeat: int) -> dict[str, Any]:
    """A row of the table: medians of `repeat` interleaved runs after one that warms up."""
    ways = {"off": False, "on": True}
    runs = interleaved(
        repeat, {way: lambda _, ahead=ahead: bench.run(KINDS[name], batch, ahead=ahead) for way, ahead in ways.items()}
    )
    off, on = runs["off"], runs["on"]
    row: dict[str, Any] = {"requests": name, "batch": batch}
    for figure in off[0]:
        for way, own in runs.items():
            row[f"{figure} {way}"] = statistics.median(run[figure] for run in own)
        if figure == "tok/s":
            row["on / off"] = median_ratio((run[figure] for run in on), (run[figure] for run in off))
    return row


def main(
    model: Model = None,
    device: Annotated[Literal["simulated", "cuda"], typer.Option(help="who computes")] = "simulated",
    step_ms: Annotated[float, typer.Option(help="simulated: of a forward")] = 4.0,
    token_us: Annotated[float, typer.Option(help="simulated: of each of its tokens")] = 5.0,
    sampling_ms: Annotated[float, typer.Option(help="simulated: of sampling")] = 0.2,
    launch_ms: Annotated[float, typer.Option(help="simulated: that the host is busy with a launch")] = 0.0,
    batches: Batches = "1,8,32,64",
    repeat: Repeat = 5,
    out: Out = None,
) -> None:
    simulated = SimulatedDevice(step_ms * 1e-3, token_us * 1e-6, sampling_ms * 1e-3, launch_ms * 1e-3, Clock())
    bench = Bench(model, simulated if device == "simulated" else None)
    rows = [compare(bench, name, batch, repeat) for name in KINDS for batch in numbers(batches)]
    if device == "simulated":
        what = f"simulated: {step_ms} ms a forward, {token_us} us a token, {sampling_ms} ms sampling"
        what += f", {launch_ms} ms of the host to launch"
    else:
        what = torch.cuda.get_device_name()
    said = f"{bench.info.name}, {what}; {PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, medians of {repeat}."
    report("One plan in flight", said, table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
