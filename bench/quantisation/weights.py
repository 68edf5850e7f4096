"""Quality and cost of quantised weights on the shipped model: right answers, perplexity, bytes and speed.

The weights are rounded while loading, and read from checkpoints of every supported format. Bytes and speed are also
measured on a bigger model of random weights.

    python -P bench/quantisation/weights.py [--cases N] [--repeat N] [--also NAME=PATH] [--out FILE]
    python -P bench/quantisation/weights.py --cases 0        # bytes and speeds: a few minutes

`--also` adds a checkpoint or GGUF file of the model that ships that something else has made.

Quantised models compute in bfloat16, and their baseline is the dense model in bfloat16; float32 is shown beside it.
Speeds are medians of interleaved runs, given as the baseline's time over the other's: above 1 is faster.
"""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
import typer

from ramiform.bench import offline
from ramiform.bench.harness import Cases, Documents, Out, matrix, report
from ramiform.bench.quantisation import formats, skills
from ramiform.bench.random_models import qwen2_shaped
from ramiform.runtime.core.main import LoadedCore, load_core
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.linear import Linear
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.quantised.factory import make_linear
from ramiform.runtime.models.quantised.scheme import quantise_while_loading
from ramiform.runtime.protocol.config import CoreConfig, QuantizeName
from ramiform.tools.quantize.perplexity import perplexity


class Kind(NamedTuple):
    """A model as it is served."""

    path: Path
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    quantize: QuantizeName | None = None


BASELINE = "bf16"
SCENARIOS = (
    offline.Scenario("single stream", 1, 32, 32),
    offline.Scenario("batch 8", 8, 32, 16),
    offline.Scenario("prefill 512", 1, 512, 1, counts="prompt"),
)
OUTPUTS, INPUTS = 9728, 896  # gate and up of a model of 0.5B
BYTES = 1 << 27  # of the layers that take turns
ROWS = (1, 4, 8, 16, 32, 64, 128, 512)
SECONDS = 0.15  # of a measurement, of which the least of three counts
Kinds = dict[str, Kind]  # the baseline first


def rounded_while_loading(path: Path) -> Kinds:
    methods: tuple[QuantizeName, ...] = ("int8", "int4", "fp8")
    dense = {BASELINE: Kind(path), "float32": Kind(path, "float32")}
    return dense | {method: Kind(path, quantize=method) for method in methods}


def core_of(kind: Kind) -> LoadedCore:
    config = CoreConfig(model=str(kind.path), device="cpu", dtype=kind.dtype, quantize=kind.quantize, speculative="off")
    return load_core(config)


def quality(kinds: Kinds, num_cases: int, num_documents: int) -> skills.Rows:
    tokens = skills.held_out_tokens(num_documents)
    found, perplexities = {}, []
    for name, kind in kinds.items():
        core = core_of(kind)
        perplexities.append(f"{perplexity(core.engine, tokens, 512):.4f}")
        found[name] = skills.answers(core, num_cases)
    return [("perplexity", perplexities), *skills.skill_rows(found, BASELINE)]


class Loaded(NamedTuple):
    read: float  # megabytes of weights that a decode step reads: the layers', and the head's
    peak: float  # megabytes by which the process's peak exceeds what it held before


def loaded(kind: Kind) -> Loaded:
    """To be called in a fresh process. Mapped pages of the files, which the system may drop, are part of the peak."""
    before = _resident("VmRSS")
    model = load_model(kind.path, device=torch.device("cpu"), dtype=getattr(torch, kind.dtype), quantize=kind.quantize)
    peak = _resident("VmHWM") - before
    linears = sum(linear.nbytes for linear in model.parameters.linears())
    return Loaded((linears + model.parameters.head.nbytes) / 1e6, peak)


def _resident(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def costs(kinds: Kinds, repeat: int) -> skills.Rows:
    spawn = multiprocessing.get_context("spawn")
    figures = []
    for kind in kinds.values():
        with ProcessPoolExecutor(1, mp_context=spawn) as fresh:
            figures.append(fresh.submit(loaded, kind).result())
    rows = [
        ("weights read for a token, MB", [f"{figure.read:,.2f}" for figure in figures]),
        ("peak of loading, MB", [f"{figure.peak:,.0f}" for figure in figures]),
    ]
    cores = {name: core_of(kind) for name, kind in kinds.items()}
    for scenario in SCENARIOS:
        medians = offline.median_seconds(cores, scenario, repeat)
        rows.append((f"tok/s, {scenario.name}", [f"{scenario.work / taken:,.0f}" for taken in medians.values()]))
        rows.append(("- against bf16", [f"{medians[BASELINE] / taken:.2f}" for taken in medians.values()]))
    return rows


def product_rows(kinds: dict[str, QuantizeName | None]) -> skills.Rows:
    """Return, for each number of rows, the baseline's processor time over every kind's: above 1 is faster.

    Several layers take turns, more than the caches of a CPU hold, as the layers of a model do.
    """
    layers = {name: _layers(quantize) for name, quantize in kinds.items()}
    table = []
    for rows in ROWS:
        x = torch.randn(rows, INPUTS, dtype=torch.bfloat16)
        taken = {name: min(_seconds(own, x) for _ in range(3)) for name, own in layers.items()}
        cells = [f"{taken[BASELINE] / seconds:.2f}" for seconds in taken.values()]
        table.append((f"{rows} rows ({1e3 * taken[BASELINE]:.2f} ms)", cells))
    return table


def _layers(quantize: QuantizeName | None) -> list[Linear]:
    quantisation = None if quantize is None else quantise_while_loading(quantize, 128)
    made: list[Linear] = []
    while sum(layer.nbytes for layer in made) < BYTES:
        layer = make_linear(
            quantisation, [f"layer {len(made)}"], OUTPUTS, INPUTS, bias=False, device="cpu", dtype=torch.bfloat16
        )
        layer.row_destinations(0, OUTPUTS)["weight"].put(torch.randn(OUTPUTS, INPUTS))
        layer.finish()
        made.append(layer)
    return made


def _seconds(layers: list[Linear], x: torch.Tensor) -> float:
    """Return the processor time of one product."""
    layers[0](x)
    start, count = time.process_time(), 0
    while (taken := time.process_time() - start) < SECONDS:
        layers[count % len(layers)](x)
        count += 1
    return taken / count


def main(
    num_cases: Cases = 400,
    num_documents: Documents = 300,
    repeat: Annotated[int, typer.Option(help="runs of each speed; 0: no bytes and no speeds")] = 5,
    bigger: Annotated[bool, typer.Option(help="bytes and speeds of the bigger model too")] = True,
    products: Annotated[bool, typer.Option(help="single products by their number of rows")] = True,
    also: Annotated[list[str] | None, typer.Option(help="NAME=PATH: another form of the model that ships")] = None,
    out: Out = None,
) -> None:
    tables: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        rounded = rounded_while_loading(SHIPPED_MODEL)
        stored = {name: Kind(make(SHIPPED_MODEL, Path(folder, name))) for name, make in formats.FORMATS.items()}
        given = {name: Kind(Path(path)) for name, path in (pair.split("=", 1) for pair in also or ())}
        checkpoints = {BASELINE: rounded[BASELINE]} | stored | given
        for kinds, of in ((rounded, "rounded while loading"), (checkpoints, "as checkpoints")):
            if num_cases:
                title = f"The model that ships, {of}: {num_cases} answers a skill"
                tables[title] = matrix(kinds, quality(kinds, num_cases, num_documents))
            if repeat:
                tables[f"The model that ships, {of}: bytes and speed"] = matrix(kinds, costs(kinds, repeat))
        if repeat and bigger:
            kinds = rounded_while_loading(qwen2_shaped(Path(folder, "bigger"), 2048))
            tables["0.36B random weights, rounded while loading: bytes and speed"] = matrix(kinds, costs(kinds, repeat))
    if products:
        methods = {name: kind.quantize for name, kind in rounded.items() if kind.dtype == "bfloat16"}
        rows = product_rows(methods)
        tables["One product in processor time, against bf16"] = matrix(methods, rows)
    report("Quantised weights", *(f"## {title}\n\n{rows}" for title, rows in tables.items()), out=out)


if __name__ == "__main__":
    typer.run(main)
