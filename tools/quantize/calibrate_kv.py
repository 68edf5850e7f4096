"""`ramiform calibrate-kv`: measures statistics of keys on a text, for `--kv-dtype fp8`, `int8` and `int4`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import track


def calibrate_kv(
    model: Annotated[str, typer.Argument(help="Path of a Hugging Face checkpoint or a GGUF file, or a hub id.")],
    data: Annotated[Path, typer.Option(help="A text like those that will be served.", exists=True, dir_okay=False)],
    out: Annotated[Path | None, typer.Option(help="The file; default: kv_scales.json in MODEL.")] = None,
    window: Annotated[int, typer.Option(help="Tokens of the text that are read together.", min=2)] = 2048,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Of the weights.")] = "auto",
) -> None:
    """Measure statistics of keys on a text, or ranges of latents, and keep them beside the model for quantised KV."""
    from ...runtime.engine.build import choose_device, choose_dtype
    from ...runtime.engine.kv_ranges import measure, ranges_file, write_ranges
    from ...runtime.engine.kv_statistics import better_statistics, measure_statistics, write_statistics
    from ...runtime.models.checkpoint import fetch_checkpoint
    from ...runtime.models.load import load_model
    from ...runtime.models.parameters import num_parameters
    from ...runtime.models.read_config import read_config
    from ...runtime.protocol.errors import RequestError
    from ...runtime.tokenizer import load_tokenizer

    path = fetch_checkpoint(model, out=out)
    config = read_config(path)
    text = data.read_text(encoding="utf-8")
    if not text.strip():
        raise RequestError(f"{data} is empty: measuring needs a text", param="data")
    tokenizer = load_tokenizer(path)
    tokens = tokenizer.encode(text, add_bos=tokenizer.adds_bos)
    window = min(window, config.context_length)
    where = choose_device(device)
    decoder = load_model(path, device=where, dtype=choose_dtype(dtype, where, num_parameters(config)))
    texts = [tokens[start : start + window] for start in range(0, len(tokens), window)]
    shown = track(texts, "measuring", console=Console(stderr=True), transient=True)
    file = ranges_file(path) if out is None else out
    try:
        if config.latent is None:
            statistics, found = better_statistics(path, decoder, texts, measure_statistics(decoder, shown)[0])
            write_statistics(statistics, len(tokens), file)
        else:
            ranges = measure(decoder, shown)
            write_ranges(ranges, file)
            found = f"latents up to {ranges.k_LK.max():.4g}"
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror}", param="out") from None
    print(f"{file}: measured on {len(tokens):,} tokens; {found}")
