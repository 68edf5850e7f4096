"""Calibrated quantisation. Judges: GPTQ as the paper derives it, transformers, and plain rounding.

A calibrated method must leave less error than plain rounding on inputs like those it has seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaConfig, MixtralConfig, Qwen2Config, Qwen2MoeConfig
from typer.testing import CliRunner

from ramiform.cli import app
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.mlp import DenseMlp
from ramiform.runtime.models.quantised import int4_packing
from ramiform.runtime.protocol.errors import RequestError
from ramiform.tools.quantize.awq import CLIPS, input_scales, round_clipped
from ramiform.tools.quantize.gptq import DAMPING, gptq
from ramiform.tools.quantize.int4_matrix import round_to_nearest, squared_error
from ramiform.tools.quantize.write import write_quantised

GROUP = 32
TEXT = "The Velburg ferry leaves at nine. Nadia Haddad lives in Harlow; she is 34 years old and a baker.\n" * 24


torch.set_num_threads(1)  # threads that wait for each other on a busy machine cost more than these models


def correlated(num_rows: int, num_columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a weight, and correlated inputs of which some are large."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_rows, num_columns, generator=draw)
    mixed = torch.randn(400, num_columns, generator=draw) @ torch.randn(num_columns, num_columns, generator=draw)
    return weight, mixed * torch.rand(num_columns, generator=draw) ** 4


def by_definition(weight: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """Round by optimal brain quantisation, equations 2 and 3, with a new inverse for each column."""
    w = weight.double().clone()
    h = hessian.double().clone()
    h += DAMPING * h.diagonal().mean() * torch.eye(len(h), dtype=torch.float64)
    rounded = torch.zeros_like(w)
    for column in range(w.shape[1]):
        if column % GROUP == 0:
            group = w[:, column : column + GROUP].float()
            low, high = group.amin(1).clamp(max=0), group.amax(1).clamp(min=0)
            scale = ((high - low) / 15).clamp(min=1e-7).bfloat16().double()
            zero = (-low.double() / scale).round().clamp(0, 15)
        code = (w[:, column] / scale + zero).round().clamp(0, 15)
        rounded[:, column] = (code - zero) * scale
        inverse = torch.linalg.inv(h[column:, column:])
        error = (w[:, column] - rounded[:, column]) / inverse[0, 0]
        w[:, column:] -= error[:, None] * inverse[0][None]
    return rounded


@pytest.mark.parametrize("num_columns", [32, 64, 160, 256])  # less than a block of columns, and several
def test_gptq_equals_its_derivation(num_columns: int) -> None:
    weight, x = correlated(24, num_columns, seed=num_columns)
    hessian = x.T @ x
    got, want = gptq(weight, hessian, GROUP).dense(), by_definition(weight, hessian)
    # A code on the edge between two may fall to either side, and what follows it in its row differs then.
    same = (got.double() - want).abs().amax(1) < 1e-3
    assert same.float().mean() > 0.7
    assert squared_error(got - weight, hessian) == pytest.approx(
        squared_error((want - weight).float(), hessian), rel=0.1
    )


@pytest.mark.parametrize("seed", range(4))
def test_gptq_leaves_less_error_than_rounding_to_nearest(seed: int) -> None:
    weight, x = correlated(48, 128, seed)
    hessian = x.T @ x
    plain = squared_error(round_to_nearest(weight, GROUP).dense() - weight, hessian)
    assert squared_error(gptq(weight, hessian, GROUP).dense() - weight, hessian) < 0.8 * plain


@pytest.mark.slow
def test_act_order_leaves_less_error_where_some_inputs_are_large() -> None:
    plain, ordered = 0.0, 0.0
    for seed in range(4):
        weight, x = correlated(48, 256, seed)
        hessian = x.T @ x
        plain += squared_error(gptq(weight, hessian, GROUP).dense() - weight, hessian)
        rounded = gptq(weight, hessian, GROUP, act_order=True)
        ordered += squared_error(rounded.dense() - weight, hessian)
        assert rounded.groups_C is not None
        assert rounded.groups_C[hessian.diagonal().argmax()] == 0
        assert rounded.groups_C.bincount().tolist() == [GROUP] * 8
    assert ordered < 0.9 * plain


def test_gptq_takes_inputs_that_are_always_zero_or_always_the_same() -> None:
    weight, x = correlated(16, 64, seed=0)
    x[:, 3] = 0
    x[:, 9] = x[:, 8]
    rounded = gptq(weight, x.T @ x, GROUP).dense()
    assert rounded.isfinite().all()
    assert float((rounded - weight).abs().mean()) < 0.3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_products", [1, 3])  # as of experts, each of which gets some of the inputs
def test_awq_s_factors_leave_less_error_and_are_the_best_of_the_exponents(num_products: int, seed: int) -> None:
    _, x = correlated(48, 128, seed)
    mean = x.abs().mean(0)
    weights = [correlated(48, 128, seed + 10 * number)[0] for number in range(num_products)]
    products = [(weight, own.T @ own) for weight, own in zip(weights, x.chunk(num_products), strict=True)]

    def error(factor: torch.Tensor) -> float:
        return sum(
            squared_error(round_to_nearest(weight * factor, GROUP).dense() / factor - weight, hessian)
            for weight, hessian in products
        )

    chosen = error(input_scales(products, mean, GROUP))
    assert chosen < error(torch.ones(128))
    for exponent in (0.25, 0.5, 0.75):
        assert chosen <= error(mean**exponent) * 1.02  # another common factor moves the scales' own rounding


def test_a_group_s_range_is_the_part_with_the_least_error_of_its_products() -> None:
    weight, x = correlated(6, 64, seed=5)
    weight[::2, ::32] *= 6  # outliers, which cost the others precision
    hessian = x.T @ x
    got = round_clipped(weight, hessian, GROUP).dense()
    for row in range(6):
        for start in range(0, 64, GROUP):
            own, inputs = weight[row, start : start + GROUP], x[:, start : start + GROUP]
            errors = []
            for clip in CLIPS:
                cut = own.clamp(own.min() * clip, own.max() * clip)[None]
                rounded = round_to_nearest(cut, GROUP).dense()[0]
                errors.append(float(((inputs @ (rounded - own)) ** 2).sum()))
            error = float(((inputs @ (got[row, start : start + GROUP] - own)) ** 2).sum())
            assert error == pytest.approx(min(errors), rel=1e-3)
    plain = round_to_nearest(weight, GROUP).dense()
    assert squared_error(got - weight, hessian) < 0.9 * squared_error(plain - weight, hessian)


@pytest.mark.slow
def test_smoothing_saves_int8_inputs_from_outlier_channels(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    torch.manual_seed(5)
    path = made(LlamaConfig(**SIZES | {"num_hidden_layers": 2}), tmp_path / "dense")
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("layernorm.weight")]:  # the same function, large inputs
        tensors[name][::16] *= 60
        layer, after = name.rsplit(".", 2)[0], "self_attn" if "input_layernorm" in name else "mlp"
        for other in tensors:
            if other.startswith(f"{layer}.{after}.") and not other.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[other][:, ::16] /= 60
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    ids = AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode(TEXT, add_special_tokens=False)[:128]
    write_quantised(path, tmp_path / "smooth", "int8", text=TEXT[:2000], smooth_strength=0.5)
    write_quantised(path, tmp_path / "plain", "int8")
    config = json.loads((tmp_path / "smooth" / "config.json").read_text())
    inputs = config["quantization_config"]["config_groups"]["group_0"]["input_activations"]
    assert (inputs["type"], inputs["strategy"], inputs["dynamic"]) == ("int", "token", True)
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))  # the inputs are rounded too
    exact, smooth, plain = (last_states(tmp_path / name, ids) for name in ("dense", "smooth", "plain"))
    assert (smooth - exact).norm() < 0.4 * (plain - exact).norm()
    assert load_model(tmp_path / "smooth", device=torch.device("cpu"), dtype=torch.float32).parameters.layers[0]


SIZES = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
}


# All experts for every token: nearly equal scores would let rounding choose another.
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama, biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "qwen2, window": lambda: Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=40, max_window_layers=1),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=3),
    "qwen2 moe": lambda: Qwen2MoeConfig(
        **SIZES, **EXPERTS, shared_expert_intermediate_size=64, mlp_only_layers=[1], sliding_window=None
    ),
}


@pytest.fixture(params=CONFIGS)
def dense(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(1)
    return made(CONFIGS[request.param](), tmp_path / "dense")


def made(config: transformers.PretrainedConfig, path: Path) -> Path:
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(path)
    (path / "tokenizer.json").write_bytes((SHIPPED_MODEL / "tokenizer.json").read_bytes())
    return path


def unpacked(path: Path, out: Path) -> Path:
    """Write a dense checkpoint with the numbers of a packed one."""
    tensors = load_file(path / "model.safetensors")
    out.mkdir()
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        module = name.removesuffix(".weight_packed")
        codes = int4_packing.unpack(tensors.pop(name), 1).float()
        scale, zeros = tensors.pop(f"{module}.weight_scale").float(), tensors.pop(f"{module}.weight_zero_point")
        zero = int4_packing.unpack(zeros, 0)[: len(codes)].float()
        assert tensors.pop(f"{module}.weight_shape").tolist() == list(codes.shape)
        groups = codes.view(len(codes), -1, GROUP)
        tensors[f"{module}.weight"] = ((groups - zero[..., None]) * scale[..., None]).flatten(1)
    for name in [name for name in tensors if name.endswith(".qweight")]:  # GPTQ's, number by number
        module, words = name.removesuffix(".qweight"), tensors.pop(name)
        zeros, scale = tensors.pop(f"{module}.qzeros"), tensors.pop(f"{module}.scales").float()
        weight = torch.empty(words.shape[1], 8 * len(words))
        for column, group in enumerate(tensors.pop(f"{module}.g_idx").tolist()):
            code = (words[column // 8] >> 4 * (column % 8)) & 15
            zero = torch.stack([((zeros[group] >> 4 * place) & 15) + 1 & 15 for place in range(8)], dim=1).flatten()
            weight[:, column] = (code - zero) * scale[group]
        tensors[f"{module}.weight"] = weight
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((path / "config.json").read_text())
    del raw["quantization_config"]
    (out / "config.json").write_text(json.dumps(raw))
    return out


def last_states(path: Path, ids: list[int]) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]


# A random mixture's inputs are all about as large: there is little that AWQ could make better.
NEARER = [*((name, "gptq") for name in CONFIGS), ("llama, biases", "awq"), ("qwen2, window", "awq")]


@pytest.mark.slow
@pytest.mark.parametrize(("dense", "method"), NEARER, indirect=["dense"])
def test_a_calibrated_checkpoint_is_nearer_to_the_dense_model_than_a_rounded_one(
    method: str, dense: Path, tmp_path: Path
) -> None:
    ids = AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode(TEXT, add_special_tokens=False)
    assert len(ids) > 512
    write_quantised(dense, tmp_path / "plain", "int4-rtn")
    write_quantised(dense, tmp_path / method, method, text=TEXT)  # type: ignore[arg-type]
    exact = last_states(dense, ids[:256])

    def error(folder: str) -> float:
        states = last_states(unpacked(tmp_path / folder, tmp_path / f"{folder} dense"), ids[:256])
        return float((states - exact).norm() / exact.norm())

    assert error(method) < 0.93 * error("plain")


@pytest.mark.slow
@pytest.mark.parametrize("dense", ["llama, biases"], indirect=True)
def test_act_order_is_written_as_gptq_stores_it_and_is_no_worse(dense: Path, tmp_path: Path) -> None:
    ids = AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode(TEXT, add_special_tokens=False)[:256]
    write_quantised(dense, tmp_path / "plain", "gptq", text=TEXT)
    write_quantised(dense, tmp_path / "ordered", "gptq", text=TEXT, act_order=True)
    exact = last_states(dense, ids)
    plain, ordered = (
        last_states(unpacked(tmp_path / name, tmp_path / f"{name} dense"), ids) for name in ("plain", "ordered")
    )
    assert (ordered - exact).norm() < 1.02 * (plain - exact).norm()
    module = "model.layers.1.mlp.down_proj"
    packed = load_file(tmp_path / "ordered" / "model.safetensors")
    ours = load_file(tmp_path / "ordered dense" / "model.safetensors")[f"{module}.weight"]
    groups_C = packed[f"{module}.g_idx"]
    assert (groups_C[1:] < groups_C[:-1]).any()
    layer = load_model(tmp_path / "ordered", device=torch.device("cpu"), dtype=torch.float32).parameters.layers[1]
    assert isinstance(layer.mlp, DenseMlp)
    product = layer.mlp.down(torch.eye(len(groups_C))) - layer.mlp.down(torch.zeros(1, len(groups_C)))
    torch.testing.assert_close(product.T, ours, rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_awq_s_factors_cancel_when_nothing_is_rounded(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramiform.tools.quantize import calibration

    kept: dict[str, torch.Tensor] = {}

    class Unrounded:
        """Stand-in for Int4Matrix that keeps the weight unchanged."""

        def __init__(self, weight: torch.Tensor) -> None:
            self.weight = weight.clone()

        def dense(self) -> torch.Tensor:
            return self.weight

        def rows(self, start: int, size: int) -> Unrounded:
            return Unrounded(self.weight[start : start + size])

    monkeypatch.setattr(calibration, "round_to_nearest", lambda weight, _: Unrounded(weight))
    monkeypatch.setattr(calibration, "round_clipped", lambda weight, *_: Unrounded(weight))
    ids = AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode(TEXT, add_special_tokens=False)[:256]
    model = load_model(dense, device=torch.device("cpu"), dtype=torch.float32)
    for layer in calibration.round_layers(model, [ids], "awq", GROUP):
        kept |= {f"{module}.weight": groups.weight for module, groups in layer.groups.items()} | layer.dense
    tensors = load_file(dense / "model.safetensors")
    changed = {name for name, tensor in kept.items() if not torch.equal(tensor, tensors[name])}
    assert any("input_layernorm" in name for name in changed)
    (tmp_path / "moved").mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in (tensors | kept).items()},
        tmp_path / "moved/model.safetensors",
        metadata={"format": "pt"},
    )
    (tmp_path / "moved/config.json").write_bytes((dense / "config.json").read_bytes())
    torch.testing.assert_close(last_states(tmp_path / "moved", ids), last_states(dense, ids), rtol=1e-3, atol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_the_command_calibrates_and_reports(method: str, dense: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    arguments = ["quantize", str(dense), "--method", method, "--out", str(tmp_path / "out")]
    arguments += ["--calibration", str(tmp_path / "text"), "--data", str(tmp_path / "text")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert re.search(r"perplexity\s+│\s+[\d.]+\s+│\s+[\d.]+", result.output)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["format"] == "pack-quantized"
    load_model(tmp_path / "out", device=torch.device("cpu"), dtype=torch.float32)


def test_a_calibrated_method_needs_a_text_and_a_long_enough_one(dense: Path, tmp_path: Path) -> None:
    arguments = ["quantize", str(dense), "--method", "awq", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, RequestError)
    assert "give one with --calibration" in str(result.exception)
    with pytest.raises(RequestError, match="the text has 1 tokens: calibrating takes at least 256"):
        write_quantised(dense, tmp_path / "out", "gptq", text="a")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_experts_that_few_tokens_choose_are_rounded_to_nearest_and_named(tmp_path: Path) -> None:
    torch.manual_seed(2)
    path = made(MixtralConfig(**SIZES, num_local_experts=24, num_experts_per_tok=1), tmp_path / "mixture")
    seldom = write_quantised(path, tmp_path / "gptq", "gptq", text=TEXT)
    assert 0 < len(seldom) < 3 * 24 * 3
    assert all(".experts." in name for name in seldom)
    write_quantised(path, tmp_path / "plain", "int4-rtn")
    suited, plain = (load_file(tmp_path / name / "model.safetensors") for name in ("gptq", "plain"))
    for name, codes in plain.items():
        if name.endswith(".weight_packed"):
            same = torch.equal(codes, suited[name])
            assert same == (name.removesuffix(".weight_packed") in seldom), name
