"""The shipped model in the formats of quantised checkpoints, each as its tools write it.

Four bits in AutoAWQ's and GPTQ's layouts hold what `ramiform quantize --method awq` and `gptq` find on a text of the
training's kind. GGUF files are mixed as llama.cpp mixes them; their k-quants are rounded more plainly than there
(`tests/models/k_quants.py`). The tokenizer's way of cutting text has no name in GGUF, so who uses those files here
sends tokens.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from ramiform.examples.demo_model.corpus.mix import cases
from ramiform.runtime.models.quantised import int4_packing as nibbles
from ramiform.tests.models.gguf_files import add_bpe_tokenizer, write_gguf
from ramiform.tools.quantize.write import Method, write_quantised

Tensors = dict[str, torch.Tensor]
CALIBRATION_SEED, CALIBRATION_DOCUMENTS = 5, 300
WEIGHTS, CONFIG = "model.safetensors", "config.json"
AWQ_PACKED = [nibbles.AWQ_ORDER.index(place) for place in range(8)]  # which number of eight is at that place
K_ROW = 256  # what a row's length must be a multiple of, to be stored as k-quants


def w8a8(model: Path, out: Path) -> Path:
    """Return the weights and, token by token, inputs in int8."""
    write_quantised(model, out, "int8")
    raw = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    [group] = raw["quantization_config"]["config_groups"].values()
    group["input_activations"] = {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True
    }  # fmt: skip
    (out / CONFIG).write_text(json.dumps(raw), encoding="utf-8")
    return out


def awq(model: Path, out: Path) -> Path:
    def stored(module: str, codes_NC: torch.Tensor, scales_NG: torch.Tensor, zeros_NG: torch.Tensor) -> Tensors:
        return {
            f"{module}.qweight": nibbles.pack(_shuffled(codes_NC.t()), 1),
            f"{module}.qzeros": nibbles.pack(_shuffled(zeros_NG.t()), 1),
            f"{module}.scales": scales_NG.t().half(),
        }

    return _repacked(model, out, "awq", stored, quant_method="awq", zero_point=True, version="gemm")


def gptq(model: Path, out: Path) -> Path:
    def stored(module: str, codes_NC: torch.Tensor, scales_NG: torch.Tensor, zeros_NG: torch.Tensor) -> Tensors:
        assert bool(zeros_NG.min() >= 1), "the format stores one less"
        size = codes_NC.shape[1] // scales_NG.shape[1]
        return {
            f"{module}.qweight": nibbles.pack(codes_NC.t(), 0),
            f"{module}.qzeros": nibbles.pack(zeros_NG.t() - 1, 1),
            f"{module}.scales": scales_NG.t().half(),
            f"{module}.g_idx": torch.arange(codes_NC.shape[1], dtype=torch.int32) // size,
        }

    return _repacked(model, out, "gptq", stored, quant_method="gptq", desc_act=False, sym=False)


def _shuffled(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.reshape(len(numbers), -1, 8)[:, :, AWQ_PACKED].flatten(1)


def _repacked(model: Path, out: Path, method: Method, stored: Callable[..., Tensors], **config: Any) -> Path:
    """Convert the checkpoint that `ramiform quantize` writes to another layout."""
    ours = out.with_name(f"{out.name} ours")
    write_quantised(model, ours, method, text=_calibration())
    tensors = load_file(ours / WEIGHTS)
    modules = [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]
    for module in modules:
        parts = [tensors.pop(f"{module}.weight_{part}") for part in ("packed", "scale", "zero_point", "shape")]
        codes_NC, zeros_NG = nibbles.unpack(parts[0], 1), nibbles.unpack(parts[2], 0)
        tensors |= stored(module, codes_NC, parts[1], zeros_NG)
    shutil.copytree(ours, out)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / WEIGHTS)
    raw = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    [group] = raw["quantization_config"]["config_groups"].values()
    raw["quantization_config"] = {"bits": 4, "group_size": group["weights"]["group_size"], **config}
    (out / CONFIG).write_text(json.dumps(raw), encoding="utf-8")
    return out


@cache
def _calibration() -> str:
    documents = itertools.islice(cases(CALIBRATION_SEED, held_out=False, wide=True), CALIBRATION_DOCUMENTS)
    return "\n".join(case.document for case in documents)


def q8_0(model: Path, out: Path) -> Path:
    return _gguf(model, out, lambda _: Type.Q8_0)


def q4_0(model: Path, out: Path) -> Path:
    return _gguf(model, out, lambda name: Type.Q8_0 if name == "token_embd.weight" else Type.Q4_0)


def q4_k_m(model: Path, out: Path) -> Path:
    """Return six bits for the head's matrix, and for the values and `down` of the layers that need them most; where 256
    does not divide a row, five and eight."""
    config = json.loads((model / CONFIG).read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"]
    divides = config["intermediate_size"] % K_ROW == 0

    def kind(name: str) -> Type:
        if name == "token_embd.weight":
            return Type.Q6_K
        _, layer, module, _ = name.split(".")
        more = module in ("attn_v", "ffn_down") and _needs_more_bits(int(layer), layers)
        if module == "ffn_down" and not divides:
            return Type.Q8_0 if more else Type.Q5_0
        return Type.Q6_K if more else Type.Q4_K

    return _gguf(model, out, kind)


def _needs_more_bits(layer: int, layers: int) -> bool:
    """Return the first eighth, the last, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _gguf(model: Path, out: Path, kinds: Callable[[str], Type]) -> Path:
    dense = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    add_tokenizer = partial(add_bpe_tokenizer, tokenizer_json=model / "tokenizer.json")
    return write_gguf(dense, out.with_suffix(".gguf"), kinds, add_tokenizer)


FORMATS: dict[str, Callable[[Path, Path], Path]] = {
    "W8A8": w8a8,
    "AWQ": awq,
    "GPTQ": gptq,
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_K_M": q4_k_m,
}
