"""Perplexity with few bits per key and value, on the shipped model and on copies of it with outlier channels.

    python -P bench/quantisation/kv_outliers.py [--documents N] [--out FILE]

A copy computes the same function: some channels of the keys are multiplied by 20, and those of the queries divided by
it. In copies with heads of 128 numbers each key and value channel stands twice, once for the queries and outputs to
read and once as a neighbour, so their keys are like the model's, and the function is again the same. Rotary embedding
turns channels in pairs, so outliers come in pairs. Statistics are those of the built-in text, texts are held out from
training.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from pathlib import Path

import torch
import typer
from safetensors.torch import load_file, save_file

from ramiform.bench.harness import Documents, Out, matrix, report
from ramiform.bench.quantisation.skills import held_out_tokens
from ramiform.runtime.engine import PAGE_SIZE, build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig, KvDtypeName
from ramiform.tools.quantize.perplexity import perplexity

logger = logging.getLogger("bench")
FACTOR = 20.0
MODELS = ((64, 0), (64, 4), (64, 8), (128, 0), (128, 8))  # size of heads, outlier channels


KINDS: tuple[KvDtypeName, ...] = ("bf16", "int8", "fp8", "fp8_e5m2", "int4")


def write_copy(folder: Path, head_dim: int, num_outliers: int) -> None:
    """Write a copy of the shipped model with heads of `head_dim` numbers and outliers in that many channels of each."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(SHIPPED_MODEL / name, folder)
    config = json.loads((SHIPPED_MODEL / "config.json").read_text())
    wide = head_dim // config["head_dim"]
    assert wide in (1, 2)
    tensors = load_file(SHIPPED_MODEL / "model.safetensors")
    for name, tensor in tensors.items():
        part = name.split(".")[-2]
        if part not in ("q_proj", "k_proj", "v_proj", "o_proj"):
            continue
        weight = (tensor.T if part == "o_proj" else tensor).float().unflatten(0, (-1, config["head_dim"]))
        if part in ("q_proj", "k_proj"):
            halves = weight.unflatten(1, (2, -1))  # of which rotary embedding turns a channel each
            if wide == 2:
                twin = torch.zeros_like(halves) if part == "q_proj" else halves.roll(1, 2)
                # Scores are divided by the root of the heads' size.
                halves = torch.stack((halves * (2**0.5 if part == "q_proj" else 1), twin), 3).flatten(2, 3)
            channels = [7 * i % (halves.shape[2] // wide) * wide for i in range(num_outliers // 2)]
            halves[:, :, channels] *= FACTOR if part == "k_proj" else 1 / FACTOR
            weight = halves.flatten(1, 2)
        elif wide == 2:
            weight = torch.cat((weight, weight.roll(1, 1) if part == "v_proj" else torch.zeros_like(weight)), 1)
        weight = weight.flatten(0, 1)
        tensors[name] = (weight.T if part == "o_proj" else weight).contiguous()
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": head_dim}))
    save_file(tensors, folder / "model.safetensors")


def main(num_documents: Documents = 100, out: Out = None) -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ramiform").setLevel(logging.ERROR)
    logger.setLevel(logging.INFO)
    tokens = held_out_tokens(num_documents)
    rows: dict[str, list[str]] = {}
    for head_dim, num_outliers in MODELS:
        cells: list[str] = []
        sizes: list[str] = []
        baseline = 0.0
        with tempfile.TemporaryDirectory() as name:
            write_copy(Path(name), head_dim, num_outliers)
            for kind in KINDS:
                engine = build_engine(
                    CoreConfig(device="cpu", dtype="float32", num_pages=64, kv_dtype=kind), Path(name)
                )
                found = perplexity(engine, tokens, 512)
                baseline = baseline or found
                cells.append(f"{found / baseline - 1:+.3%}" if len(cells) else f"{found:.4f}")
                sizes.append(f"{engine.info.kv_bytes // (64 * PAGE_SIZE):,}")
        rows.setdefault(f"bytes of a token, heads of {head_dim}", sizes)
        rows[title := f"heads of {head_dim}, {num_outliers} outlier channels"] = cells
        logger.info("%s: %s", title, cells)
    report("Few bits per key and value", f"{len(tokens):,} tokens", matrix(KINDS, rows.items()), out=out)


if __name__ == "__main__":
    typer.run(main)
