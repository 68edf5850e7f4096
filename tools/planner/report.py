"""Printing a plan: the model's summary and the table of estimates."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ...runtime.models.config import ModelConfig
from ...runtime.models.size import model_size
from .estimate import Estimate
from .memory import kv_bytes, possible_kv_formats, weight_bytes


def model_summary(config: ModelConfig) -> str:
    """Describe the sizes of the model and of its context, in a few lines."""
    size = model_size(config)
    kv = {name: kv_bytes(config, name) for name in possible_kv_formats(config)}
    active = f" ({size.num_active / 1e9:,.3g} for a token)" if size.experts else ""
    lines = [
        f"{config.architecture}: {size.num_parameters / 1e9:,.3g} billion parameters{active}, "
        f"{config.num_layers} layers, "
        f"{config.num_heads} query and {config.num_kv_heads} key heads of {config.head_dim}",
        "weights: "
        + ", ".join(f"{name} {_format_bytes(weight_bytes(size, name))}" for name in ("bf16", "fp8", "int4")),
        "KV of a token: " + ", ".join(f"{name} {_format_bytes(count)}" for name, count in kv.items()),
    ]
    if config.recurrent is None:
        millions = ", ".join(f"{name} {1e6 * count / 2**30:,.1f} GiB" for name, count in kv.items())
        lines.append(f"disk cache of a million tokens: {millions}")
    return "\n".join(lines)


def estimates_table(estimates: Sequence[Estimate], price: float | None) -> Table:
    """Make a table with one row per arrangement."""
    shown = Table("tp", "pp", "weights", "kv", "per GPU", "seqs", "ttft ms", "itl ms", "tokens/s", box=None)
    if price is not None:
        shown.add_column("cost/1M")
    for one in estimates:
        a = one.arrangement
        cells = [str(a.tp), str(a.pp), a.weights, a.kv, _format_bytes(one.weight_bytes), f"{one.max_sequences:,}"]
        cells += [
            f"{1e3 * one.prefill_seconds:,.1f}",
            f"{1e3 * one.step_seconds:,.2f}",
            f"{one.tokens_per_second:,.0f}",
        ]
        shown.add_row(*cells, *([] if price is None else [f"{one.cost_per_million(price):,.3f}"]))
    return shown


def _format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
