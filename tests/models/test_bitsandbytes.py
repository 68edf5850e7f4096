"""bitsandbytes' checkpoints. Judge: dequantising by the published layout, block by block in numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from transformers import LlamaConfig

from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SingleRank
from ramiform.runtime.models.parallel.shard import Shard
from ramiform.runtime.models.quantised.bitsandbytes import _nested_maxima

from .packing import Tensors, changed
from .test_quantised import SIZES, logits

BLOCK, NESTED_BLOCK = 64, 256
OFFSET = 0.05
NF4 = np.array(
    [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
     0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0],
    dtype=np.float32,
)  # fmt: skip
FP4 = np.array([0, 0.0052, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25], dtype=np.float32)
MAPS = {"nf4": NF4, "fp4": np.concatenate((FP4, -FP4))}
EIGHT_BITS = np.sort(np.concatenate((-(np.linspace(0.01, 1, 128) ** 2), np.linspace(0.005, 1, 128) ** 2))).astype(
    np.float32
)


def packed(kind: str, nested: bool, module: str, w: torch.Tensor, **state: Any) -> Tensors:
    """Round a weight, in blocks of its numbers row by row; two codes to a byte, the first one high."""
    blocks = w.numpy().reshape(-1, BLOCK)
    maxima = np.abs(blocks).max(1)
    codes = np.abs(blocks[..., None] / maxima[:, None, None] - MAPS[kind]).argmin(2).astype(np.uint8).reshape(-1, 2)
    about: dict[str, Any] = {"quant_type": kind, "blocksize": BLOCK, "dtype": "float32", "shape": list(w.shape)}
    tensors = {
        f"{module}.weight": torch.tensor(codes[:, 0] << 4 | codes[:, 1])[:, None],
        f"{module}.weight.quant_map": torch.tensor(MAPS[kind]),
    }
    if nested:
        pieces = [maxima[at : at + NESTED_BLOCK] - OFFSET for at in range(0, len(maxima), NESTED_BLOCK)]
        outer = np.array([np.abs(piece).max() for piece in pieces], dtype=np.float32)
        inner = [
            np.abs(piece[:, None] / most - EIGHT_BITS).argmin(1) for piece, most in zip(pieces, outer, strict=True)
        ]
        tensors[f"{module}.weight.absmax"] = torch.tensor(np.concatenate(inner).astype(np.uint8))
        tensors[f"{module}.weight.nested_absmax"] = torch.tensor(outer)
        tensors[f"{module}.weight.nested_quant_map"] = torch.tensor(EIGHT_BITS)
        about |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": OFFSET}
    else:
        tensors[f"{module}.weight.absmax"] = torch.tensor(maxima)
    text = json.dumps(about | state).encode()
    tensors[f"{module}.weight.quant_state.bitsandbytes__{kind}"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return tensors


def dequantised(module: str, tensors: Tensors) -> Tensors:
    part = {name.removeprefix(f"{module}.weight").lstrip("."): tensor.numpy() for name, tensor in tensors.items()}
    [about] = [json.loads(bytes(value.tolist())) for name, value in part.items() if "quant_state" in name]
    maxima: NDArray[Any] = part["absmax"]
    if "nested_absmax" in part:
        maxima = np.array(
            [
                part["nested_quant_map"][code] * part["nested_absmax"][place // about["nested_blocksize"]]
                + about["nested_offset"]
                for place, code in enumerate(maxima)
            ]
        )
    out = np.empty(2 * part[""].size, np.float32)
    for place, byte in enumerate(part[""].flatten().tolist()):
        for half, code in enumerate((byte >> 4, byte & 15)):
            at = 2 * place + half
            out[at] = part["quant_map"][code] * maxima[at // about["blocksize"]]
    return {f"{module}.weight": torch.tensor(out.reshape(about["shape"]))}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("dense")
    transformers.AutoModelForCausalLM.from_config(LlamaConfig(**SIZES), dtype=torch.float32).save_pretrained(path)
    return path


def config_of(kind: str, nested: bool, **more: Any) -> dict[str, Any]:
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    return {"quant_method": "bitsandbytes", **four, "bnb_4bit_quant_storage": "uint8", **more}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "nested"), [("nf4", True), ("nf4", False), ("fp4", False)])
def test_four_bits_give_the_logits_of_their_dequantised_weights(
    kind: str, nested: bool, dense: Path, tmp_path: Path
) -> None:
    skipped = ["lm_head", "layers.1.mlp"]  # as unsloth leaves modules dense

    def pack(module: str, w: torch.Tensor) -> Tensors:
        return {f"{module}.weight": w} if "layers.1.mlp" in module else packed(kind, nested, module, w)

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        return {f"{module}.weight": w} if "layers.1.mlp" in module else dequantised(module, pack(module, w))

    config = config_of(kind, nested, llm_int8_skip_modules=skipped)
    path = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    wide = changed(dense, tmp_path / "wide", unpack)
    expected = logits(wide)
    assert ((logits(path) - expected).norm() / expected.norm()).item() < 0.03  # inputs are rounded to int8
    assert ((logits(dense) - expected).norm() / expected.norm()).item() > 0.1
    ours, judge = (load_model(p, device=torch.device("cpu"), dtype=torch.float32).parameters for p in (path, wide))
    identity = torch.eye(SIZES["hidden_size"])
    got, want = ours.layers[0].qkv(identity), judge.layers[0].qkv(identity)
    assert ((got - want).abs().max() / want.abs().max()).item() < 1 / 200  # integers of 7 bits
    with pytest.raises(CheckpointError, match=f"{kind} has groups across all ranks: it runs with --tp 1"):
        logits(path, group=SingleRank(Shard(num_slices=2)))


def test_eight_bits_give_the_logits_of_their_dequantised_weights(dense: Path, tmp_path: Path) -> None:
    def pack(module: str, w: torch.Tensor) -> Tensors:
        largest = w.abs().amax(1)
        codes = (w * (127 / largest[:, None])).round().to(torch.int8)
        layout = torch.tensor(0, dtype=torch.uint8)
        return {f"{module}.weight": codes, f"{module}.SCB": largest, f"{module}.weight_format": layout}

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        parts = pack(module, w)
        return {f"{module}.weight": parts[f"{module}.weight"].float() * parts[f"{module}.SCB"][:, None] / 127}

    config = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}
    path = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    expected = logits(changed(dense, tmp_path / "wide", unpack))
    for options in ({}, {"group": SingleRank(Shard(num_slices=2))}):
        assert ((logits(path, **options) - expected).norm() / expected.norm()).item() < 0.03
    odd = changed(
        dense,
        tmp_path / "odd",
        lambda module, w: pack(module, w) | {f"{module}.weight_format": torch.tensor(2, dtype=torch.uint8)},
        quantization_config=config,
    )
    with pytest.raises(CheckpointError, match=r"weight_format is 2: the codes are in an order for one kind of GPU"):
        logits(odd)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"blocksize": 48}, r"has blocks of 48: supported are 64, "),
        ({"shape": [64, 64, 1]}, r"is of a weight of \[64, 64, 1\], config.json asks for"),
        ({"nested_offset": "none"}, r"has the offset 'none'"),
        ({"nested_blocksize": 1}, r"has maxima in blocks of 1, of which there are"),
        ({"more": "x" * (1 << 16)}, r"bytes: at most 65536 describe a weight"),
    ],
)
def test_states_that_do_not_fit_are_refused(state: dict[str, Any], message: str, dense: Path, tmp_path: Path) -> None:
    path = changed(
        dense,
        tmp_path / "packed",
        lambda module, w: packed("nf4", True, module, w, **state),
        quantization_config=config_of("nf4", True),
    )
    with pytest.raises(CheckpointError, match=message):
        logits(path)


def test_a_stored_size_of_blocks_decides_on_no_memory() -> None:
    parts = {"weight.nested_absmax": torch.tensor([3.0]), "weight.nested_quant_map": torch.arange(256.0)}
    state = {"nested_blocksize": 1 << 62, "nested_offset": 0.5}
    found = _nested_maxima(torch.tensor([2, 7], dtype=torch.uint8), parts, state)
    assert found.tolist() == [6.5, 21.5]
