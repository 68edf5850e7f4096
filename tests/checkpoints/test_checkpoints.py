"""Checkpoints that other projects' quantisers wrote. Judge: each tool's own dequantisation, stored beside its file."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from ramiform.kernels.reference.layers import apply_rope
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.linear import DenseLinear, Linear
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.quantised.factory import RoundedInputs
from ramiform.runtime.speculation.eagle import load_head

from .tiny_models import checksums

HERE = Path(__file__).parent
DATA = HERE / "data"
REFUSED = {
    "modelopt-int4_awq": r"quantization_config\.quant_algo: supported: FP8, .*'W4A16_AWQ' is not supported",
    "modelopt-int8_smoothquant": r"quant_algo: supported: FP8, .*'W8A8_SQ_PER_CHANNEL' is not supported",
}
# The inputs that weights are seen by are rounded to a stored scale; scales and zero points are kept as float16.
LOOSE = {
    "llmcompressor-FP8": 0.06,
    "llmcompressor-NVFP4": 0.06,
    "modelopt-fp8": 0.06,
    "modelopt-fp8_kv": 0.06,
    "gptqmodel-gptq_asymmetric": 0.04,
}
NAMES = sorted(file.stem for file in DATA.glob("*.zip") if not file.stem.startswith("speculators-"))


def unpacked(name: str, folder: Path, source: Path = DATA) -> dict[str, torch.Tensor]:
    """Unpack a checkpoint and return its judge."""
    with zipfile.ZipFile(source / f"{name}.zip") as archive:
        archive.extractall(folder)
    judge = load_file(folder / "judge.safetensors")
    (folder / "judge.safetensors").unlink()
    return judge


def load(folder: Path) -> Decoder:
    return load_model(folder, device=torch.device("cpu"), dtype=torch.float32)


def weights(model: Decoder) -> dict[str, torch.Tensor]:
    """Return the matrices of layers and head by the names that tools give them."""
    config, found = model.config, dict[str, torch.Tensor]()

    def add(prefix: str, linear: Linear, inputs: int, **sizes: int) -> None:
        rows = linear(torch.eye(inputs)).T
        found.update(zip((f"{prefix}.{name}" for name in sizes), rows.split(list(sizes.values())), strict=True))

    E, H, K = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for index, layer in enumerate(model.parameters.layers):
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        add(attention, layer.qkv, E, q_proj=H, k_proj=K, v_proj=K)
        add(attention, layer.o, H, o_proj=E)
        if config.experts is None:
            pairs, size = {mlp: (layer.mlp.gate_up, layer.mlp.down)}, config.intermediate_size
        else:
            block, size = f"model.layers.{index}.{config.experts.names.block}", config.experts.intermediate_size
            pairs = {f"{block}.experts.{number}": layer.mlp.expert(number) for number in layer.mlp.held}
        for prefix, (gate_up, down) in pairs.items():
            add(prefix, gate_up, E, gate_proj=size, up_proj=size)
            add(prefix, down, size, down_proj=E)
    return found | {"lm_head": model.parameters.dense_head()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
@torch.inference_mode()
def test_what_tools_write_is_read_as_they_read_it(name: str, tmp_path: Path) -> None:
    judge = unpacked(name, tmp_path)
    found = weights(load(tmp_path))
    assert len(judge) >= 4
    for module, expected in judge.items():
        error = (checksums(found[module]) - expected).norm() / expected.norm()
        assert error < LOOSE.get(name, 0.01), module


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    unpacked(name, tmp_path)
    with pytest.raises(CheckpointError, match=REFUSED[name]):
        load(tmp_path)


TOKEN = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
GROUP = {"type": "float", "strategy": "group", "group_size": 32, "dynamic": True, "scale_dtype": torch.uint8}
INPUTS = {
    "int8": QuantizationArgs(type="int", **TOKEN),
    "fp8": QuantizationArgs(type="float", **TOKEN),
    "mxfp4": QuantizationArgs(num_bits=4, **GROUP),
    "mxfp8": QuantizationArgs(num_bits=8, **GROUP),
    "nvfp4": QuantizationArgs(
        num_bits=4,
        **GROUP
        | {"strategy": "tensor_group", "group_size": 16, "dynamic": "local", "scale_dtype": torch.float8_e4m3fn},
    ),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_are_rounded_as_compressed_tensors_rounds_them(kind: str) -> None:
    torch.manual_seed(2)
    x = torch.randn(40, 128) * torch.logspace(-3, 3, 40)[:, None]
    batch = x if kind.endswith("fp4") or kind.startswith("mx") else x[None]
    whole = 6 * 448 / x.abs().max() if kind == "nvfp4" else None
    scale, zero = compute_dynamic_scales_and_zp(batch, INPUTS[kind], torch.nn.Module(), whole)
    expected = fake_quantize(batch, scale, zero, INPUTS[kind], global_scale=whole).view(40, 128)
    layer = RoundedInputs(DenseLinear(torch.eye(128)), kind, None if whole is None else torch.zeros(1), True)  # type: ignore[arg-type]
    if whole is not None:
        layer.row_destinations(0, 128)["input_global_scale"].put(whole)
    found = layer(x)
    if kind == "int8":  # its scales are those of 127.5 steps here, and of 127 in the products
        assert ((found - expected).abs() <= x.abs().amax(1, keepdim=True) / 127).all()
        return
    # A number in the middle of two codes may become either, by the last bit of its scale.
    assert ((found - expected).abs() > 1e-5 * expected.abs() + 1e-9).float().mean() < 0.01
    torch.testing.assert_close(found, expected, rtol=0.15, atol=0.02)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_inputs_with_a_stored_scale_are_rounded_as_compressed_tensors_rounds_them(kind: str) -> None:
    torch.manual_seed(2)
    x, type_ = torch.randn(40, 128), "int" if kind == "int8" else "float"
    scale = x.abs().amax() / (200 if kind == "int8" else 700)  # the largest are cut off
    args = QuantizationArgs(num_bits=8, type=type_, strategy="tensor", symmetric=True)
    layer = RoundedInputs(DenseLinear(torch.eye(128)), kind, torch.zeros(1))  # type: ignore[arg-type]
    put = layer.row_destinations(0, 128)["input_scale"].put
    for stored in (scale / 2, scale):  # fused modules share the largest
        put(stored)
    with pytest.raises(ValueError, match=r"is 0\.0: a scale of inputs is above 0"):
        put(torch.tensor(0.0))
    torch.testing.assert_close(layer(x), fake_quantize(x, scale, torch.zeros(1, dtype=torch.int8), args))


@pytest.mark.parametrize("name", ["eagle3", "eagle3_norm_before_residual"])
def test_heads_of_speculators_compute_what_the_library_computes(name: str, tmp_path: Path) -> None:
    check_head(f"speculators-{name}", tmp_path, DATA)


@torch.inference_mode()
def check_head(name: str, tmp_path: Path, source: Path) -> None:
    unpacked(name, tmp_path / "head", source)
    run = load_file(tmp_path / "head" / "run.safetensors")
    sizes = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 6,
    }
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path / "target")
    head = load_head(tmp_path / "head", load(tmp_path / "target"))
    assert head.config.captures == (1, 2, 3)

    def attend(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rotated = apply_rope(heads, cos, sin)
        q, k, v = (x.transpose(0, 1)[None] for x in (rotated[:, :2], rotated[:, 2:3], heads[:, 3:]))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)

    output = head.forward(run["ids"], head.features(run["captured"]), torch.arange(len(run["ids"])), attend)
    torch.testing.assert_close(output.feature_NE, run["estimate"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head.logits(output.read_NE), run["logits"], rtol=1e-4, atol=1e-4)


TOOLS = ("llmcompressor", "gptqmodel", "auto_round", "transformers", "modelopt", "speculators")
ENVIRONMENTS = Path(os.environ.get("RAMIFORM_TOOLS", Path.home() / ".cache" / "ramiform-tools"))


@pytest.mark.real
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tool", TOOLS)
@torch.inference_mode()
def test_what_tools_write_anew_is_read_as_they_read_it(tool: str, tmp_path: Path) -> None:
    """Writes every checkpoint of a tool again, in an environment of its own."""
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    made = subprocess.run([HERE / "environment.sh", ENVIRONMENTS, tool], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no environment of {tool}: {made.stderr.strip()[-300:]}")
    python, script = ENVIRONMENTS / tool / "bin" / "python", HERE / f"write_{tool}.py"
    quiet = {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "GPTQMODEL_CPU_WORKERS": "4"}
    subprocess.run([python, script, tmp_path / "written"], check=True, env=os.environ | quiet)
    names = [file.stem for file in (tmp_path / "written").glob("*.zip")]
    assert names
    for name in names:
        if name in REFUSED:
            continue
        if tool == "speculators":
            check_head(name, tmp_path / name, tmp_path / "written")
            continue
        judge = unpacked(name, tmp_path / name, tmp_path / "written")
        found = weights(load(tmp_path / name))
        for module, expected in judge.items():
            error = (checksums(found[module]) - expected).norm() / expected.norm()
            assert error < LOOSE.get(name, 0.01), (name, module)
