"""Roofline estimate of a decode step on a GPU that was not there: bytes from the models' sizes, launches and the host's
time from the mocked driver. Nothing was measured on a device.

    python -P bench/gpu/paper.py [--device h100] [--steps 100] [--out FILE]

A step takes the longest of its reads of memory, its products, and the host's work, which runs beside the step before.
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)  # the real launcher is measured

import gc
import time
from typing import Annotated, Any

import typer

from ramiform.bench.gpu.dummy_models import config_of, decode_plans, pages_of_row
from ramiform.bench.gpu.mocked_driver import (
    counts,
    decode_step,
    install,
    launches_of,
    mocked_engine,
)
from ramiform.bench.harness import Out, report, table
from ramiform.runtime.models.config import ModelConfig
from ramiform.runtime.models.size import model_size
from ramiform.tools.planner.devices import DEVICES, DeviceSpec
from ramiform.tools.planner.memory import kv_bytes, read_bytes

REACHED = 0.83  # part of the data sheet's bandwidth that a copy reaches on Hopper; attention is assumed to reach 0.7
ATTENTION_REACHED = 0.7
GRAPH_GAP = 1.0e-6  # seconds between two kernels of a graph
KEYS = 1024


def estimate(name: str, config: ModelConfig, device: DeviceSpec, batch: int, num_steps: int) -> dict[str, Any]:
    """Estimate a decode step of `batch` rows of KEYS keys; the host's work is measured over `num_steps` steps."""
    pages = batch * pages_of_row(KEYS)
    engine = mocked_engine(config, num_pages=pages, context_length=8192, max_running=batch, max_tokens=0)
    before = counts["launches in graphs"]
    outside = launches_of(decode_step(engine, batch, temperature=0.8))
    in_graph = (counts["launches in graphs"] - before) // 2  # of two steps
    times = []
    for number, (plan, sampling) in enumerate(decode_plans(batch, KEYS, temperature=0.8)):
        start = time.process_time()
        launched = engine.launch(plan)
        if plan.is_open:
            launched.sample(sampling)
        launched.wait()
        times.append(time.process_time() - start)
        if number == num_steps:
            break
    size = model_size(config)
    weights, kv = read_bytes(size, "bf16", batch), batch * KEYS * kv_bytes(config, "bf16")
    read_ms = 1e3 * (weights / REACHED + kv / ATTENTION_REACHED) / device.bandwidth
    product_ms = 1e3 * 2 * size.active_linear * batch / (0.7 * device.bf16)
    gaps_ms = 1e3 * GRAPH_GAP * in_graph
    host_ms = 1e3 * min(times[2:])  # other programs on the machine only add to it
    step_ms = max(read_ms, product_ms) + gaps_ms
    return {
        "model": name,
        "batch": batch,
        "weights GB": weights / 1e9,
        "KV GB": kv / 1e9,
        "reads ms": read_ms,
        "products ms": product_ms,
        "kernels in the graph": in_graph,
        "gaps ms": gaps_ms,
        "launches outside": outside,
        "host ms (CPU time here)": host_ms,
        "step ms": max(step_ms, host_ms),
        "tokens/s": batch / max(step_ms, host_ms) * 1e3,
    }


def main(
    device: Annotated[str, typer.Option(help="data sheet, as `ramiform plan` names it")] = "h100",
    steps: Annotated[int, typer.Option(help="steps over which the host's work is measured")] = 100,
    tiny: Annotated[bool, typer.Option(help="small models, to test this script")] = False,
    out: Out = None,
) -> None:
    install()
    gc.disable()  # the core collects when it is idle
    small = {"num_hidden_layers": 2} if tiny else {}
    rows = [
        estimate(name, config, DEVICES[device], batch, steps)
        for name, config in ((name, config_of(name, **small)) for name in ("Llama-3-8B", "Qwen3-30B-A3B"))
        for batch in ((1, 4) if tiny else (1, 32, 128))
    ]
    said = f"""No device ran anything. Rows have {KEYS:,} keys in bf16. Weights are read at {REACHED:.0%} of the data
sheet's bandwidth and keys at {ATTENTION_REACHED:.0%}; products run at 70 % of its rate; {GRAPH_GAP * 1e6:.0f} us pass
between two kernels of a graph. These four are assumptions for `bench/gpu/hour.sh` to replace. The host's milliseconds
are the least CPU time of one process on this machine: filling the graph's inputs, launching, sampling with top-p and
reading tokens; the scheduler's work is not in them (bench/gpu/overlap.py). Where they are fewer than the step's, they
are hidden behind the step before."""
    title = f"Estimated: decode steps on one {device}, from bytes, launches and the mocked driver"
    report(title, said, table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
