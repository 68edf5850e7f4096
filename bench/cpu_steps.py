"""Steps of a model on a CPU, by kind: decode rows, shared prefixes, prompt chunks, and mixes of them.

    python -P bench/cpu_steps.py [MODEL] [--dtype bfloat16] [--kv-dtype int8] [--before CHECKOUT/.venv/bin/python]
    python -P bench/cpu_steps.py [MODEL] --dtype bfloat16 --formats auto,int8,fp8,int4

Each kind of step is computed from its inputs to its logits, over a cache of random numbers or codes. `--before` names
the Python of an environment with another checkout installed: both compute each kind in turn, `--rounds` times, and the
median of the rounds' ratios is shown. The last columns are the products' work of the step, and the rate at which it was
computed. With `--formats` the dtypes of keys and values take turns, over decode rows and a chunk: shown are the medians
of their rounds' ratios to the first one, above 1 where a dtype is faster than that. With `--processor-time`
milliseconds are those of all threads' processor time, which says more where other processes run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import typer
from msgspec import structs

from ramiform.bench.harness import (
    Ask,
    Before,
    Model,
    Only,
    Out,
    Threads,
    checkouts,
    interleaved,
    median_ratio,
    report,
    table,
    timed,
)

PAGE = 16
SHARED_PAGES = 62  # the first pages of the pool hold a shared prefix of 992 tokens


def rows(
    count: int, prefix: int, new: int, *, shared: bool = False, own: int = 0, pages_from: int = 64, **fields: list[Any]
) -> list[Any]:
    """Return `count` rows of `new` tokens behind `prefix` + `own` tokens; the prefix has the same pages for all if
    `shared`. `fields` are other fields of the rows, by name."""
    from ramiform.runtime.scheduler.plan import Row

    made = []
    for index in range(count):
        total, common = -(-(prefix + own + new) // PAGE), prefix // PAGE if shared else 0
        first = pages_from + index * (total - common)
        pages = [*range(common), *range(first, first + total - common)]
        tokens = [(7 * index + place) % 1000 for place in range(new)]
        others = {name: values[index] for name, values in fields.items()}
        made.append(Row(rid="", tokens=tokens, first_position=prefix + own, pages=pages, **others))
    return made


def kinds() -> dict[str, list[Any]]:
    prefix = SHARED_PAGES * PAGE
    decode = rows(16, prefix, 1, shared=True, own=40)
    return {
        "1 row at 100 tokens": rows(1, 96, 1, own=4),
        "1 row at 1,000": rows(1, prefix, 1, own=8),
        "8 rows at 200": rows(8, 192, 1, own=8),
        "32 rows at 100": rows(32, 96, 1, own=4),
        "16 rows over a shared 992": decode,
        "16 rows of 250 behind a shared 992": rows(16, prefix, 1, shared=True, own=249),
        "the same beside a chunk of 64": [*decode, *rows(1, 0, 64, pages_from=500)],
        "16 rows of 30 tokens over a shared 992": rows(16, prefix, 30, shared=True),
        "a chunk of 512": rows(1, 0, 512),
        "a chunk of 512 behind 1,536": rows(1, 1536, 512),
        "a chunk of 2,048": rows(1, 0, 2048),
    }


def kinds_of_formats() -> dict[str, list[Any]]:
    return {
        "8 rows at 1,000": rows(8, 992, 1, own=8, pages_from=0),
        "8 rows at 8,000": rows(8, 7984, 1, own=16, pages_from=0),
        "a chunk of 512 behind 512": rows(1, 512, 512, pages_from=0),
    }


def set_threads(threads: int) -> None:
    """Set the threads of torch and of compiled loops."""
    from ramiform.kernels.cpu import thread_pool

    torch.set_num_threads(threads)
    thread_pool.set_num_threads(threads)


def random_cache(model: Any, num_pages: int, kv_dtype: str = "auto") -> Any:
    """Return layers of a cache of random numbers, in the model's dtype or in one of codes."""
    from ramiform.runtime.engine.kv_pool import KvMemory, KvPool

    config, device = model.config, torch.device("cpu")
    if kv_dtype == "auto":
        memory = KvMemory(config, num_pages, device=device, dtype=model.dtype)
        for part in (memory.k_LSKD, memory.v_LSKD):
            part.normal_()
        return KvPool(memory).layers
    try:
        from ramiform.kernels.reference.quantise import E4M3, PACKED_INT4
        from ramiform.kernels.reference.scaled_codes import pack
        from ramiform.runtime.models.stored.kv_scales import KvStatistics
    except ImportError:  # an older checkout
        return _cache_with_static_scales(config, num_pages)
    dtype = {"int8": torch.int8, "fp8": E4M3, "int4": PACKED_INT4}[kv_dtype]
    memory = KvMemory(config, num_pages, device=device, dtype=dtype, is_scaled=True)
    for part in (*memory.k_LSKD, *memory.v_LSKD):
        part.copy_(pack(torch.randn(*part.shape[:2], config.head_dim), dtype))
    nothing = torch.zeros(config.num_kv_layers, config.num_kv_heads, config.head_dim)
    frequencies = 1e6 ** -(torch.arange(config.head_dim // 2) / (config.head_dim // 2))
    every = frequencies.expand(config.num_kv_layers, -1).contiguous()
    return KvPool(memory, None, KvStatistics(every, nothing, nothing, torch.ones_like(nothing))).layers


def _cache_with_static_scales(config: Any, num_pages: int) -> Any:
    """Return layers of an older checkout's cache of random codes in int8."""
    from ramiform.runtime.engine.kv_pool import KvMemory, KvPool

    try:
        from ramiform.runtime.models.stored.kv_scales import KvScales
    except ImportError:
        from ramiform.runtime.models.kv_scales import KvScales  # type: ignore[import-not-found, no-redef]
    memory = KvMemory(config, num_pages, device=torch.device("cpu"), dtype=torch.int8)
    for part in (memory.k_LSKD, memory.v_LSKD):
        part.copy_(torch.randn(part.shape).mul_(40).clamp_(-127, 127))
    scales = KvScales(*torch.full((2, config.num_kv_layers, config.num_kv_heads), 1 / 40))
    return KvPool(memory, None, scales).layers


def step_of(model: Any, step: list[Any], layers: Any, *, whole: bool = False) -> Callable[[], object]:
    """Return what computes a step from its rows to its logits; `whole`: by the one call that a server makes."""
    from ramiform.runtime.engine.inputs import decoder_inputs

    parts = [step]
    if getattr(model, "widens", False):  # else an older checkout, or a model without such products
        from ramiform.kernels.widening import WIDENED_FROM

        prompts = [row for row in step if len(row.tokens) >= WIDENED_FROM]
        others = [row for row in step if len(row.tokens) < WIDENED_FROM]
        parts = [part for part in (others, [structs.replace(row, widened=True) for row in prompts]) if part]

    @torch.inference_mode()
    def compute() -> object:
        for rows in parts:
            last = np.cumsum([len(row.tokens) for row in rows]) - 1
            inputs = decoder_inputs(rows, model, last, layers[0])
            if whole and hasattr(model, "logits_of_step"):  # else an older checkout
                model.logits_of_step(inputs, layers)
            else:
                model.logits(model.hidden(inputs, layers))
        return None

    return compute


def worker(model: str | None, dtype: str, quantize: str | None, threads: int, repeat: int, processor_time: bool) -> Ask:
    """Return what computes a kind of step over a cache of a dtype and a number of pages, and gives its seconds and the
    model's number of parameters."""
    from ramiform.runtime.models.checkpoint import find_checkpoint
    from ramiform.runtime.models.load import load_model

    set_threads(threads)
    decoder = load_model(
        find_checkpoint(model), device=torch.device("cpu"), dtype=getattr(torch, dtype), quantize=quantize
    )
    caches: dict[tuple[str, int], Any] = {}
    steps = kinds() | kinds_of_formats()
    clock = time.process_time if processor_time else time.perf_counter

    def measure(question: tuple[str, str, int]) -> tuple[float, int]:
        name, kv_dtype, num_pages = question
        if (kv_dtype, num_pages) not in caches:
            caches[kv_dtype, num_pages] = random_cache(decoder, num_pages, kv_dtype)
        compute = step_of(decoder, steps[name], caches[kv_dtype, num_pages], whole=True)
        compute()
        return statistics.median(timed(clock, compute) for _ in range(repeat)), decoder.num_parameters

    return measure


def compare_formats(ask: Ask, formats: list[str], rounds: int) -> list[dict[str, Any]]:
    """Return rows of the steps' times with each dtype of keys and values, which take turns."""
    found = []
    for name, step in kinds_of_formats().items():
        pages = 1 + max(page for row in step for page in row.pages)
        ways = {each: lambda _, each=each: ask((name, each, pages))[0] for each in formats}  # noqa: B023  (called here)
        times = interleaved(rounds, ways)
        row: dict[str, Any] = {"step": name, f"{formats[0]} ms": f"{1e3 * statistics.median(times[formats[0]]):.1f}"}
        row |= {each: f"{median_ratio(times[formats[0]], times[each]):.2f}" for each in formats[1:]}
        found.append(row)
        print(table(found[-1:]).splitlines()[-1], flush=True)
    return found


def main(
    model: Model = None,
    dtype: Annotated[str, typer.Option(help="of weights and cache")] = "float32",
    quantize: Annotated[str | None, typer.Option(help="int8 or int4: weights are rounded when they are read")] = None,
    kv_dtype: Annotated[str, typer.Option(help="auto: that of --dtype; int8, fp8 or int4")] = "auto",
    formats: Annotated[str, typer.Option(help="of keys and values, that take turns; the first is the base")] = "",
    threads: Threads = 2,
    repeat: Annotated[int, typer.Option(help="steps of each kind in a round")] = 5,
    rounds: Annotated[int, typer.Option(help="of each kind, after one that warms up")] = 5,
    before: Before = None,
    processor_time: Annotated[bool, typer.Option(help="of all threads, instead of the wall's")] = False,
    only: Only = "",
    out: Out = None,
) -> None:
    settings = {"model": model, "dtype": dtype, "quantize": quantize, "threads": threads, "repeat": repeat}
    settings["processor_time"] = processor_time
    if formats:
        with checkouts(__file__, None, **settings) as [ask]:
            report(
                "Steps on a CPU by the dtype of keys and values",
                table(compare_formats(ask, formats.split(","), rounds)),
                out=out,
            )
        return
    found = []
    with checkouts(__file__, before, **settings) as asks:
        for name, step in kinds().items():
            if only in name:
                ways = dict(zip(("now", "before"), asks, strict=False))
                answers = interleaved(
                    rounds,
                    {key: lambda _, ask=ask, name=name: ask((name, kv_dtype, 1200)) for key, ask in ways.items()},
                )
                times = {key: [own for own, _ in found] for key, found in answers.items()}
                seconds, (_, parameters) = statistics.median(times["now"]), answers["now"][0]
                row: dict[str, Any] = {"step": name, "ms": f"{1e3 * seconds:.2f}"}
                if before is not None:
                    other, ratio = statistics.median(times["before"]), median_ratio(times["before"], times["now"])
                    row |= {"before": f"{1e3 * other:.2f}", "ratio": f"{ratio:.2f}"}
                work = 2e-9 * parameters * sum(len(each.tokens) for each in step)
                found.append(row | {"GFLOP of products": f"{work:.2f}", "GFLOP/s": f"{work / seconds:.0f}"})
                print(table(found[-1:]).splitlines()[-1], flush=True)
    report("Steps on a CPU", table(found), out=out)


if __name__ == "__main__":
    typer.run(main)
