"""`ramiform quantize`: arguments, progress bars and report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from . import Method


def quantize(
    model: Annotated[str, typer.Argument(help="Path or hub id of a dense Hugging Face checkpoint.")],
    method: Annotated[
        Method,
        typer.Option(
            help="int8: weights, by row; int4-rtn, awq, gptq: weights, by group, rounded to nearest or to suit a text; "
            "fp8: weights and inputs."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new checkpoint; must not exist.")],
    data: Annotated[
        Path | None,
        typer.Option(help="A text: report the perplexity on it before and after.", exists=True, dir_okay=False),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="A text like those that will be served, for awq, gptq and smoothing.", exists=True, dir_okay=False
        ),
    ] = None,
    act_order: Annotated[
        bool,
        typer.Option(
            "--act-order", help="gptq: round the columns of the largest inputs first; groups have inputs of any place."
        ),
    ] = False,
    smooth_strength: Annotated[
        float | None,
        typer.Option(
            help="int8: SmoothQuant's strength, 0.5 to 0.9 as models need it; large inputs move into the weights, and "
            "inputs are rounded to int8 too.",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens of the text that are read together.", min=2)] = 512,
) -> None:
    """Write a checkpoint's linear layers in few bits, in the compressed-tensors format."""
    from ...runtime.models.checkpoint import fetch_checkpoint
    from ...runtime.protocol.errors import RequestError
    from .perplexity import perplexity_of
    from .write import write_quantised

    source = fetch_checkpoint(model, out=out)
    if smooth_strength is not None and method != "int8":
        raise RequestError(f"smoothing prepares weights and inputs for int8, not for {method}", param="smooth_strength")
    calibrates = method in ("awq", "gptq") or smooth_strength is not None
    if calibrates and calibration is None:
        name = method if smooth_strength is None else "smoothing"
        raise RequestError(f"{name} is calibrated on a text: give one with --calibration", param="calibration")
    if act_order and method != "gptq":
        raise RequestError(f"act-order is an order of gptq's columns, not of {method}", param="act_order")
    text = calibration.read_text(encoding="utf-8") if calibrates and calibration is not None else None
    with _bar("quantising") as on_progress:
        undersampled = write_quantised(
            source, out, method, on_progress, text, act_order=act_order, smooth_strength=smooth_strength
        )
    table = Table(title=str(out), title_justify="left")
    for title in ("", "before", "after"):
        table.add_column(title, justify="left" if not title else "right")
    sizes = [sum(file.stat().st_size for file in path.glob("*.safetensors")) / 2**20 for path in (source, out)]
    table.add_row("weights, MiB", *(f"{size:,.1f}" for size in sizes))
    if data is not None:
        judged = data.read_text(encoding="utf-8")
        figures = []
        for path, title in ((source, "perplexity before"), (out, "perplexity after")):
            with _bar(title) as on_progress:
                figures.append(perplexity_of(path, judged, window=window, on_progress=on_progress))
        table.add_row("perplexity", *(f"{figure:.4f}" for figure in figures))
    Console().print(table)
    if undersampled:
        print(
            f"rounded to nearest, as {calibration} gives them too few tokens: {len(undersampled)} matrices, "
            f"{undersampled[0]} first"
        )


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
