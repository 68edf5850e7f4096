"""The first hour on a GPU: correctness, kernels, an engine, other models and formats, profiles, in five sections.

    bash bench/gpu/hour.sh [A B C D E]           # on a machine with a CUDA device; see docs/operate/gpu.md
    python -P bench/gpu/hour.py A --out FOLDER   # one section; --dry-run: tiny shapes, also without a device

Weights are random, of real shapes. Each section prints one table and writes a line of JSON for each measurement to
FOLDER/SECTION.jsonl, at once, so that what a time limit cuts off is not lost. A measurement that fails is a line too.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ramiform.bench.gpu import kernels
from ramiform.bench.gpu.dummy_models import config_of, decode_plans, dummy_model, pages_of_row
from ramiform.bench.gpu.measurements import Hour, Measurement
from ramiform.bench.harness import Only, cell, matrix, timed
from ramiform.kernels.dispatch import for_device
from ramiform.runtime.engine.compile_kernels import compile_kernels
from ramiform.runtime.engine.engine import ForwardEngine
from ramiform.runtime.engine.kv_pool import PAGE_SIZE, KvMemory, KvPool, bytes_per_page
from ramiform.runtime.engine.paths import EngineParts
from ramiform.runtime.engine.paths.step_graphs import LargestStep, StepGraphs
from ramiform.runtime.models.size import model_size
from ramiform.runtime.scheduler.plan import DraftNode, ForwardPlan, Row, Sample
from ramiform.tools.planner.memory import read_bytes

# A: facts, compilation, correctness


def facts(hour: Hour) -> Measurement:
    row: dict[str, Any] = {"python": sys.version.split()[0], "torch": torch.__version__}
    try:
        import triton

        row["triton"] = triton.__version__
    except ModuleNotFoundError:
        row["triton"] = "absent"
    if hour.device.type == "cuda":
        properties = torch.cuda.get_device_properties(hour.device)
        free, total = torch.cuda.mem_get_info(hour.device)
        row |= {"device": properties.name, "SMs": properties.multi_processor_count, "CUDA": torch.version.cuda}
        row |= {"free GiB": free / 2**30, "GiB": total / 2**30}
        size = 1 << 30
        source = torch.empty(size, dtype=torch.uint8, device=hour.device)
        target = torch.empty_like(source)
        row["copy TB/s"] = 2 * size / hour.seconds(lambda: target.copy_(source)) / 1e12
        a = torch.randn(8192, 8192, device=hour.device, dtype=torch.bfloat16)
        row["product TFLOP/s"] = 2 * 8192**3 / hour.seconds(lambda: a @ a) / 1e12
    yield row


def compilations(hour: Hour) -> Measurement:
    """Compile each kernel of two models, cold unless TRITON_CACHE_DIR has them."""
    for name in ("Llama-3-8B", "Qwen3-30B-A3B"):
        config = config_of(name, tiny=hour.dry)
        model = dummy_model(config, torch.device("meta"), hour.dtype, for_device(hour.device, "triton"))
        start = time.perf_counter()
        num = compile_kernels(model, hour.dtype) if hour.device.type == "cuda" else 0
        yield {"model": name, "kernels": num, "s": time.perf_counter() - start}


def correctness(hour: Hour) -> Measurement:
    """Compare the engine on kernels, with graphs and without, with plain torch, in float32."""
    config = config_of("Llama-3-8B", tiny=True)
    steps = _mixed_steps(config.vocab_size, 3 if hour.dry else 40)
    results: dict[str, list[list[list[int]]]] = {}
    for way in ("plain torch", "kernels", "graphs"):
        ops = for_device(hour.device, "reference" if way == "plain torch" else "triton")
        model = dummy_model(config, hour.device, torch.float32, ops, deviation=0.4)  # clearly likeliest tokens
        pool = KvPool(KvMemory(config, 64, device=hour.device, dtype=torch.float32))
        made = None
        if way == "graphs":
            made = StepGraphs(model, pool, LargestStep(4, num_places=256, max_tokens=32), hour.capture)
            with torch.inference_mode():
                made.capture_all()
        engine = ForwardEngine(EngineParts(model, pool, graphs=made))
        results[way] = [[result.tokens for result in engine.run(plan).rows] for plan in steps]
    for way in ("kernels", "graphs"):
        pairs = list(zip(results[way], results["plain torch"], strict=True))
        yield {"way": way, "steps": len(pairs), "steps that differ": sum(ours != judge for ours, judge in pairs)}


def _mixed_steps(vocab_size: int, num: int) -> list[ForwardPlan]:
    """Return steps of prompts, decode rows and drafts of four sequences with pages of their own."""
    import random

    draw, lengths, steps = random.Random(0), [0] * 4, []
    sample = Sample(temperature=0.0, draw=0)
    for number in range(num):
        rows = []
        for index in range(4):
            count = draw.choice([1, 1, 3, 9])
            if lengths[index] + count > 240:
                lengths[index] = 0
            settings: dict[str, Any] = {}
            tokens = draw.choices(range(vocab_size), k=count)
            if count == 1 and draw.random() < 0.4:
                tokens += draw.sample(range(vocab_size), k=3)
                settings = {"parents": [-1, 0, 0], "nodes": [DraftNode(draw=0)] * 3}
            pages = list(range(index * 16, index * 16 + 16))
            row = Row(
                rid=str(index), tokens=tokens, first_position=lengths[index], pages=pages, sample=sample, **settings
            )
            lengths[index] += count
            rows.append(row)
        steps.append(ForwardPlan(step=number, copies=[], rows=rows))
    return steps


# C and D: engines


def decode_steps(
    hour: Hour,
    name: str,
    batches: tuple[int, ...],
    *,
    ways: tuple[bool, ...] = (True,),
    keys: int = 1024,
    **format: Any,
) -> Measurement:
    """Measure decode steps: in all, what the host does, and the part of the time in which the device has nothing."""
    for graphs in ways:
        batches = (2,) if hour.dry else batches
        keys = 16 if hour.dry else keys
        engine = hour.engine(name, max_running=max(batches), graphs=graphs, keys=keys, **format)
        for batch in batches:
            yield _decode_step(hour, engine, batch, keys) | {"model": name, "graphs": graphs, **format}
        del engine
        gc.collect()


def _decode_step(hour: Hour, engine: ForwardEngine, batch: int, keys: int) -> dict[str, Any]:
    """Run decode steps, each launched before the last one is read."""
    num_steps, host, launched, begun = 2 if hour.dry else 60, 0.0, None, 0.0
    for number, (plan, sampling) in zip(range(num_steps + 5), decode_plans(batch, keys), strict=False):
        if number == (1 if hour.dry else 10):
            begun, host, first = time.perf_counter(), 0.0, number
        start = time.perf_counter()
        following = engine.launch(plan)
        host += time.perf_counter() - start
        if launched is not None:
            launched.wait()
        start = time.perf_counter()
        if plan.is_open:
            following.sample(sampling)
        host += time.perf_counter() - start
        launched = following
        if number == num_steps - 1:
            break
    assert launched is not None
    launched.wait()
    count = num_steps - first
    step = (time.perf_counter() - begun) / count
    model = engine._runner.model
    weights = read_bytes(model_size(model.config), "bf16", batch)
    kv = batch * keys * bytes_per_page(model.config, engine._runner.pool.dtype) / PAGE_SIZE
    row = {"batch": batch, "keys": keys, "ms": 1e3 * step, "host ms": 1e3 * host / count, "tok/s": batch / step}
    row["bf16 GB/s"] = (weights + kv) / step / 1e9
    if hour.device.type == "cuda":
        row["GiB"] = torch.cuda.max_memory_allocated(hour.device) / 2**30
    return row


def prefill(hour: Hour, name: str, lengths: tuple[int, ...]) -> Measurement:
    """Measure a prompt alone, in one step."""
    lengths = (16,) if hour.dry else lengths
    engine = hour.engine(name, max_running=1, keys=max(lengths))
    flops = 2 * model_size(engine._runner.model.config).active_linear
    for length in lengths:
        pages = list(range(-(-length // PAGE_SIZE)))
        row = Row(rid="a", tokens=[1] * length, first_position=0, pages=pages, sample=Sample(temperature=0.0, draw=0))
        plan = ForwardPlan(step=0, copies=[], rows=[row])
        taken = statistics.median(
            timed(time.perf_counter, partial(engine.run, plan)) for _ in range(1 if hour.dry else 6)
        )
        yield {"model": name, "tokens": length, "ms": 1e3 * taken, "TFLOP/s": flops * length / taken / 1e12}


def mixed_steps(hour: Hour, name: str) -> Measurement:
    """Measure other steps of few tokens: short continuations beside decode rows, and drafts of a tree."""
    batch, keys = (2, 16) if hour.dry else (16, 1024)
    sample, own = Sample(temperature=0.0, draw=0), pages_of_row(keys)
    for graphs in (True,) if hour.dry else (True, False):
        engine = hour.engine(name, max_running=batch, graphs=graphs, keys=keys)
        for kind, count in (("continue", 6), ("verify", 8)):
            settings: dict[str, Any] = {}
            if kind == "verify":
                settings = {"parents": [-1, 0, 0, 1, 1, 2, -1], "nodes": [DraftNode(draw=0)] * 7}
            rows = [
                Row(
                    rid=str(index),
                    tokens=list(range(1, 1 + (count if index % 2 or kind == "verify" else 1))),
                    first_position=keys,
                    pages=list(range(index * own, index * own + own)),
                    sample=sample,
                    **settings,
                )
                for index in range(batch if not hour.dry else 1)
            ]
            run = partial(engine.run, ForwardPlan(step=0, copies=[], rows=rows))
            taken = statistics.median(timed(time.perf_counter, run) for _ in range(2 if hour.dry else 20))
            yield {"model": name, "kind": kind, "rows": len(rows), "graphs": graphs, "ms": 1e3 * taken}
        del engine
        gc.collect()


def top_kernels(hour: Hour, name: str) -> Measurement:
    """Profile decode steps; the kernels that take most of the device's time."""
    from torch.profiler import ProfilerActivity, profile

    batch, keys = (1, 16) if hour.dry else (32, 1024)
    engine = hour.engine(name, max_running=batch, keys=keys)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if hour.device.type == "cuda" else [])]
    plans = [plan for _, (plan, _) in zip(range(1), decode_plans(batch, keys), strict=False)]
    engine.run(plans[0])
    with profile(activities=activities) as profiled:
        for _ in range(1 if hour.dry else 10):
            engine.run(plans[0])
    events = profiled.key_averages()
    attribute = "self_device_time_total" if hour.device.type == "cuda" else "self_cpu_time_total"
    total = sum(getattr(event, attribute) for event in events) or 1
    for event in sorted(events, key=lambda event: -getattr(event, attribute))[: 3 if hour.dry else 15]:
        taken = getattr(event, attribute)
        yield {"model": name, "kernel": event.key[:60], "calls": event.count, "us": taken, "%": 100 * taken / total}


def profiled_kernels(hour: Hour) -> Measurement:
    """Launch the kernels that matter most, for ncu: prompt attention, sampling, and those of a decode step."""
    hour.profiled = True
    for measure in (kernels.chunk_attention, kernels.sampling):
        for row in list(measure(hour))[:1]:
            yield {"kernel": measure.__name__, **row}
    engine = hour.engine("Llama-3-8B", max_running=1, graphs=False, keys=16 if hour.dry else 4096)
    plan, _ = next(decode_plans(1, 16 if hour.dry else 4096))
    hour.profile(lambda: engine.run(plan))
    yield {"kernel": "decode step"}


SECTIONS: dict[str, list[tuple[str, Callable[[Hour], Measurement]]]] = {
    "A": [("facts", facts), ("compilations", compilations), ("correctness", correctness)],
    "B": [(measure.__name__.replace("_", " "), measure) for measure in kernels.ALL],
    "C": [
        ("decode", lambda hour: decode_steps(hour, "Llama-3-8B", (1, 8, 32, 64, 128), ways=(True, False))),
        ("prefill", lambda hour: prefill(hour, "Llama-3-8B", (128, 512, 1024, 2048, 4096))),
        ("few tokens", lambda hour: mixed_steps(hour, "Llama-3-8B")),
        ("top kernels", lambda hour: top_kernels(hour, "Llama-3-8B")),
    ],
    "D": [
        ("0.6B", lambda hour: decode_steps(hour, "Qwen3-0.6B", (1, 32, 128))),
        ("7B", lambda hour: decode_steps(hour, "Qwen2.5-7B", (1, 32))),
        ("heads of 256", lambda hour: decode_steps(hour, "heads of 256", (1, 32))),
        ("fp8 KV", lambda hour: decode_steps(hour, "Llama-3-8B", (1, 32, 128), kv="fp8")),
        ("int8 KV", lambda hour: decode_steps(hour, "Llama-3-8B", (1, 128), kv="int8")),
        ("int4", lambda hour: decode_steps(hour, "Llama-3-8B", (1, 32), quantize="int4")),
        ("int8", lambda hour: decode_steps(hour, "Llama-3-8B", (1, 32), quantize="int8")),
        ("fp8", lambda hour: decode_steps(hour, "Llama-3-8B", (1, 32), quantize="fp8")),
        ("30B-A3B", lambda hour: decode_steps(hour, "Qwen3-30B-A3B", (1, 32, 128))),
        ("30B-A3B kernels", lambda hour: top_kernels(hour, "Qwen3-30B-A3B")),
    ],
    "E": [("profiled", profiled_kernels)],
}


def shown(rows: list[dict[str, Any]]) -> str:
    """Return one table of all measurements: each one's figures in a line, since their columns differ."""
    said = [", ".join(f"{name} {cell(row[name])}" for name in row if name not in ("what", "at s")) for row in rows]
    return matrix(["figures"], [(row["what"], [text]) for row, text in zip(rows, said, strict=True)], "what")


def main(
    sections: Annotated[list[str], typer.Argument(help="A, B, C, D or E")],
    out: Annotated[Path, typer.Option(help="folder of the results")] = Path("gpu_hour"),
    only: Only = "",
    dry: Annotated[bool, typer.Option("--dry-run", help="tiny shapes, also without a device")] = False,
) -> None:
    if unknown := set(sections) - set(SECTIONS):
        raise typer.BadParameter(f"there is no section {', '.join(sorted(unknown))}")
    has_device = torch.cuda.is_available()
    if not has_device and not dry:
        raise typer.BadParameter("there is no CUDA device; --dry-run runs tiny shapes without one")
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    for section in sections:
        hour = Hour(torch.device("cuda:0" if has_device else "cpu"), dry, out / f"{section}.jsonl")
        for name, measure in SECTIONS[section]:
            if only in name:
                hour.run(name, partial(measure, hour))
        text = f"# GPU hour, section {section}\n\n{shown(hour.rows)}\n"
        (out / f"{section}.md").write_text(text)
        print(text)
        failed |= any("failed" in row and "tile" not in row for row in hour.rows)
    raise typer.Exit(failed)


if __name__ == "__main__":
    typer.run(main)
