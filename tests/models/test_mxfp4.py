"""MXFP4 checkpoints. Judges: transformers' dequantisation of gpt-oss's layout, and its model of the widened weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, LlamaConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ramiform.runtime.engine.build import build_engine
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SingleRank
from ramiform.runtime.models.parallel.shard import Shard
from ramiform.runtime.models.quantised.mxfp4 import dequantised
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, Score

from .packing import Tensors, changed
from .test_quantised import SIZES, logits

TOKENS = [5, 90, 3, 3, 41, 77, 0, 12, 63, 8, 8, 30]


def nearest(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [..., inputs] to blocks [..., groups, 16] and scales [..., groups]; not the best ones."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat((numbers, -numbers))
    groups = weight.float().unflatten(-1, (-1, 32))
    exponents = torch.floor(torch.log2(groups.abs().amax(-1).clamp(min=1e-30) / 4))
    codes = (groups[..., None] / 2 ** exponents[..., None, None] - numbers).abs().argmin(-1).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def test_numbers_are_those_of_transformers() -> None:
    draw = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 5, 4, 16), dtype=torch.uint8, generator=draw)
    scales = torch.randint(97, 140, (3, 5, 4), dtype=torch.uint8, generator=draw)
    wanted = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # inputs first
    for expert in range(3):
        assert torch.equal(dequantised(blocks[expert].flatten(1), scales[expert]), wanted[expert].T)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint as OpenAI stores it, and one of the widened weights."""
    torch.manual_seed(4)
    config = GptOssConfig(
        **SIZES | {"intermediate_size": 64, "head_dim": 16, "sliding_window": 9, "max_position_embeddings": 128},
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                parameter.normal_(0, 0.2)
    folder = tmp_path_factory.mktemp("gpt_oss")
    for name in ("dense", "packed"):
        model.save_pretrained(folder / name)
    tensors, wide = load_file(folder / "dense" / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales = nearest(tensors.pop(name).transpose(1, 2))
        wide[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    save_file(tensors, folder / "packed" / "model.safetensors", metadata={"format": "pt"})
    save_file(kept | wide, folder / "dense" / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((folder / "packed" / "config.json").read_text())
    raw["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "packed" / "config.json").write_text(json.dumps(raw))
    return folder / "packed", folder / "dense"


def scores(path: Path) -> list[float]:
    engine = build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=8), path)
    row = Row(rid="r", tokens=TOKENS, first_position=0, pages=[1], score=Score(first=0, targets=TOKENS[1:], num_top=0))
    return [entry.logprob for entry in engine.run(ForwardPlan(step=0, copies=[], rows=[row])).rows[0].scores]


@pytest.mark.slow
def test_gpt_oss_in_mxfp4_scores_as_its_widened_weights(gpt_oss: tuple[Path, Path]) -> None:
    packed, dense = gpt_oss
    judge = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        logprobs = judge.eval()(torch.tensor([TOKENS])).logits[0].log_softmax(1)
    expected = [float(logprobs[place, token]) for place, token in enumerate(TOKENS[1:])]
    torch.testing.assert_close(torch.tensor(scores(packed)), torch.tensor(expected), rtol=0.02, atol=0.06)
    for num_slices in (1, 2):  # as one rank, and as two ranks do
        found = logits(packed, group=SingleRank(Shard(num_slices=num_slices)))
        assert ((found - logits(dense)).norm() / logits(dense).norm()).item() < 0.03  # inputs are rounded
    model = load_model(packed, read_config(packed, "transformers"), device=torch.device("cpu"), dtype=torch.float32)
    names = dict(model._model.named_parameters())  # type: ignore[attr-defined]
    assert not any(name.endswith(("_blocks", "experts.gate_up_proj")) for name in names)


def packed_llama(tmp_path: Path, change: Any = None) -> tuple[Path, Path]:
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(LlamaConfig(**SIZES), dtype=torch.float32).save_pretrained(
        tmp_path / "dense"
    )
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    config = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }

    def pack(module: str, w: torch.Tensor) -> Tensors:
        blocks, scales = nearest(w)
        scales = scales if change is None else change(scales)
        return {f"{module}.weight_packed": blocks.flatten(1), f"{module}.weight_scale": scales}

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        package = pytest.importorskip("compressed_tensors.compressors.mxfp4.base").MXFP4PackedCompressor
        scheme = pytest.importorskip("compressed_tensors.quantization").QuantizationScheme
        state = {name.removeprefix(f"{module}."): tensor for name, tensor in pack(module, w).items()}
        group = scheme(targets=["Linear"], weights=weights)
        return {f"{module}.weight": package.decompress(state, group)["weight"].float()}

    packed = changed(tmp_path / "dense", tmp_path / "packed", pack, quantization_config=config)
    return packed, packed if change else changed(tmp_path / "dense", tmp_path / "wide", unpack)


def test_compressed_tensors_mxfp4_gives_the_logits_of_its_decompressed_weights(tmp_path: Path) -> None:
    packed, wide = packed_llama(tmp_path)
    expected = logits(wide)
    for options in ({}, {"group": SingleRank(Shard(num_slices=2))}):
        assert ((logits(packed, **options) - expected).norm() / expected.norm()).item() < 0.03  # inputs are rounded
    assert ((logits(tmp_path / "dense") - expected).norm() / expected.norm()).item() > 0.1


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    packed, _ = packed_llama(tmp_path, lambda scales: scales.fill_(255))
    with pytest.raises(CheckpointError, match=r"weight_scale has a scale of 2\^128: supported are those up to"):
        logits(packed)
