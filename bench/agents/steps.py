"""Times of the steps of agents' programs, beside the least that this machine's limits would allow.

    python -P bench/agents/steps.py [MODEL] [--agents judge,react] [--at-once 16] [--shared 200,1000] [--out FILE.md]

The programs of `bench/agents/peers.py` run by the language on a server that logs its plans, and on one without a log.
Then the servers end, and one process computes the plans of the round of median seconds again, with the same model and
nothing beside it. Each step stands beside the least time of its multiplications and of its reading, by limits that are
measured in the same run. All figures need a quiet machine. A logged plan has one decode step; without a log a plan of
few programs has several. Models are those of `limits.Work`.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import msgspec
import torch
import typer
from tokenizers import Tokenizer

from ramiform.bench.agents import programs
from ramiform.bench.agents.peers import Side, chosen, in_language, measure
from ramiform.bench.agents.programs import Agent
from ramiform.bench.harness import Model, Out, numbers, report, table
from ramiform.bench.peers import engines
from ramiform.bench.peers.limits import Machine, Work, measure_machine, third_cache_bytes
from ramiform.runtime.core.main import SWITCH_INTERVAL, load_core, start_collections
from ramiform.runtime.core.pipeline import StepLauncher
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.processes.parent_watchdog import child_environment
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, Row
from ramiform.runtime.scheduler.plan_log import LogEntry, LoggedPlan, LoggedResult, LogHeader, read_log

KINDS = {1: "1 decode row", 4: "2-4 decode rows", 16: "5-16 decode rows", 64: "17-64 decode rows"}  # by most rows
MORE, CHUNKS, MIXED = "more decode rows", "prompt chunks", "mixed"

LEGEND = """\
- **Live**: from the begin of planning to the result. **Replayed**: from the plan's inputs to sampled tokens, in a
  process of its own, the best of {replays} times for each step.
- A row of one token is a decode row. A mixed step has such rows beside longer ones.
- **Compute**: at {flops:.0f} GFLOP/s, products of all tokens in all layers, and attention of each token to each key
  that it sees. In the last layer all tokens need keys and values, but only sampled ones queries, attention, output and
  MLP; the head is theirs too.
- **Reading**: at {read:.1f} GB/s, all weights of the file once, and once the keys and values that were there
  before the step, however many rows see a page. All of it comes from memory in this column.
- **Least**: for each step the larger of computing, and of reading what the third cache ({cache:.0f} MiB) has no room
  for: it might hold the rest from the step before, all of it in steps of few rows. The limit's share: least / replayed.
- Not counted are norms, rotation, softmax, sampling, writing, and that no processor computes a few rows at its peak."""

SUMS = """\
Seconds of whole cases, which are the sum of four parts: replayed steps; what live steps took more, which is planning,
writing the log, and what frontend and client beside them take; commits, answers and messages between steps; and no
work, while the core had no request and waited for programs, frontend and client. At the limit all steps take their
least time, and the rest what it took. The last columns are how much faster the case would be with that rest, and
without any: times the ratio to another server in the same case, they tell which ratio the limit allows."""


@dataclass(frozen=True)
class LiveStep:
    """A step of a server. Times in seconds by `time.monotonic`; `free` is when the step before had ended, or when this
    one began if there was nothing to do between."""

    plan: ForwardPlan
    result: ForwardResult
    free: float
    began: float
    ended: float


@dataclass(frozen=True)
class Round:
    """One run of a case, from `began` to `ended` by `time.monotonic`; its seconds, and those without a log."""

    began: float
    ended: float
    seconds: float
    unlogged: float | None


@dataclass(frozen=True)
class Replayed:
    """Best seconds of each step, and the share of tokens that are those of the log."""

    seconds: list[float]
    same: float


@dataclass(frozen=True)
class Cost:
    """Seconds of a step: as it ran, replayed, and at the least. Reading is from memory, `uncached` of what outgrows the
    third cache."""

    kind: str
    tokens: int
    live: float
    replayed: float
    compute: float
    reading: float
    uncached: float

    @property
    def least(self) -> float:
        return max(self.compute, self.uncached)


def live_steps(entries: Iterable[LogEntry]) -> list[LiveStep]:
    plans: dict[int, tuple[ForwardPlan, float]] = {}
    steps = []
    for entry in entries:
        match entry:
            case LoggedPlan(plan=ForwardPlan() as plan, now=began):
                plans[plan.step] = plan, began
            case LoggedResult(result=result, now=ended):
                free = ended - result.seconds  # which are counted from the end of the step before
                steps.append(LiveStep(plans[result.step][0], result, free, plans[result.step][1], ended))
    return steps


def kind_of(rows: Sequence[Row]) -> str:
    num_decodes = sum(row.num_committed == 1 for row in rows)
    if num_decodes < len(rows):
        return MIXED if num_decodes else CHUNKS
    return next((name for most, name in KINDS.items() if num_decodes <= most), MORE)


def cost_of(step: LiveStep, replayed: float, work: Work, machine: Machine, cache_bytes: int) -> Cost:
    """`replayed` are seconds; the third cache has `cache_bytes`."""
    rows = step.plan.rows
    num_bytes = work.step_bytes(rows)
    return Cost(
        kind=kind_of(rows),
        tokens=step.plan.num_tokens,
        live=step.ended - step.began,
        replayed=replayed,
        compute=work.step_flops(rows) / machine.flops,
        reading=num_bytes / machine.read,
        uncached=max(0, num_bytes - cache_bytes) / machine.read,
    )


def kind_rows(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """Return a table's row for each kind of step, and one for all. Milliseconds are those of a step, in the mean."""
    rows = []
    for kind in (*KINDS.values(), MORE, CHUNKS, MIXED, "all"):
        own = [cost for cost in costs if kind in (cost.kind, "all")]
        if not own:
            continue
        row: dict[str, Any] = {"step": kind, "steps": len(own), "tokens": sum(cost.tokens for cost in own)}
        for name in ("live", "replayed", "compute", "reading", "least"):
            row[f"{name}, ms"] = 1e3 * statistics.fmean(getattr(cost, name) for cost in own)
        replayed, least = (sum(getattr(cost, name) for cost in own) for name in ("replayed", "least"))
        row |= {"limit's share": least / replayed, "replayed, s": f"{replayed:.3f}", "least, s": f"{least:.3f}"}
        rows.append(row)
    return rows


def case_row(name: str, done: Round, steps: Sequence[LiveStep], costs: Sequence[Cost]) -> dict[str, Any]:
    """Return the table's row of a whole case: its parts, and what it would take at the limit."""
    live, replayed, least = (sum(getattr(cost, part) for cost in costs) for part in ("live", "replayed", "least"))
    between = sum(step.began - step.free for step in steps)
    limit = done.seconds - replayed + least
    figures = {
        "whole": done.seconds,
        "replayed steps": replayed,
        "live steps more": live - replayed,
        "between steps": between,
        "no work": done.seconds - live - between,
        "least of steps": least,
        "at the limit": limit,
    }
    row: dict[str, Any] = {"program, at once, shared": name}
    row["without a log"] = "-" if done.unlogged is None else f"{done.unlogged:.3f}"
    row |= {part: f"{seconds:.3f}" for part, seconds in figures.items()}
    return row | {"faster, with the rest": done.seconds / limit, "faster, without it": done.seconds / least}


def replay(engine: StepLauncher, steps: Sequence[LiveStep], rounds: int) -> Replayed:
    """Compute the plans of a case in turn, several times. It began with an empty cache, so its plans write all keys and
    values that they read."""
    best = [float("inf")] * len(steps)
    num_same = num_tokens = 0
    for _ in range(rounds):
        for index, step in enumerate(steps):
            begin = time.perf_counter()
            result = engine.launch(step.plan).wait()
            best[index] = min(best[index], time.perf_counter() - begin)
            for ours, logged in zip(result.rows, step.result.rows, strict=True):
                num_same += len(logged.tokens) if ours.tokens == logged.tokens else 0
                num_tokens += len(logged.tokens)
    return Replayed(best, num_same / max(1, num_tokens))


def replay_as_core(config: CoreConfig, cases: Sequence[Sequence[LiveStep]], rounds: int) -> list[Replayed]:
    """Replay cases with the settings of a server's core, which are the whole process's."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    engine = load_core(config).engine
    start_collections()
    return [replay(engine, steps, rounds) for steps in cases]


def replay_apart(config: CoreConfig, cases: Sequence[Sequence[LiveStep]], rounds: int) -> list[Replayed]:
    """Replay cases in a new process with a core's environment."""
    os.environ.update(child_environment())
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(replay_as_core, config, cases, rounds).result()


def replay_config(header: LogHeader) -> CoreConfig:
    """Return a log's settings for an engine with the same pages and no log."""
    settings: dict[str, Any] = {"num_pages": header.num_pages, "kv_memory": None, "log_plans": None}
    return msgspec.structs.replace(header.config, wait_for_loops=True, **settings)


def run_case(sides: Sequence[Side], agent: Agent, words: Sequence[str], shared: int, size: int, rounds: int) -> Round:
    """Run a case on the server with a log, the first one, and on the other in turn; return the median round."""
    done, unlogged = [], []
    for number in range(rounds):
        tasks = programs.tasks_of(agent, words, shared, size, f"{number}")
        for side in sides if number % 2 else reversed(sides):
            httpx.post(f"{side.engine.url}/flush_cache", timeout=60).raise_for_status()
            began = time.monotonic()
            run = measure(side, agent, tasks)
            print(f"{number} {agent.name}, {size}, {shared:,}: {side.name} {run.seconds:.2f} s", file=sys.stderr)
            if side is sides[0]:
                done.append(Round(began, time.monotonic(), run.seconds, None))
            else:
                unlogged.append(run.seconds)
    median = sorted(done, key=lambda each: each.seconds)[rounds // 2]
    return replace(median, unlogged=statistics.median(unlogged) if unlogged else None)


def run_cases(
    folder: Path, dtype: str, log: Path, agents: str, sizes: Sequence[tuple[int, int]], rounds: int, unlogged: bool
) -> tuple[dict[str, Round], list[engines.Launch]]:
    """Run all cases on a server that logs its plans, and on one that does not if `unlogged`. `sizes` are tokens of the
    shared prefix and programs at once."""
    words = programs.words_of(Tokenizer.from_file(str(folder / "tokenizer.json")))
    options = {"logged": ["--log-plans", str(log)]} | ({"unlogged": []} if unlogged else {})
    with ExitStack() as stack:
        sides = []
        for name, own in options.items():
            launch = engines.ramiform(folder, dtype, "--wait-for-loops", *own)
            engine = stack.enter_context(engines.running(launch, log.with_name(f"{name}.txt")))
            sides.append(Side(name, engine, in_language(engine)))
        done = {}
        for agent in chosen(agents):
            for side in sides:
                measure(side, agent, programs.tasks_of(agent, words, 50, 2, "warm up"))
            for shared, size in sizes:
                done[f"{agent.name}, {size}, {shared:,}"] = run_case(sides, agent, words, shared, size, rounds)
        return done, [side.engine.launch for side in sides]


def main(
    model: Model = None,
    dtype: Annotated[str, typer.Option(help="of weights and cache: float32 or bfloat16")] = "float32",
    agents: Annotated[str, typer.Option(help="parts of their names, separated by commas")] = "judge,react",
    at_once: Annotated[str, typer.Option(help="numbers of programs, separated by commas")] = "16",
    shared: Annotated[str, typer.Option(help="tokens of the shared prefix, separated by commas")] = "200,1000",
    rounds: Annotated[int, typer.Option(help="runs of each case", min=1)] = 3,
    replays: Annotated[int, typer.Option(help="times that each step is replayed", min=1)] = 5,
    unlogged: Annotated[bool, typer.Option(help="also on a server without a log")] = True,
    out: Out = None,
) -> None:
    folder = SHIPPED_MODEL if model is None else Path(model)
    torch_dtype = getattr(torch, dtype)
    work = Work.of(folder, next(folder.glob("*.safetensors")), torch_dtype)
    sizes = [(num_shared, size) for num_shared in numbers(shared) for size in numbers(at_once)]
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "plans.jsonl"
        done, launches = run_cases(folder, dtype, log, agents, sizes, rounds, unlogged)
        with log.open("rb") as lines:
            header, *entries = read_log(lines)
    assert isinstance(header, LogHeader)
    every = live_steps(entries)
    cases = [[step for step in every if one.began <= step.began and step.ended <= one.ended] for one in done.values()]
    machine, cache = measure_machine(torch_dtype), third_cache_bytes()
    replayed = replay_apart(replay_config(header), cases, replays)
    parts = [f"Steps of agents' programs: {dtype}, the median of {rounds} rounds", f"{machine}."]
    wholes = []
    for (name, one), steps, again in zip(done.items(), cases, replayed, strict=True):
        costs = [cost_of(*pair, work, machine, cache) for pair in zip(steps, again.seconds, strict=True)]
        touched = work.touched_bytes(step.plan.rows for step in steps) / 2**20
        parts += [f"## {name}", table(kind_rows(costs))]
        parts.append(f"{touched:.0f} MiB of weights and pages; {again.same:.1%} of the replay's tokens are the log's.")
        wholes.append(case_row(name, one, steps, costs))
    figures = {"flops": machine.flops / 1e9, "read": machine.read / 1e9, "cache": cache / 2**20}
    parts += [LEGEND.format(replays=replays, **figures), "## Whole cases", table(wholes), SUMS]
    for launch in launches:
        words = [Path(word).name if word.startswith("/") else word for word in launch.command]
        parts.append(f"- ramiform {launch.version}: `{' '.join(words)}`")
    report(*parts, out=out)


if __name__ == "__main__":
    typer.run(main)
