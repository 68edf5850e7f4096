"""Quantised linear layers. Judges: packing and dequantising written out in numpy, and the `compressed-tensors`
package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, MixtralConfig, Qwen2Config, Qwen2MoeConfig

from ramiform.runtime.engine import KvMemory, KvPool
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.models.config_fields import ConfigFields
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SingleRank
from ramiform.runtime.models.parallel.shard import Shard
from ramiform.runtime.models.quantised.config import parse_quantisation
from ramiform.runtime.models.quantised.eight_bit import EightBitLinear
from ramiform.runtime.models.quantised.rounding import fp8_rows, int8_rows
from ramiform.runtime.models.quantised.scheme import Scheme
from ramiform.runtime.scheduler.plan import Row
from ramiform.tools.quantize.write import write_quantised

from .packing import (
    GROUP,
    INT4,
    STORED,
    Tensors,
    act_order_dequantised,
    changed,
    compressed,
    dequantised,
    naive_groups,
    pack_compressed,
    pack_gptq,
    pack_gptq_act_order,
)

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}
TOKENS = [5, 90, 3, 3, 41, 77, 0, 12, 63, 8, 8, 30]


TWO_SLICES = SingleRank(Shard(num_slices=2))  # as two ranks have them
# All experts for every token: nearly equal scores would let an input's rounding choose another.
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2, biases": lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2 moe": lambda: Qwen2MoeConfig(
        **SIZES, **MIXTURE, shared_expert_intermediate_size=64, mlp_only_layers=[1], sliding_window=None
    ),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=3),
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def dense(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param](), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    path = tmp_path_factory.mktemp("dense")
    model.save_pretrained(path)
    return path


def logits(path: Path, **options: Any) -> torch.Tensor:
    model = load_model(path, device=torch.device("cpu"), dtype=torch.float32, **options)
    pool = KvPool(KvMemory(model.config, 2, device=model.device, dtype=model.dtype))
    rows = [Row(rid="r", tokens=TOKENS, first_position=0, pages=[1])]
    with torch.inference_mode():
        return model.logits(
            model.hidden(decoder_inputs(rows, model, np.arange(len(TOKENS)), pool.layers[0]), pool.layers)
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("stored", list(STORED))
def test_four_bit_checkpoints_give_the_logits_of_their_dequantised_weights(
    stored: str, dense: Path, tmp_path: Path
) -> None:
    pack, config = STORED[stored]
    reference = changed(
        dense, tmp_path / "reference", lambda module, w: {f"{module}.weight": dequantised(*naive_groups(w))}
    )
    packed = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    expected = logits(reference)
    # The product rounds inputs to int8; the codes' own rounding is an order above that.
    assert ((logits(packed) - expected).norm() / expected.norm()).item() < 0.03
    assert ((logits(packed, group=TWO_SLICES) - expected).norm() / expected.norm()).item() < 0.03
    assert ((logits(dense) - expected).norm() / expected.norm()).item() > 0.1


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
@pytest.mark.parametrize("kind", ["int-quantized", "float-quantized"])
def test_eight_bit_weights_give_the_logits_of_their_dequantised_weights(
    kind: str, strategy: str, dense: Path, tmp_path: Path
) -> None:
    def codes_and_scale(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = w.abs().amax(1, keepdim=True) / 100 if strategy == "channel" else w.abs().max().view(1) / 100
        return ((w / scale).round().to(torch.int8 if kind == "int-quantized" else torch.float8_e4m3fn)), scale

    def pack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale = codes_and_scale(w)
        return {f"{module}.weight": codes, f"{module}.weight_scale": scale}

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale = codes_and_scale(w)
        return {f"{module}.weight": codes.float() * scale}

    config = compressed(kind, strategy=strategy)
    packed = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    reference = changed(dense, tmp_path / "reference", unpack)
    expected = logits(reference)
    if kind == "float-quantized":
        torch.testing.assert_close(logits(packed), expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(logits(packed, group=TWO_SLICES), expected, rtol=1e-3, atol=1e-3)
        return
    # Inputs of int8 weights are rounded to int8 by group, which changes nothing where there is one.
    for ours, judge in zip(layers_of(packed), layers_of(reference), strict=True):
        identity = torch.eye(SIZES["hidden_size"])
        torch.testing.assert_close(ours.qkv(identity), judge.qkv(identity), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.o(identity), judge.o(identity), rtol=1e-5, atol=1e-6)
    if "num_local_experts" not in json.loads((dense / "config.json").read_text()):
        assert ((logits(packed) - expected).norm() / expected.norm()).item() < 0.04
        assert ((logits(packed, group=TWO_SLICES) - expected).norm() / expected.norm()).item() < 0.04


def test_blocks_of_fp8_give_the_logits_of_their_dequantised_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 128}
    model = transformers.AutoModelForCausalLM.from_config(LlamaConfig(**SIZES | sizes), dtype=torch.float32)
    model.save_pretrained(tmp_path / "dense")

    def blocks(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = w.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scale = parts.abs().amax((1, 3), keepdim=True) / 448
        return (parts / scale).to(torch.float8_e4m3fn), scale

    def pack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale = blocks(w)
        return {f"{module}.weight": codes.reshape(w.shape), f"{module}.weight_scale_inv": scale[:, 0, :, 0]}

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale = blocks(w)
        return {f"{module}.weight": (codes.float() * scale).reshape(w.shape)}

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    packed = changed(tmp_path / "dense", tmp_path / "packed", pack, quantization_config=config)
    expected = logits(changed(tmp_path / "dense", tmp_path / "weights", unpack))
    for options in ({}, {"group": TWO_SLICES}):
        assert ((logits(packed, **options) - expected).norm() / expected.norm()).item() < 1e-3
    with pytest.raises(CheckpointError, match=r"gate_proj: in 4 slices .* 64 outputs, which blocks of 128"):
        logits(packed, group=SingleRank(Shard(num_slices=4)))


@pytest.mark.parametrize(
    ("config", "dense"),
    [
        (  # AutoAWQ and vLLM: a part of the name; routers are dense anyway
            {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["gate", "s.1.", "o_pro"]},
            {"model.layers.1.mlp.up_proj", "model.layers.0.self_attn.o_proj"},
        ),
        (  # transformers: a name and what is below it, or the end of a name
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1", "self_attn.o_proj", "mlp.up"]},
            {"model.layers.1.mlp.up_proj", "model.layers.0.self_attn.o_proj"},
        ),
    ],
    ids=["awq", "fp8"],
)
def test_a_name_of_an_unconverted_module_stands_for_others(config: dict[str, Any], dense: set[str]) -> None:
    modules = {"model.layers.10.mlp.gate_proj", "model.layers.0.mlp.up_proj", *dense}
    quantisation = parse_quantisation(ConfigFields(config, Path("config.json")))
    assert quantisation is not None
    assert {module for module in modules if quantisation.scheme_of(module) is None} == dense


def test_names_of_fp8_lists_need_no_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published lists have more names than `re` keeps patterns, and a model asks for each of its modules."""
    names = [f"model.layers.{layer}.mlp.gate" for layer in range(600)]
    config = {"quant_method": "fp8", "modules_to_not_convert": names}
    quantisation = parse_quantisation(ConfigFields(config, Path("config.json")))
    assert quantisation is not None
    with monkeypatch.context() as patched:
        for function in ("compile", "match"):
            patched.delattr(re, function)
        assert quantisation.scheme_of("model.layers.599.mlp.gate") is None
        assert quantisation.scheme_of("model.layers.599.mlp.experts.1.up_proj") is quantisation.scheme


def layers_of(path: Path) -> Any:
    return load_model(path, device=torch.device("cpu"), dtype=torch.float32).parameters.layers


# In a mixture an input's rounding may choose another expert.
@pytest.mark.parametrize("dense", ["llama", "qwen2, biases"], indirect=True)
@pytest.mark.parametrize("kind", ["int-quantized", "float-quantized"])
def test_inputs_quantised_by_token_give_the_logits_of_rounded_inputs(kind: str, dense: Path, tmp_path: Path) -> None:
    # As SmoothQuant's recipes write int8: what they smoothed is in the weights and norms already.
    rounded = int8_rows if kind == "int-quantized" else fp8_rows

    def pack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale = rounded(w)
        return {f"{module}.weight": codes, f"{module}.weight_scale": scale}

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale = rounded(w)
        return {f"{module}.weight": codes.float() * scale}

    both = changed(dense, tmp_path / "both", pack, quantization_config=compressed(kind, inputs=True))
    weights = changed(dense, tmp_path / "weights", unpack)
    expected = logits(weights)
    error = ((logits(both) - expected).norm() / expected.norm()).item()
    assert 1e-4 < error < (0.03 if kind == "int-quantized" else 0.12)
    model = load_model(both, device=torch.device("cpu"), dtype=torch.float32)
    assert model.parameters.layers[0].qkv.scheme.activations


# As AutoFP8, transformers and llm-compressor write them: names and shapes of the scales.
STATIC: dict[str, tuple[dict[str, Any], str, str, tuple[int, ...]]] = {
    "AutoFP8": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
                "weight_scale", "input_scale", ()),
    "transformers": ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
                     "weight_scale_inv", "activation_scale", ()),
    "float-quantized": (compressed("float-quantized", strategy="tensor"), "weight_scale", "input_scale", (1,)),
    "int-quantized": (compressed("int-quantized", strategy="tensor"), "weight_scale", "input_scale", (1,)),
}  # fmt: skip


@pytest.mark.parametrize("dense", ["llama"], indirect=True)
@pytest.mark.parametrize("kind", STATIC)
def test_stored_scales_of_inputs_are_honoured(kind: str, dense: Path, tmp_path: Path) -> None:
    config, weight_name, input_name, shape = STATIC[kind]
    largest = 127.0 if kind == "int-quantized" else 448.0
    stored = torch.int8 if kind == "int-quantized" else torch.float8_e4m3fn
    if "config_groups" in config:
        number = kind.partition("-")[0]
        inputs = {"num_bits": 8, "type": number, "symmetric": True, "strategy": "tensor", "dynamic": False}
        group = config["config_groups"]["group_0"] | {"input_activations": inputs}
        config = config | {"config_groups": {"group_0": group}}

    def pack(module: str, w: torch.Tensor) -> Tensors:
        scale = w.abs().max() / largest
        codes = w / scale if stored == torch.float8_e4m3fn else (w / scale).round()
        input_scale = (1.0 if module.endswith("k_proj") else 0.5) / largest  # of fused modules the larger one
        return {
            f"{module}.weight": codes.to(stored),
            f"{module}.{weight_name}": scale.reshape(shape),
            f"{module}.{input_name}": torch.full(shape, input_scale),
        }

    path = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    model = load_model(path, device=torch.device("cpu"), dtype=torch.float32)
    x = torch.randn(9, SIZES["hidden_size"], generator=torch.Generator().manual_seed(1))
    tensors = load_file(path / "model.safetensors")
    layer = model.parameters.layers[1]
    names = {"self_attn.q_proj": (layer.qkv, 0, 1.0), "self_attn.o_proj": (layer.o, 0, 0.5)}
    for name, (linear, start, limit) in names.items():
        prefix = f"model.layers.1.{name}"
        weight = tensors[f"{prefix}.weight"].float() * tensors[f"{prefix}.{weight_name}"]
        codes = x.clamp(-limit, limit) / (limit / largest)
        codes = codes.round() if kind == "int-quantized" else codes.to(stored).float()
        expected = codes * (limit / largest) @ weight.T
        got = linear(x)[:, start : start + len(weight)]
        # The loops of int8 round a second time, by group.
        assert ((got - expected).norm() / expected.norm()).item() < (0.01 if kind == "int-quantized" else 1e-5)
        assert ((x @ weight.T - expected).norm() / expected.norm()).item() > 0.1
    if kind == "AutoFP8":
        two = logits(path, group=TWO_SLICES)
        assert ((two - logits(path)).norm() / two.norm()).item() < 0.01


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("num_tokens", [1, 5, 33])
def test_a_product_with_quantised_inputs_equals_that_of_the_rounded_numbers(kind: str, num_tokens: int) -> None:
    torch.manual_seed(num_tokens)
    weight, x = torch.randn(48, 32), torch.randn(num_tokens, 32) * 3
    layer = EightBitLinear(
        Scheme(kind=kind, source="dense", activations=True), 48, 32, bias=False, device="cpu", dtype=torch.float32
    )
    layer.row_destinations(0, 48)["weight"].put(weight)
    layer.finish()

    def rounded(matrix: torch.Tensor) -> torch.Tensor:
        largest = {"int8": 127.0, "fp8": 448.0}[kind]
        scale = matrix.double().abs().amax(1, keepdim=True) / largest
        codes = matrix.double() / scale
        codes = codes.round() if kind == "int8" else codes.float().to(torch.float8_e4m3fn).double()
        return codes * scale

    expected = (rounded(x) @ rounded(weight).T).float()
    # A code on the edge between two may fall to either side of it in float32.
    assert ((layer(x) - expected).norm() / expected.norm()).item() < 2e-3
    assert ((layer(x) - x @ weight.T).norm() / expected.norm()).item() > 2e-3


@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8"])
def test_rounding_while_loading_changes_the_logits_a_little(quantize: str, dense: Path) -> None:
    exact, ours = logits(dense), logits(dense, quantize=quantize)
    error = ((ours - exact).norm() / exact.norm()).item()
    assert 0 < error < {"int8": 0.05, "int4": 0.5, "fp8": 0.2}[quantize]


@pytest.mark.parametrize(("quantize", "method"), [("int8", "int8"), ("int4", "int4-rtn")])
def test_a_written_checkpoint_equals_rounding_while_loading(
    quantize: str, method: str, dense: Path, tmp_path: Path
) -> None:
    write_quantised(dense, tmp_path / "out", method)
    assert torch.equal(logits(tmp_path / "out"), logits(dense, quantize=quantize))


@pytest.mark.parametrize("dense", ["llama", "qwen2, biases"], indirect=True)
def test_the_compressed_tensors_package_decompresses_what_is_written(dense: Path, tmp_path: Path) -> None:
    # transformers cannot load packed zero points: the package allocates them unpacked.
    package = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base")
    schemes = pytest.importorskip("compressed_tensors.quantization")
    write_quantised(dense, tmp_path / "out", "int4-rtn")
    group = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["config_groups"][
        "group_0"
    ]
    packed = load_file(tmp_path / "out" / "model.safetensors")

    def decompress(module: str, _: torch.Tensor) -> Tensors:
        names = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape")
        state = {name: packed[f"{module}.{name}"] for name in names}
        weight = package.PackedQuantizationCompressor.decompress(state, schemes.QuantizationScheme(**group))["weight"]
        return {f"{module}.weight": weight.float()}

    reference = changed(dense, tmp_path / "reference", decompress)
    # The package multiplies in the scale's bfloat16, and the layers round inputs to int8.
    error = (logits(tmp_path / "out") - logits(reference)).norm() / logits(reference).norm()
    assert error.item() < 0.03


# transformers 5.23 loads no quantised experts from their separate tensors.
@pytest.mark.parametrize("dense", ["llama", "qwen2, biases"], indirect=True)
@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_transformers_reads_what_is_written(method: str, dense: Path, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    write_quantised(dense, tmp_path / "out", method)
    judge = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = judge(torch.tensor([TOKENS])).logits[0]
    error = (logits(tmp_path / "out") - expected).norm() / expected.norm()
    assert error.item() < (0.02 if method == "fp8" else 0.04)  # inputs of int8 weights are rounded


def test_a_sharded_checkpoint_is_written_sharded(dense: Path, tmp_path: Path) -> None:
    transformers.AutoModelForCausalLM.from_pretrained(dense).save_pretrained(tmp_path / "many", max_shard_size="60KB")
    write_quantised(tmp_path / "many", tmp_path / "out", "int8")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert torch.equal(logits(tmp_path / "out"), logits(dense, quantize="int8"))


@pytest.mark.parametrize("dense", ["llama", "qwen2, biases"], indirect=True)
def test_an_ignored_layer_stays_dense(dense: Path, tmp_path: Path) -> None:
    def pack(module: str, w: torch.Tensor) -> Tensors:
        if module.endswith("down_proj"):
            return {f"{module}.weight": w}
        codes, scale = int8_rows(w)
        return {f"{module}.weight": codes, f"{module}.weight_scale": scale}

    config = compressed("int-quantized") | {"ignore": ["lm_head", "re:.*down_proj"]}
    path = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    layer = load_model(path, device=torch.device("cpu"), dtype=torch.float32).parameters.layers[1]
    weights = load_file(dense / "model.safetensors")
    down_EI = weights["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(layer.mlp.down(torch.eye(down_EI.shape[1])), down_EI.T)
    assert isinstance(layer.o, EightBitLinear)


@pytest.mark.slow
@pytest.mark.parametrize("listed", [True, False], ids=["as the config says", "though the config does not say so"])
def test_a_fused_layer_may_be_quantised_in_part(listed: bool, dense: Path, tmp_path: Path) -> None:
    kept = "model.layers.1.self_attn.k_proj"

    def pack(module: str, w: torch.Tensor) -> Tensors:
        return {f"{module}.weight": w} if module == kept else pack_compressed(module, w)

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        return {f"{module}.weight": w if module == kept else dequantised(*naive_groups(w))}

    config = compressed("pack-quantized", **INT4) | {"ignore": [kept] if listed else []}
    packed = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    expected = logits(changed(dense, tmp_path / "reference", unpack))
    for options in ({}, {"group": TWO_SLICES}):
        assert ((logits(packed, **options) - expected).norm() / expected.norm()).item() < 0.03


@pytest.mark.parametrize("dense", ["llama"], indirect=True)
def test_tensors_without_the_prefix_model_are_read(dense: Path, tmp_path: Path) -> None:
    def rename(name: str) -> str:
        return name.removeprefix("model.")

    (tmp_path / "config.json").write_bytes((dense / "config.json").read_bytes())
    tensors = {rename(name): tensor for name, tensor in load_file(dense / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path), logits(dense))


OLD = {
    "compression_config": lambda config: ("config.json", {"compression_config": config}),
    "nested": lambda config: ("config.json", {"compression_config": {"quantization_config": config}}),
    "quantize_config.json": lambda config: ("quantize_config.json", {**config, "quant_method": None}),
    "quant_config.json": lambda config: (
        "quant_config.json",
        {"w_bit": 4, "q_group_size": config["group_size"], "zero_point": True, "version": "GEMM"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("place", "stored"), [*zip(OLD, ["pack-quantized"] * 2 + ["gptq", "awq"], strict=True)])
@pytest.mark.parametrize("dense", ["llama"], indirect=True)
def test_configs_in_older_places_are_read(place: str, stored: str, dense: Path, tmp_path: Path) -> None:
    pack, config = STORED[stored]
    new = changed(dense, tmp_path / "new", pack, quantization_config=config)
    old = changed(dense, tmp_path / "old", pack)
    name, values = OLD[place](config)
    raw = json.loads((old / name).read_text()) if (old / name).exists() else {}
    (old / name).write_text(json.dumps(raw | {key: value for key, value in values.items() if value is not None}))
    assert torch.equal(logits(old), logits(new))


@pytest.mark.parametrize("dense", ["llama"], indirect=True)
@pytest.mark.parametrize("algorithm", ["W4A16_NVFP4", "NVFP4"])
def test_nvfp4_of_modelopt_is_read(algorithm: str, dense: Path, tmp_path: Path) -> None:
    """modelopt quantises to it on GPUs only. The format: e2m1 times e4m3 times a float32, of inputs a stored one."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    input_scales = {"q_proj": 4e-4, "k_proj": 1.6e-3, "v_proj": 8e-4}  # fused modules take the largest

    def parts(w: torch.Tensor, whole: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        whole = w.abs().max() / (6 * 448) if whole is None else whole
        scale = (w.unflatten(1, (-1, 16)).abs().amax(2) / 6 / whole).to(torch.float8_e4m3fn)
        unit = w / (scale.float().repeat_interleave(16, 1) * whole)
        return (unit[..., None] - numbers).abs().argmin(-1), scale, whole

    def pack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale, whole = parts(w)
        packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
        scales = {"weight_scale": scale, "weight_scale_2": whole}
        if algorithm == "NVFP4":
            scales["input_scale"] = torch.tensor(input_scales.get(module.rpartition(".")[2], 1.6e-3))
        return {f"{module}.weight": packed} | {f"{module}.{name}": value for name, value in scales.items()}

    def unpack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale, whole = parts(w)
        return {f"{module}.weight": numbers[codes] * scale.float().repeat_interleave(16, 1) * whole}

    def round_inputs(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        codes, scale, whole = parts(inputs[0][0], torch.tensor(1.6e-3))
        return (numbers[codes] * scale.float().repeat_interleave(16, 1) * whole)[None]

    config = {"quant_method": "modelopt", "quant_algo": algorithm, "exclude_modules": ["lm_head", "model.embed*"]}
    packed = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    reference = changed(dense, tmp_path / "reference", unpack)
    expected = logits(reference)
    if algorithm == "NVFP4":
        judge = transformers.AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32)
        for name, module in judge.named_modules():
            if name.endswith("_proj"):
                module.register_forward_pre_hook(round_inputs)
        exact = expected
        with torch.inference_mode():
            expected = judge(torch.tensor([TOKENS])).logits[0]
        # A number in the middle of two codes may become either.
        assert (logits(packed) - expected).norm() < 0.2 * (expected - exact).norm()
        return
    torch.testing.assert_close(logits(packed), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dense", ["qwen2, biases", "mixtral"], indirect=True)
def test_act_order_gives_the_logits_of_its_dequantised_weights(dense: Path, tmp_path: Path) -> None:
    config = STORED["gptq"][1] | {"desc_act": True}
    packed = changed(dense, tmp_path / "packed", pack_gptq_act_order, quantization_config=config)
    reference = changed(dense, tmp_path / "reference", lambda module, w: {f"{module}.weight": act_order_dequantised(w)})
    expected = logits(reference)
    assert ((logits(packed) - expected).norm() / expected.norm()).item() < 0.03
    with pytest.raises(CheckpointError, match="act-order has groups across all ranks"):
        logits(packed, group=TWO_SLICES)


@pytest.mark.parametrize("dense", ["llama"], indirect=True)
def test_fused_modules_in_two_orders_are_refused(dense: Path, tmp_path: Path) -> None:
    def pack(module: str, w: torch.Tensor) -> Tensors:
        tensors = pack_gptq_act_order(module, w)
        if module.endswith("k_proj"):
            tensors[f"{module}.g_idx"] = tensors[f"{module}.g_idx"].flip(0)
        return tensors

    config = STORED["gptq"][1] | {"desc_act": True}
    path = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    with pytest.raises(CheckpointError, match=r"self_attn\.._proj\.g_idx orders inputs otherwise than the modules"):
        logits(path)


@pytest.mark.parametrize("dense", ["llama"], indirect=True)
def test_act_order_without_its_setting_is_refused_by_the_tensor_that_has_it(dense: Path, tmp_path: Path) -> None:
    def pack(module: str, w: torch.Tensor) -> Tensors:
        return pack_gptq(module, w) | {f"{module}.g_idx": torch.arange(w.shape[1], dtype=torch.int32).flip(0) // GROUP}

    path = changed(dense, tmp_path / "packed", pack, quantization_config=STORED["gptq"][1])
    with pytest.raises(CheckpointError, match=r"the tensor model\.layers\.\S+\.g_idx .*act-order"):
        logits(path)


def test_quantised_checkpoints_are_not_quantised_again(dense: Path, tmp_path: Path) -> None:
    write_quantised(dense, tmp_path / "out", "int8")
    with pytest.raises(CheckpointError, match=r"holds int8 weights"):
        logits(tmp_path / "out", quantize="int4")
    with pytest.raises(CheckpointError, match=r"holds int8 weights"):
        write_quantised(tmp_path / "out", tmp_path / "again", "fp8")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "marlin-24"}, r"format: .*'marlin-24' is not supported"),
        ({"ignore": "lm_head"}, r"ignore must list names of modules, got 'lm_head'"),
        ({"ignore": ["re:(.*"]}, r"ignore must list names and patterns, not 're:\(\.\*'"),
        ({"config_groups": {}}, r"config_groups\.\{\}: no group at all is not supported"),
        ({"kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme\.type: .*'int' is not supported"),
        (compressed("pack-quantized", num_bits=3), r"weights\.num_bits: 3 bits of int are not supported"),
        (compressed("pack-quantized", **INT4, actorder="random"), r"actorder: 'random' is not supported"),
        (compressed("pack-quantized", **INT4 | {"group_size": 0}), r"group_size must be an integer of at least 1"),
        (compressed("float-quantized", symmetric=False), r"symmetric: 8 bits with zero points are not supported"),
        (
            {"config_groups": {"g": {"targets": ["LlamaAttention"], "weights": {}}}},
            r"targets: supported: 'Linear', names and 're:' patterns; 'LlamaAttention' is not supported",
        ),
        ({"quant_method": "torchao"}, r"quant_type\.default\._type: supported: Int8WeightOnlyConfig"),
        ({"quant_method": "auto-round"}, r"packing_format: supported: auto_round:auto_gptq"),
        ({"quant_method": "gptq", "bits": 3}, r"bits: supported: 2, 4, 8; 3 is not supported"),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"format": "marlin"}}},
            r"dynamic\.\+:\.\*\.format: in an override it is not supported",
        ),
    ],
)
def test_unsupported_schemes_are_refused_by_field(
    change: dict[str, Any], message: str, dense: Path, tmp_path: Path
) -> None:
    config = compressed("int-quantized") | change
    path = changed(dense, tmp_path / "packed", pack_gptq, quantization_config=config)
    with pytest.raises(CheckpointError, match=r"config\.json: quantization_config\..*" + message):
        logits(path)


def test_weights_of_another_type_than_the_config_says_are_refused(dense: Path, tmp_path: Path) -> None:
    def pack(module: str, w: torch.Tensor) -> Tensors:
        codes, scale = fp8_rows(w)
        return {f"{module}.weight": codes, f"{module}.weight_scale": scale}

    path = changed(dense, tmp_path / "packed", pack, quantization_config=compressed("int-quantized"))
    with pytest.raises(CheckpointError, match=r"weight is torch\.float8_e4m3fn, config\.json asks for torch\.int8"):
        logits(path)
