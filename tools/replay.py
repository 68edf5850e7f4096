"""`ramiform bench replay`: plans a logged run again, and compares it with other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..runtime.protocol.config import EvictionName, OrderName

errors = Console(stderr=True, soft_wrap=True, highlight=False)

FIGURE_NAMES = (
    "steps",
    "tokens computed",
    "prompt tokens",
    "of those cached, %",
    "retractions",
    "evicted pages",
    "mean wait, steps",
    "longest wait, steps",
)


def replay(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Written by --log-plans.")],
    order: Annotated[OrderName | None, typer.Option(help="What if requests waited in this order?")] = None,
    eviction: Annotated[EvictionName | None, typer.Option(help="What if prefixes were evicted so?")] = None,
    num_pages: Annotated[int | None, typer.Option(help="What if the KV pool had so many pages?", min=4)] = None,
    prefill_budget: Annotated[int | None, typer.Option(help="What if a step computed so many tokens?", min=16)] = None,
    max_running: Annotated[int | None, typer.Option(help="What if so many requests could run?", min=1)] = None,
    prefix_cache: Annotated[bool | None, typer.Option(help="What if prefixes were reused, or not?")] = None,
) -> None:
    """Plan a logged run again, without a model, and fail at the first plan that differs.

    With an option: run the same requests under that setting, and compare.
    """
    from ..runtime.replay import replay as replays
    from ..runtime.scheduler.plan_log import read_log

    with file.open("rb") as lines:
        entries = list(read_log(lines))
    try:
        logged = replays.replay(entries)
    except replays.PlanMismatch as difference:
        errors.print("[red]ramiform:[/red] a plan differs from the log.", Text(str(difference)))
        raise typer.Exit(1) from None
    changes = {
        "order": order,
        "eviction": eviction,
        "num_pages": num_pages,
        "prefill_budget": prefill_budget,
        "max_running": max_running,
        "prefix_cache": prefix_cache,
    }
    if all(value is None for value in changes.values()):
        assert logged.stats is not None
        print(f"{logged.stats.num_steps} plans, all as logged")
        return
    changed = replays.what_if(entries, **changes)
    table = Table(title=str(file), title_justify="left")
    for title in ("", "logged", "what if"):
        table.add_column(title, justify="left" if not title else "right")
    for name, first, second in zip(FIGURE_NAMES, _figures(logged), _figures(changed), strict=True):
        table.add_row(name, f"{first:,.6g}", f"{second:,.6g}")
    Console().print(table)


def _figures(figures: Any) -> list[float]:
    stats = figures.stats
    return [
        stats.num_steps,
        figures.num_computed,
        stats.num_prompt_tokens,
        100 * stats.num_cached_tokens / max(1, stats.num_prompt_tokens),
        stats.num_retractions,
        stats.num_evicted_pages,
        figures.mean_wait,
        max(figures.waits, default=0),
    ]
