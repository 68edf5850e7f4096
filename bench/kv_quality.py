"""Measure what quantised keys and values cost a trained model: perplexity and KL divergence on a text, by format.

    python -P bench/kv_quality.py MODEL TEXT... [--tokens N] [--formats int8,fp8,int4] [--dense]
        [--scales FILE] [--out FILE]

MODEL is a GGUF file or a checkpoint's folder. The texts are joined, and read from the first token in chunks: each
format writes keys and values as a server does, and a chunk meets what was stored. Exact are the same weights with keys
and values in float32. Errors are standard errors of paired differences; divergences have far less noise.

Products with quantised weights round their inputs to eight bits, as llama.cpp's do: whatever moves a hidden state by
any small amount moves what it is rounded to. That is a floor of the divergence, which the format bf16 shows. `--dense`
reads the weights as float32 numbers instead, whose products round nothing, to see what the formats do alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from ramiform.bench.harness import Out, matrix, report
from ramiform.kernels import KvCache
from ramiform.runtime.compile_ahead import compile_loops
from ramiform.runtime.engine.build import choose_dtype
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.kv_format import KV_DTYPES, choose_scales, given_scales
from ramiform.runtime.engine.kv_pool import PAGE_SIZE, KvMemory
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parameters import num_parameters
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.models.stored.kv_scales import KvStatistics
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import Row
from ramiform.runtime.tokenizer import load_tokenizer

CHUNK = 128
CPU = torch.device("cpu")


def caches(model: Decoder, path: Path, name: str, num_pages: int, scales: str | None) -> Sequence[KvCache]:
    """Return the layers' caches of a format, with scales as a start has them."""
    dtype = KV_DTYPES[name]  # type: ignore[index]
    config = CoreConfig(model=str(path), device="cpu", kv_dtype=name, kv_scales=scales)  # type: ignore[arg-type]
    given = given_scales(config, path, model.config, dtype)
    constants = choose_scales(given, config, path, model, dtype).constants
    is_scaled = isinstance(constants, KvStatistics)
    return KvMemory(model.config, num_pages, device=CPU, dtype=dtype, is_scaled=is_scaled).layers(constants)


def logprobs(model: Decoder, kv: Sequence[KvCache], tokens: list[int]) -> Iterator[torch.Tensor]:
    """Yield the logarithms of the next token's probabilities after each token, [T, V], chunk by chunk."""
    pages = list(range(-(-len(tokens) // PAGE_SIZE)))
    for start in range(0, len(tokens), CHUNK):
        own = tokens[start : start + CHUNK]
        row = Row(rid="", tokens=own, first_position=start, pages=pages)
        inputs = decoder_inputs([row], model, np.arange(len(own)), kv[0])
        yield model.logits_of_step(inputs, kv).log_softmax(-1)


@torch.inference_mode()
def main(
    path: Annotated[Path, typer.Argument(metavar="MODEL")],
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...")],
    tokens: Annotated[int, typer.Option(help="of the texts, the first ones")] = 4000,
    formats: Annotated[str, typer.Option(help="separated by commas")] = "int8,fp8,int4",
    dense: Annotated[bool, typer.Option("--dense", help="read quantised weights as float32 numbers")] = False,
    scales: Annotated[str | None, typer.Option(help="file of `ramiform calibrate-kv`")] = None,
    out: Out = None,
) -> None:
    logging.basicConfig(level=logging.WARNING)
    compile_loops()
    config = read_config(path)
    dtype = torch.float32 if dense else choose_dtype("auto", CPU, num_parameters(config))
    model = load_model(path, replace(config, quantisation=None) if dense else config, device=CPU, dtype=dtype)
    text = "".join(one.read_text(encoding="utf-8") for one in texts)
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(text, add_bos=tokenizer.adds_bos)[:tokens]
    num_pages, names = -(-len(ids) // PAGE_SIZE), formats.split(",")
    ways = {name: caches(model, path, name, num_pages, scales) for name in names}
    own: dict[str, list[torch.Tensor]] = {name: [] for name in ("exact", *names)}
    moved: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    exact_chunks = logprobs(model, caches(model, path, "fp32", num_pages, None), ids)
    chunks = {name: logprobs(model, kv, ids) for name, kv in ways.items()}
    for start, exact in zip(range(1, len(ids), CHUNK), exact_chunks, strict=False):
        targets = torch.tensor(ids[start : start + CHUNK])[:, None]
        exact = exact[: len(targets)]
        own["exact"].append(exact.gather(1, targets))
        for name in names:
            found = next(chunks[name])[: len(targets)]
            own[name].append(found.gather(1, targets))
            moved[name].append((exact.exp() * (exact - found)).sum(-1))
    before = torch.cat(own["exact"]).double()
    rows: dict[str, list[str]] = {"perplexity": [], "KL divergence": []}
    for name in names:
        worse = before - torch.cat(own[name])
        error = float(worse.std()) / len(worse) ** 0.5
        rows["perplexity"].append(f"{math.expm1(float(worse.mean())):+.2%} ± {error:.2%}")
        rows["KL divergence"].append(f"{float(torch.cat(moved[name]).double().mean()):.4%}")
    stored = "as stored" if config.quantisation is not None and not dense else str(dtype).removeprefix("torch.")
    head = f"{path.name}, {len(ids)} tokens, weights {stored}"
    head += f": exact perplexity {math.exp(-float(before.mean())):.4f}"
    report("What quantised keys and values cost", head, matrix(names, rows.items()), out=out)


if __name__ == "__main__":
    typer.run(main)
