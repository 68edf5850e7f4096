"""Checkpoints whose files a stranger wrote are loaded or refused by name, and take no memory that they do not fill."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from hypothesis import strategies as st

from ramiform.runtime.models.gguf.file import open_gguf
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.errors import RamiformError
from ramiform.tests.fuzzing import dump, fuzz, mutated_bytes, mutated_json

from .gguf_files import write_gguf

FOLDER = tempfile.TemporaryDirectory(prefix="ramiform-any-bytes-")
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


@functools.cache
def model() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


@functools.cache
def stored() -> Path:
    """The folder of a valid checkpoint that examples overwrite."""
    folder = Path(FOLDER.name) / "checkpoint"
    model().save_pretrained(folder)
    return folder


def saved(name: str) -> bytes:
    return (stored() / name).read_bytes()


@functools.cache
def weights() -> tuple[dict[str, Any], bytes]:
    """The header and the data of the checkpoint's weights."""
    data = saved("model.safetensors")
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


@functools.cache
def gguf_bytes() -> bytes:
    path = Path(FOLDER.name) / "model.gguf"
    write_gguf(model(), path, lambda name: gguf.GGMLQuantizationType.F32)
    return path.read_bytes()


@functools.cache
def configs() -> list[Any]:
    plain = json.loads(saved("config.json"))
    scaled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["lm_head"]}
    experts = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2}
    return [plain, plain | {"rope_parameters": scaled, "quantization_config": quantised}, plain | experts]


@pytest.mark.slow
@fuzz(st.deferred(lambda: mutated_json(configs()).map(dump) | mutated_bytes([saved("config.json")])), examples=80)
def test_any_config_is_read_or_refused(data: bytes) -> None:
    folder = Path(FOLDER.name) / "config"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(data)
    with contextlib.suppress(RamiformError):
        read_config(folder)


@pytest.mark.slow
@fuzz(st.deferred(lambda: mutated_json([weights()[0]])), examples=60)
def test_any_header_of_weights_is_read_or_refused(header: Any) -> None:
    encoded = dump(header)
    load(len(encoded).to_bytes(8, "little") + encoded + weights()[1])


@fuzz(st.deferred(lambda: mutated_bytes([saved("model.safetensors")])), examples=30)
def test_any_bytes_of_weights_are_read_or_refused(data: bytes) -> None:
    load(data)


def load(data: bytes) -> None:
    before = saved("model.safetensors")
    try:
        (stored() / "model.safetensors").write_bytes(data)
        with contextlib.suppress(RamiformError):
            load_model(stored(), device=torch.device("cpu"), dtype=torch.float32)
    finally:
        (stored() / "model.safetensors").write_bytes(before)


@pytest.mark.slow
@fuzz(st.deferred(lambda: mutated_bytes([gguf_bytes(), gguf_bytes()[:1500]])), examples=60)
def test_any_gguf_file_is_read_or_refused(data: bytes) -> None:
    path = Path(FOLDER.name) / "any.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    with contextlib.suppress(RamiformError):
        open_gguf(path)
        read_config(path)
        load_model(path, device=torch.device("cpu"), dtype=torch.float32)
