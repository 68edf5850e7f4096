"""Scales of quantised KV in checkpoints, under the names of all writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ramiform.runtime.engine import build_engine
from ramiform.runtime.engine.kv_ranges import KV_SCALES_FILE, KvRanges, ranges_file, write_ranges
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.models.stored.kv_scales import read_kv_scales
from ramiform.runtime.protocol.config import CoreConfig

from .gguf_files import write_gguf

E4M3 = torch.float8_e4m3fn
K_SCALES, V_SCALES = torch.tensor([0.01, 0.02, 0.03]), torch.tensor([0.5, 0.25, 0.125])  # by layer
NAMES = [
    ("k_scale", "v_scale"),
    ("attn.k_scale", "attn.v_scale"),
    ("k_proj.k_scale", "v_proj.v_scale"),
    ("k_proj.output_scale", "v_proj.output_scale"),
    ("qkv_proj.k_scale", "qkv_proj.v_scale"),
]


def add(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    file = path / "model.safetensors"
    save_file(load_file(file) | tensors, file, metadata={"format": "pt"})
    return path


def named(names: tuple[str, str], shape: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    return {
        f"model.layers.{layer}.self_attn.{name}": scales[layer].expand(shape).clone()
        for name, scales in zip(names, (K_SCALES, V_SCALES), strict=True)
        for layer in range(3)
    }


@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 1, 1)], ids=str)
@pytest.mark.parametrize("names", NAMES, ids=str)
def test_scales_are_found_by_every_name(names: tuple[str, str], shape: tuple[int, ...], broken: Path) -> None:
    add(broken, named(names, shape))
    found = read_kv_scales(broken, read_config(broken), E4M3)
    assert found is not None
    assert torch.equal(found.k_LK, K_SCALES[:, None].expand(3, 2))
    assert torch.equal(found.v_LK, V_SCALES[:, None].expand(3, 2))


def test_heads_may_have_scales_of_their_own_and_one_name_may_stand_for_both(broken: Path) -> None:
    scales = torch.rand(3, 2) + 0.1
    add(broken, {f"model.layers.{layer}.self_attn.kv_scale": scales[layer].clone() for layer in range(3)})
    found = read_kv_scales(broken, read_config(broken), E4M3)
    assert found is not None
    assert torch.equal(found.k_LK, scales)
    assert torch.equal(found.v_LK, scales)


def test_int8_holds_the_same_numbers(broken: Path) -> None:
    add(broken, named(NAMES[0]))
    found = read_kv_scales(broken, read_config(broken), torch.int8)
    assert found is not None
    torch.testing.assert_close(found.k_LK[:, 0] * 127, K_SCALES * 448)


def test_a_checkpoint_without_scales_has_none(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("llama3")
    assert read_kv_scales(path, read_config(path), E4M3) is None


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8"])
def test_a_checkpoint_with_scales_is_served_and_quantised_kv_uses_them(kv_dtype: Any, broken: Path) -> None:
    unused = {"q_scale": 1.0, "attn.prob_scale": 1.0, "q_proj.output_scale": 1.0}
    extra = {f"model.layers.0.self_attn.{name}": torch.tensor(value) for name, value in unused.items()}
    add(broken, named(NAMES[2]) | extra)
    config = CoreConfig(device="cpu", dtype="float32", num_pages=16, kv_dtype=kv_dtype)
    engine = build_engine(config, broken)
    assert engine.info.kv_scales == ("none" if kv_dtype == "auto" else "checkpoint")
    scale_K = engine._runner.pool.layers[1].k_scale_K
    assert (scale_K is None) == (kv_dtype == "auto")
    if kv_dtype == "fp8":
        assert scale_K is not None
        assert torch.equal(scale_K, K_SCALES[1].expand(2))
    # What was measured on the user's own texts goes before.
    write_ranges(KvRanges(torch.ones(3, 2), torch.ones(3, 2), num_tokens=1), broken / KV_SCALES_FILE)
    assert build_engine(config, broken).info.kv_scales == (
        "none" if kv_dtype == "auto" else str(broken / KV_SCALES_FILE)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model.layers.1.self_attn.k_scale": torch.tensor(0.0)},
            r"layers\.1\.self_attn\.k_scale holds an invalid scale",
        ),
        ({"model.layers.1.self_attn.k_scale": torch.tensor(float("nan"))}, r"holds an invalid scale"),
        ({"model.layers.2.self_attn.v_scale": torch.ones(3)}, r"v_scale has shape \(3,\)"),
        ({"model.layers.2.self_attn.v_scale": None}, r"not v_scale of layer 2"),
    ],
    ids=["zero", "nan", "shape", "missing"],
)
def test_invalid_scales_are_named(change: dict[str, Any], message: str, broken: Path) -> None:
    tensors = named(NAMES[0]) | change
    add(broken, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    with pytest.raises(CheckpointError, match=message):
        read_kv_scales(broken, read_config(broken), E4M3)


def test_a_scheme_for_fp8_kv_is_accepted(broken: Path, change_config: Callable[..., Path]) -> None:
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    scheme = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False},
    }
    assert read_config(change_config(quantization_config=scheme)).quantisation is not None
    scheme["kv_cache_scheme"] = {"num_bits": 4, "type": "float"}
    with pytest.raises(CheckpointError, match=r"kv_cache_scheme\.num_bits: supported: 8; 4 is not"):
        read_config(change_config(quantization_config=scheme))


def test_the_ranges_of_a_gguf_file_lie_beside_it(judge: Callable[[str], PreTrainedModel], tmp_path: Path) -> None:
    model = judge("llama2")
    model.config.architectures = ["LlamaForCausalLM"]
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: GGMLQuantizationType.F32)
    config = CoreConfig(model=str(path), device="cpu", dtype="float32", num_pages=16, kv_dtype="fp8")
    assert build_engine(config, path).info.kv_scales == "built-in text"
    assert ranges_file(path) == tmp_path / "model.kv_scales.json"
    write_ranges(KvRanges(torch.ones(3, 4), torch.ones(3, 4), num_tokens=1), ranges_file(path))
    assert build_engine(config, path).info.kv_scales == str(ranges_file(path))
