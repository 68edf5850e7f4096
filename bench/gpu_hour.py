"""The first hour on a GPU: correctness, kernels, an engine, other models and formats, profiles, in five sections.

    bash bench/gpu_hour.sh [A B C D E]           # on a machine with a CUDA device; see docs/gpu.md
    python -P bench/gpu_hour.py A --out FOLDER   # one section; --dry-run: tiny shapes, also without a device

Weights are random, of real shapes. Each section prints one table and writes a line of JSON for each measurement to
FOLDER/SECTION.jsonl, at once, so that what a time limit cuts off is not lost. A measurement that fails is a line too.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ramiform.bench.dummy_models import config_of, decode_plans, dummy_model, pages_of_row
from ramiform.bench.harness import cell
from ramiform.kernels import KvCache, SamplingTensors
from ramiform.kernels.dispatch import for_device
from ramiform.runtime.engine.compile_kernels import compile_kernels
from ramiform.runtime.engine.engine import ForwardEngine
from ramiform.runtime.engine.kv_pool import PAGE_SIZE, KvMemory, KvPool, bytes_per_page
from ramiform.runtime.engine.step_graphs import CudaCapture, StepGraphs
from ramiform.runtime.models.kv_scales import KvScales
from ramiform.runtime.models.size import model_size
from ramiform.runtime.planner.memory import read_bytes
from ramiform.runtime.scheduler.plan import DraftNode, ForwardPlan, Row, Sample

Measurement = Iterator[dict[str, Any]]
KV_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass
class Hour:
    """The device, the shapes, and what was measured so far."""

    device: torch.device
    dry: bool  # tiny shapes
    file: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights; Triton's interpreter computes no bfloat16."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def run(self, name: str, measure: Callable[[], Measurement]) -> None:
        """Run a measurement, and write its lines as they come."""
        try:
            for row in measure():
                self._note({"what": name, **row})
        except Exception as error:
            traceback.print_exc()
            self._note({"what": name, "failed": f"{type(error).__name__}: {str(error).splitlines()[:1]}"})
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _note(self, row: dict[str, Any]) -> None:
        row |= {"at s": round(time.monotonic() - self.start, 1)}
        self.rows.append(row)
        with self.file.open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")
        print(json.dumps(row, default=str), flush=True)

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the median time of a call on the device; of one call in a dry run."""
        if self.device.type == "cuda":
            from triton.testing import do_bench

            return float(do_bench(call, warmup=5, rep=5 if self.dry else 50, return_mode="median")) / 1e3
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def engine(
        self,
        name: str,
        *,
        max_running: int,
        graphs: bool = True,
        quantize: str | None = None,
        kv: str = "bf16",
        keys: int = 1024,
        context_length: int = 8192,
    ) -> ForwardEngine:
        """Return an engine of a dummy model, with pages for `max_running` rows of `keys` keys and some more."""
        config = config_of(name, tiny=self.dry)
        ops = for_device(self.device, "triton", attention_cap=config.attention_cap)
        context_length = min(context_length, config.context_length)
        model = dummy_model(config, self.device, self.dtype, ops, quantize=quantize, context_length=context_length)
        kv_dtype = self.dtype if kv == "bf16" else KV_DTYPES[kv]
        scales = None
        if kv_dtype.itemsize == 1:
            ones_LK = torch.full((config.num_layers, config.num_kv_heads), 0.05, device=self.device)
            scales = KvScales(ones_LK, ones_LK)
        num_pages = max_running * pages_of_row(keys)
        pool = KvPool(KvMemory(config, num_pages, device=self.device, dtype=kv_dtype), None, scales)
        for memory in pool.memories:
            memory.view(torch.uint8).zero_()
        made = None
        if graphs and StepGraphs.supports(model, pool.layers):
            capture = CudaCapture() if self.device.type == "cuda" else _call_again
            made = StepGraphs(
                model,
                pool.layers,
                max_rows=max_running,
                num_places=context_length,
                captures=(),
                capture=capture,
                max_tokens=16 if self.dry else 256,
            )
        engine = ForwardEngine(model, pool, context_length=context_length, max_running=max_running, graphs=made)
        if self.device.type == "cuda":
            engine.warm_up()
        elif made is not None:
            with torch.inference_mode():
                made.capture_all()
        return engine


def _call_again(forward: Callable[[], None]) -> Callable[[], None]:
    return forward


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
            capture = CudaCapture() if hour.device.type == "cuda" else _call_again
            made = StepGraphs(
                model, pool.layers, max_rows=4, num_places=256, captures=(), capture=capture, max_tokens=32
            )
            with torch.inference_mode():
                made.capture_all()
        engine = ForwardEngine(model, pool, graphs=made)
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


# B: kernels


def decode_attention(hour: Hour) -> Measurement:
    """Sweep stages, keys of a tile, warps and splits of decode attention."""
    from ramiform.kernels.triton import launch_configs, paged_rows, split_attention, splits

    H, K, D = (2, 1, 16) if hour.dry else (32, 8, 128)
    shapes = [(1, 64)] if hour.dry else [(1, 1024), (1, 8192), (1, 32768), (32, 1024), (128, 1024), (128, 4096)]
    tiles = [(3, 64, 4)] if hour.dry else [(s, k, w) for s in (3, 5, 7) for k in (32, 64, 128) for w in (4, 8)]
    plain_tile = split_attention.split_tile
    for num_rows, num_keys in shapes:
        for kv in ("bf16",) if hour.dry else KV_DTYPES:
            dtype = hour.dtype if kv == "bf16" else KV_DTYPES[kv]
            pages = -(-num_keys // PAGE_SIZE)
            memory = torch.zeros(2, num_rows * pages * PAGE_SIZE, K, D, device=hour.device, dtype=dtype)
            scale_K = torch.ones(K, device=hour.device) if dtype.itemsize == 1 else None
            cache = KvCache(memory[0], memory[1], scale_K, scale_K)
            ints = partial(torch.full, (num_rows,), dtype=torch.int32, device=hour.device)
            rows = paged_rows.PagedRows(
                torch.randperm(num_rows * pages, device=hour.device).view(num_rows, pages).int(),
                ints(num_keys),
                torch.arange(num_rows, dtype=torch.int32, device=hour.device),
                ints(1),
                ints(num_keys - 1),
                None,
                1,
                PAGE_SIZE,
                None,
            )
            q_THD = torch.randn(num_rows, H, D, device=hour.device, dtype=hour.dtype)
            out_THD = torch.empty_like(q_THD)
            for stages, keys, warps in tiles:
                for per_sm in (4,) if hour.dry else (2, 4, 8):
                    changes = {"keys": keys, "num_warps": warps, "num_stages": stages}
                    split_attention.split_tile = lambda *args, changes=changes: plain_tile(*args)._replace(**changes)
                    wanted = max(1, launch_configs.num_splits_wanted(hour.device, K) * per_sm // 4)
                    if hour.dry:
                        wanted = 1
                    cut = splits.make_splits(rows.num_keys_R, num_wanted=wanted, tile=keys)
                    row = {"rows": num_rows, "keys": num_keys, "kv": kv, "stages": stages, "tile": keys, "warps": warps}
                    try:
                        taken = hour.seconds(
                            partial(split_attention.split_attention, q_THD, cache, rows, cut, out_THD, D**-0.5)
                        )
                        yield row | {"CTAs an SM": per_sm, "us": 1e6 * taken, "GB/s": memory.nbytes / taken / 1e9}
                    except Exception as error:  # out of shared memory
                        yield row | {"failed": type(error).__name__}
                    finally:
                        split_attention.split_tile = plain_tile


def chunk_attention(hour: Hour) -> Measurement:
    """Measure attention of a prompt over its keys, and torch's on contiguous keys."""
    from ramiform.kernels import AttentionArgs, RowSpan

    H, K, D = (2, 1, 16) if hour.dry else (32, 8, 128)
    ops = for_device(hour.device, "triton")
    for num_keys in (16,) if hour.dry else (1024, 2048, 8192, 32768):
        pages = torch.arange(-(-num_keys // PAGE_SIZE)).numpy()
        memory = torch.randn(2, len(pages) * PAGE_SIZE, K, D, device=hour.device, dtype=hour.dtype)
        q_THD = torch.randn(num_keys, H, D, device=hour.device, dtype=hour.dtype)
        cache = KvCache(memory[0], memory[1])
        span = RowSpan(0, num_keys, pages)
        attention = ops.attention(AttentionArgs([span], cache, H, PAGE_SIZE, None, hour.dtype))
        taken = hour.seconds(partial(attention.attend, q_THD, cache, D**-0.5))
        heads = [x[:num_keys].transpose(0, 1)[None] for x in (q_THD, memory[0], memory[1])]
        theirs = hour.seconds(
            partial(torch.nn.functional.scaled_dot_product_attention, *heads, is_causal=True, enable_gqa=True)
        )
        operations = 2 * H * D * num_keys * (num_keys + 1)
        yield {"tokens": num_keys, "TFLOP/s": operations / taken / 1e12, "torch TFLOP/s": operations / theirs / 1e12}


def experts(hour: Hour) -> Measurement:
    """Measure the products of a mixture's experts, and torch's grouped product where there is one."""
    ops = for_device(hour.device, "triton")
    N, E, size, chosen = (2, 16, 16, 1) if hour.dry else (128, 2048, 768, 8)
    weight = torch.randn(N, 2 * size, E, device=hour.device, dtype=hour.dtype)
    for tokens in (4,) if hour.dry else (1, 32, 128, 1024, 8192):
        pairs = tokens * chosen
        expert_P = torch.randint(N, (pairs,), device=hour.device).sort().values
        ends = torch.bincount(expert_P, minlength=N).cumsum(0)
        rows_P = torch.randint(tokens, (pairs,), device=hour.device)
        x = torch.randn(tokens, E, device=hour.device, dtype=hour.dtype)
        taken = hour.seconds(partial(ops.grouped_matmul, x, weight, ends, rows_P))
        row = {"tokens": tokens, "us": 1e6 * taken, "TFLOP/s": 4 * pairs * E * size / taken / 1e12}
        if hour.device.type == "cuda" and hasattr(torch, "_grouped_mm"):
            theirs = partial(torch._grouped_mm, x[rows_P], weight.transpose(1, 2), offs=ends.int())
            row["torch us"] = 1e6 * hour.seconds(theirs)
        yield row


def sampling(hour: Hour) -> Measurement:
    """Measure draws, and a softmax and multinomial of torch without filters."""
    ops, vocab_size = for_device(hour.device, "triton"), 96 if hour.dry else 128256
    for num_rows in (2,) if hour.dry else (1, 32, 128, 512):
        logits_RV = torch.randn(num_rows, vocab_size, device=hour.device)
        ones_R = torch.ones(num_rows, device=hour.device)
        theirs = hour.seconds(lambda x=logits_RV: torch.multinomial(x.softmax(-1), 1))
        for name, top_k, top_p in (("all", vocab_size, 1.0), ("top-p", vocab_size, 0.9), ("top-k", 50, 1.0)):
            draws = torch.arange(num_rows, device=hour.device)
            tensors = (ones_R, (ones_R * top_k).long(), ones_R.double() * top_p, ones_R * 0, draws)
            taken = hour.seconds(partial(ops.sample_tokens, logits_RV, SamplingTensors(*tensors)))
            yield {"rows": num_rows, "filter": name, "us": 1e6 * taken, "torch us": 1e6 * theirs}


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
    num_steps, host, launched, begun = 3 if hour.dry else 60, 0.0, None, 0.0
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
        times = []
        for _ in range(1 if hour.dry else 6):
            start = time.perf_counter()
            engine.run(plan)
            times.append(time.perf_counter() - start)
        taken = sorted(times)[len(times) // 2]
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
            times = []
            for _ in range(2 if hour.dry else 20):
                start = time.perf_counter()
                engine.run(ForwardPlan(step=0, copies=[], rows=rows))
                times.append(time.perf_counter() - start)
            taken = sorted(times)[len(times) // 2]
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
    """Launch the three kernels that matter most a few times, for ncu: decode attention, prompt attention, sampling."""
    for measure in (chunk_attention, sampling):
        for row in list(measure(hour))[:1]:
            yield {"kernel": measure.__name__, **row}
    engine = hour.engine("Llama-3-8B", max_running=1, graphs=False, keys=16 if hour.dry else 4096)
    plan, _ = next(decode_plans(1, 16 if hour.dry else 4096))
    engine.run(plan)
    yield {"kernel": "decode step"}


SECTIONS: dict[str, list[tuple[str, Callable[[Hour], Measurement]]]] = {
    "A": [("facts", facts), ("compilations", compilations), ("correctness", correctness)],
    "B": [
        ("decode attention", decode_attention),
        ("chunk attention", chunk_attention),
        ("experts", experts),
        ("sampling", sampling),
    ],
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
    lines = ["| what | figures |", "| --- | --- |"]
    for row in rows:
        figures = ", ".join(f"{name} {cell(value)}" for name, value in row.items() if name not in ("what", "at s"))
        lines.append(f"| {row['what']} | {figures} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--out", type=Path, default=Path("gpu_hour"))
    parser.add_argument("--only", default="", help="measurements whose name has this in it")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes; in Triton's interpreter without a device")
    arguments = parser.parse_args()
    has_device = torch.cuda.is_available()
    if not has_device and not arguments.dry_run:
        print("there is no CUDA device; --dry-run runs tiny shapes without one", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda:0" if has_device else "cpu")
    failed = False
    for section in arguments.sections:
        hour = Hour(device, arguments.dry_run, arguments.out / f"{section}.jsonl")
        for name, measure in SECTIONS[section]:
            if arguments.only in name:
                hour.run(name, partial(measure, hour))
        text = f"# GPU hour, section {section}\n\n{shown(hour.rows)}\n"
        (arguments.out / f"{section}.md").write_text(text)
        print(text)
        failed |= any("failed" in row and "tile" not in row for row in hour.rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
