"""Models of every weight format compute before the compiled loops are loaded, and switch to them. Judge: the same
model loaded with the loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from ramiform import loops
from ramiform.runtime.engine import KvMemory, KvPool
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.packed_linear import PackedLinear
from ramiform.runtime.models.quantised.scheme import WeightKind
from ramiform.runtime.scheduler.plan import Row

from .gguf_files import write_gguf
from .packing import STORED, Tensors, changed
from .test_bitsandbytes import config_of, packed
from .test_gguf import model_of
from .test_mxfp4 import packed_llama
from .test_quantised import CONFIGS, SIZES, TOKENS

KERNELS = "ramiform.kernels"


@pytest.fixture(autouse=True)
def _used_again() -> Iterator[None]:
    yield
    loops.allow(KERNELS)


def logits(model: Decoder) -> torch.Tensor:
    pool = KvPool(KvMemory(model.config, 2, device=model.device, dtype=model.dtype))
    rows = [Row(rid="r", tokens=TOKENS, first_position=0, pages=[1])]
    with torch.inference_mode():
        inputs = decoder_inputs(rows, model, np.arange(len(TOKENS)), pool.layers[0])
        return model.logits(model.hidden(inputs, pool.layers))


def dense(kind: str, path: Path, **sizes: int) -> Path:
    torch.manual_seed(3)
    config = CONFIGS[kind]() if not sizes else transformers.LlamaConfig(**SIZES | sizes)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def of_blocks(path: Path) -> Path:
    """Make a file of two formats, with a tied embedding, whose value projections are dense."""
    kinds = {"attn_k": Type.F32, "attn_v": Type.F32, "ffn_down": Type.Q8_0}

    def kind(name: str) -> Type:
        return next((found for part, found in kinds.items() if part in name), Type.Q4_0)

    return write_gguf(model_of("qwen2"), path / "model.gguf", kind)


def of_fp8_blocks(path: Path) -> Path:
    def pack(module: str, w: torch.Tensor) -> Tensors:
        parts = w.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scale = parts.abs().amax((1, 3), keepdim=True) / 448
        codes = (parts / scale).to(torch.float8_e4m3fn).reshape(w.shape)
        return {f"{module}.weight": codes, f"{module}.weight_scale_inv": scale[:, 0, :, 0]}

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 128}
    return changed(dense("llama", path / "dense", **sizes), path / "packed", pack, quantization_config=config)


def of_codebooks(path: Path) -> Path:
    def pack(module: str, w: torch.Tensor) -> Tensors:
        return packed("nf4", True, module, w)

    return changed(dense("llama", path / "dense"), path / "packed", pack, quantization_config=config_of("nf4", True))


def of_four_bits(path: Path) -> Path:
    pack, config = STORED["awq"]
    return changed(dense("mixtral", path / "dense"), path / "packed", pack, quantization_config=config)


MODELS: dict[str, tuple[Callable[[Path], Path], WeightKind | None]] = {
    "blocks": (of_blocks, None),
    "experts in blocks": (lambda path: write_gguf(model_of("mixtral"), path / "m.gguf", lambda _: Type.Q5_1), None),
    "int8": (lambda path: dense("llama", path / "dense"), "int8"),
    "fp8": (lambda path: dense("qwen2, biases", path / "dense"), "fp8"),
    "awq, experts": (of_four_bits, None),
    "fp8 blocks": (of_fp8_blocks, None),
    "nf4": (of_codebooks, None),
    "mxfp4": (lambda path: packed_llama(path, lambda scales: scales)[0], None),
    "dense experts": (lambda path: dense("qwen2 moe", path / "dense"), None),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_computes_before_the_loops_and_afterwards_as_if_they_had_been_there(name: str, tmp_path: Path) -> None:
    make, quantize = MODELS[name]
    path = make(tmp_path)

    def load() -> Decoder:
        return load_model(path, device=torch.device("cpu"), dtype=torch.float32, quantize=quantize)

    expected = logits(load())
    loops.postpone(KERNELS)
    model = load()
    assert model.ops.name == "plain-cpu"
    before = logits(model)
    loops.allow(KERNELS)
    model.use_loops()
    assert model.ops.name == "cpu"
    assert torch.equal(logits(model), expected)
    # A rounded input may go to the next code.
    assert ((before - expected).norm() / expected.norm()).item() < 5e-3
    linears = [part for linear in model.parameters.linears() for part in getattr(linear, "linears", (linear,))]
    assert all(linear.matrix is not None for linear in linears if isinstance(linear, PackedLinear))
