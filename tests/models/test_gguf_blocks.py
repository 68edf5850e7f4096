"""Block formats of GGUF. Judge: llama.cpp, whose codes and numbers `llama_cpp/write_blocks.py` wrote."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.gguf.block_reader import READABLE_TYPES, dequantise
from ramiform.runtime.protocol.errors import RamiformError

from .gguf_files import dequantised, write_gguf
from .test_gguf import WIDE, error_of, logits, model_of

BLOCKS: dict[str, np.ndarray] = dict(np.load(Path(__file__).parent / "llama_cpp" / "data" / "blocks.npz"))
KINDS = [name for name in BLOCKS if not name.endswith("numbers")]
ALWAYS_DENSE = [name for name in KINDS if name.startswith(("IQ", "TQ", "NV"))]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_llama_cpps_numbers(kind: str) -> None:
    expected = torch.from_numpy(BLOCKS[f"{kind} numbers"])
    assert expected.std() > 0.05
    torch.testing.assert_close(dequantise(BLOCKS[kind], Type[kind]), expected, rtol=1e-6, atol=1e-8)


def test_every_format_that_the_package_dequantises_is_read_and_has_blocks() -> None:
    plain = {"F32", "F16", "BF16"}
    assert {kind.name for kind in gguf.quants._type_traits} | plain == {kind.name for kind in READABLE_TYPES}
    assert {kind.name for kind in READABLE_TYPES} == {*KINDS, *plain}


def test_a_file_of_rare_blocks_gives_the_logits_of_their_numbers(tmp_path: Path) -> None:
    """Each matrix of the layers has a format of its own."""
    model, left = model_of("llama", **WIDE | {"num_hidden_layers": 2}), list(ALWAYS_DENSE)
    assert 11 < len(left) < 15

    def kind_of(name: str) -> Type:
        return Type[left.pop()] if left and name.startswith("blk.") else Type.F16

    def store(rows: np.ndarray, kind: Type) -> np.ndarray:
        if kind.name not in ALWAYS_DENSE:
            return gguf.quants.quantize(rows, kind)
        return BLOCKS[kind.name][np.random.default_rng(len(left)).integers(0, 2, len(rows))]

    path = write_gguf(model, tmp_path / "model.gguf", kind_of, store=store)
    assert not left
    assert error_of(path, dequantised(model, path)) < 1e-4


def test_blocks_that_the_package_does_not_dequantise_are_refused_by_name(tmp_path: Path) -> None:
    def store(rows: np.ndarray, kind: Type) -> np.ndarray:
        if kind != Type.Q1_0:
            return gguf.quants.quantize(rows, kind)
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        return np.zeros((len(rows), rows.shape[1] // size * num_bytes), np.uint8)

    def kind_of(name: str) -> Type:
        return Type.Q1_0 if "blk.0.ffn_up" in name else Type.F16

    path = write_gguf(model_of("llama", **WIDE), tmp_path / "model.gguf", kind_of, store=store)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight is stored as Q1_0; supported: "):
        logits(path)
    content = path.read_bytes()
    name = b"blk.0.ffn_up.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # after the number of dimensions and two of them
    assert content[at] == Type.Q1_0
    path.write_bytes(content[:at] + bytes([42]) + content[at + 1 :])
    with pytest.raises(RamiformError, match=r"blk\.0\.ffn_up\.weight is stored as Q2_0, which the package gguf"):
        logits(path)
