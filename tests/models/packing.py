"""Quantised checkpoints made from dense ones in numpy, number by number: the judge of reading formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from ramiform.tools.quantize.write import LINEAR_WEIGHT

GROUP = 32
Tensors = dict[str, torch.Tensor]
Floats = NDArray[np.float32]


def changed(dense: Path, out: Path, change: Callable[[str, torch.Tensor], Tensors], **config: Any) -> Path:
    """Copy `dense` with every linear layer's weight replaced by `change` of it."""
    out.mkdir()
    tensors: Tensors = {}
    for name, tensor in load_file(dense / "model.safetensors").items():
        match = LINEAR_WEIGHT.fullmatch(name)
        tensors |= {name: tensor} if match is None else change(match[1], tensor)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    raw = json.loads((dense / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(raw | config))
    return out


def naive_groups(weight: torch.Tensor, group: int = GROUP) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Make codes, scales and zero points; not optimal ones, since only storage is judged."""
    rng = np.random.default_rng(weight.shape[0])
    w = weight.numpy()
    G = w.shape[1] // group
    scale = (np.abs(w).reshape(len(w), G, group).max(2) / 7).astype(np.float16).astype(np.float32)
    zero = rng.integers(5, 11, scale.shape)
    codes = np.rint(w / scale.repeat(group, 1) + zero.repeat(group, 1)).clip(0, 15).astype(np.int64)
    return codes, scale, zero


def dequantised(codes: NDArray[np.int64], scale: Floats, zero: NDArray[np.int64], group: int = GROUP) -> torch.Tensor:
    return torch.tensor((codes - zero.repeat(group, 1)) * scale.repeat(group, 1), dtype=torch.float32)


def words(numbers: NDArray[np.int64], order: list[int]) -> torch.Tensor:
    """Pack [a, b] into int32 [a, b / 8]: bits 4 i of a word hold the number order[i] of its eight."""
    rows, columns = numbers.shape
    packed = np.zeros((rows, columns // 8), dtype=np.uint32)
    for row in range(rows):
        for word in range(columns // 8):
            for place, number in enumerate(order):
                packed[row, word] |= np.uint32(int(numbers[row, 8 * word + number]) << (4 * place))
    return torch.tensor(packed.view(np.int32))


IN_ORDER = list(range(8))
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def pack_awq(module: str, weight: torch.Tensor) -> Tensors:
    codes, scale, zero = naive_groups(weight)
    return {
        f"{module}.qweight": words(codes.T, AWQ),
        f"{module}.qzeros": words(zero.T, AWQ),
        f"{module}.scales": torch.tensor(scale.T, dtype=torch.float16),
    }


def pack_gptq(module: str, weight: torch.Tensor) -> Tensors:
    codes, scale, zero = naive_groups(weight)
    return {
        f"{module}.qweight": words(codes, IN_ORDER).T,
        f"{module}.qzeros": words(zero.T - 1, IN_ORDER),
        f"{module}.scales": torch.tensor(scale.T, dtype=torch.float16),
        f"{module}.g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }


def scattered(weight: torch.Tensor) -> NDArray[np.int64]:
    """Make the group of each input, as act-order has them: any inputs, as many of each group."""
    return np.random.default_rng(weight.shape[1]).permutation(np.arange(weight.shape[1]) // GROUP)


def act_order_numbers(weight: torch.Tensor) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Make codes, scales and zero points of scattered groups, by columns in their own order."""
    groups = scattered(weight)
    order = np.argsort(groups, kind="stable")
    ordered, scale, zero = naive_groups(weight[:, torch.from_numpy(order)])
    codes = np.empty_like(ordered)
    codes[:, order] = ordered
    return codes, scale, zero


def act_order_dequantised(weight: torch.Tensor) -> torch.Tensor:
    codes, scale, zero = act_order_numbers(weight)
    out = np.empty(codes.shape, np.float32)
    for column, group in enumerate(scattered(weight)):  # as gptqmodel's torch kernel: scales[g_idx], zeros[g_idx]
        out[:, column] = (codes[:, column] - zero[:, group]) * scale[:, group]
    return torch.tensor(out)


def pack_gptq_act_order(module: str, weight: torch.Tensor) -> Tensors:
    codes, scale, zero = act_order_numbers(weight)
    return {
        f"{module}.qweight": words(codes, IN_ORDER).T,
        f"{module}.qzeros": words(zero.T - 1, IN_ORDER),
        f"{module}.scales": torch.tensor(scale.T, dtype=torch.float16),
        f"{module}.g_idx": torch.tensor(scattered(weight), dtype=torch.int32),
    }


def pack_compressed(module: str, weight: torch.Tensor) -> Tensors:
    codes, scale, zero = naive_groups(weight)
    return {
        f"{module}.weight_packed": words(codes, IN_ORDER),
        f"{module}.weight_zero_point": words(zero.T, IN_ORDER).T,
        f"{module}.weight_scale": torch.tensor(scale, dtype=torch.float16),
        f"{module}.weight_shape": torch.tensor(weight.shape),
    }


def compressed(kind: str, inputs: bool = False, **weights: Any) -> dict[str, Any]:
    number = "float" if kind == "float-quantized" else "int"
    weights = {"num_bits": 8, "type": number, "symmetric": True, "strategy": "channel"} | weights
    tokens = {"num_bits": 8, "type": number, "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": tokens if inputs else None}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


INT4 = {"num_bits": 4, "strategy": "group", "group_size": GROUP, "symmetric": False}
STORED: dict[str, tuple[Callable[[str, torch.Tensor], Tensors], dict[str, Any]]] = {
    "awq": (pack_awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "gptq": (pack_gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}),
    "pack-quantized": (pack_compressed, compressed("pack-quantized", **INT4)),
}
