"""`ramiform plan`: estimates memory, speed and cost of a model on given devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ...runtime.protocol.config import KvDtypeName
from ...runtime.protocol.errors import RequestError
from .devices import DEVICES


def plan(
    model: Annotated[str, typer.Argument(help="A folder with a config.json, or a hub id; weights are not needed.")],
    gpus: Annotated[str, typer.Option(help=f"How many of what, '8xh100'. Known: {', '.join(DEVICES)}.")] = "1xh100",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1024,
    cached: Annotated[int, typer.Option(min=0, help="Tokens of it that the prefix cache has.")] = 0,
    context: Annotated[int, typer.Option(min=2, help="Tokens of a sequence at its longest, the prompt's too.")] = 2048,
    concurrency: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 32,
    ttft: Annotated[float | None, typer.Option(help="Target: milliseconds to the first token of one prompt.")] = None,
    itl: Annotated[float | None, typer.Option(help="Target: milliseconds between two tokens of a sequence.")] = None,
    price: Annotated[float | None, typer.Option(help="Of one device for an hour, in any currency.")] = None,
    efficiency: Annotated[
        float,
        typer.Option(min=0.01, max=1.0, help="The part of the makers' rates that is reached; 1 gives the floors."),
    ] = 0.7,
    kv_dtype: Annotated[
        KvDtypeName, typer.Option(help="Format of keys and values; auto: bf16 and fp8 in turn.")
    ] = "auto",
    limit: Annotated[int, typer.Option(min=1, help="Arrangements to show.")] = 12,
) -> None:
    """Work out on paper which arrangements of devices serve a model: memory, times, cost."""
    # Reading a model's configuration imports torch, which `--help` must not.
    from ...runtime.models.hub import local_model
    from ...runtime.models.read_config import read_config
    from .choose import KV_FORMATS, choose
    from .estimate import Workload
    from .memory import check_kv_format
    from .report import estimates_table, model_summary

    number, _, name = gpus.partition("x")
    if not number.isdecimal() or not 1 <= int(number) <= 1024 or name not in DEVICES:
        raise RequestError(
            f"gpus is a number of at most 1024, 'x' and one of {', '.join(DEVICES)}, such as 8xh100; got {gpus!r}",
            param="gpus",
        )
    if not cached < prompt < context:
        raise RequestError(
            f"a prompt is longer than its cached part, shorter than its context: not {cached} < {prompt} < {context}",
            param="prompt",
        )
    config = read_config(Path(local_model(model, weights=False) or model))
    if kv_dtype != "auto":
        check_kv_format(config, kv_dtype)
    workload = Workload(prompt=prompt, cached=cached, context=context, concurrency=concurrency)
    console = Console(highlight=False)
    console.print(model_summary(config), highlight=False)
    estimates = choose(
        config,
        DEVICES[name],
        int(number),
        workload,
        max_ttft=None if ttft is None else ttft / 1e3,
        max_itl=None if itl is None else itl / 1e3,
        efficiency=efficiency,
        kv_formats=KV_FORMATS if kv_dtype == "auto" else (kv_dtype,),
    )
    if not estimates:
        console.print(f"no arrangement of {gpus} holds {concurrency} sequences of {context} tokens within the targets")
        raise typer.Exit(1)
    console.print()
    console.print(estimates_table(estimates[:limit], price))
    if len(estimates) > limit:
        console.print(f"and {len(estimates) - limit} more")
