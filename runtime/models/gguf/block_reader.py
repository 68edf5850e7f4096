"""GGUF's block formats: reading them as dense tensors, or as 4-bit codes where a linear layer keeps them on a GPU.

A row is a sequence of blocks, each with its own scale. `gguf.quants` dequantises all formats. Q4_0, Q4_1 and Q4_K,
whose weights are code * scale + offset in groups of 32, can stay in 4 bits: their layouts are those of ggml-common.h.

Legend: N rows, C columns, G groups of a row's C, B blocks of a row, S sub-blocks of a Q4_K block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from ....kernels.cpu.products.block_formats import BLOCK_FORMATS
from ..config import ModelConfig
from ..quantised.scheme import FOUR_BIT_BLOCKS
from .file import GgufFile
from .tensor_names import TensorNames

Bytes = NDArray[np.uint8]
FOUR_BIT_TYPES = tuple(Type[name] for name in sorted(FOUR_BIT_BLOCKS))
_PLAIN = (Type.F32, Type.F16, Type.BF16)
_OTHERS = (Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4, Type.Q2_K, Type.Q3_K, Type.Q5_K, Type.Q6_K)
_ALWAYS_DENSE = (Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S, Type.IQ4_NL,
                 Type.IQ4_XS, Type.TQ1_0, Type.TQ2_0, Type.NVFP4)  # fmt: skip
READABLE_TYPES = (*_PLAIN, *FOUR_BIT_TYPES, *_OTHERS, *_ALWAYS_DENSE)


class FourBitBlocks(NamedTuple):
    """4-bit weights: weight = (code - 8) * scale + base, with scale and base by group."""

    codes_NC: torch.Tensor  # uint8 in [0, 16)
    scales_NG: torch.Tensor
    bases_NG: torch.Tensor


def dequantise(data: NDArray[np.generic], kind: Type) -> torch.Tensor:
    """Return the dense tensor: float16 when it is stored so, else float32."""
    if kind == Type.F16:
        return torch.from_numpy(np.array(data))
    return torch.from_numpy(np.array(gguf.quants.dequantize(data, kind)))


def read_four_bit(data_NB: Bytes, kind: Type) -> FourBitBlocks:
    """Read rows of 4-bit blocks."""
    read = {Type.Q4_0: _q4_0, Type.Q4_1: _q4_1, Type.Q4_K: _q4_k}[kind]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    N = len(data_NB)
    codes, scales, offsets = read(data_NB.reshape(N, -1, block_bytes))
    assert codes.shape[-1] == block_size
    return FourBitBlocks(*(torch.from_numpy(part.reshape(N, -1)) for part in (codes, scales, offsets + 8 * scales)))


# Readers of formats: codes, scales and offsets, with weight = code * scale + offset.
def _q4_0(blocks: Bytes) -> tuple[NDArray[np.generic], ...]:
    scale = _as_float16(blocks[..., :2])
    return _unpack_nibbles(blocks[..., 2:]), scale, -8 * scale


def _q4_1(blocks: Bytes) -> tuple[NDArray[np.generic], ...]:
    return _unpack_nibbles(blocks[..., 4:]), _as_float16(blocks[..., :2]), _as_float16(blocks[..., 2:4])


def _q4_k(blocks: Bytes) -> tuple[NDArray[np.generic], ...]:
    """Read eight sub-blocks of 32 weights, which have a scale and a minimum of six bits each.

    Those of the first four are in the low bits of bytes 0-3 and 4-7. The last four have their low bits in bytes 8-11
    and their high two above those of the first four.
    """
    scale, minimum = _as_float16(blocks[..., :2]), _as_float16(blocks[..., 2:4])
    low, middle, high = np.split(blocks[..., 4:16], 3, axis=-1)
    scales_BS = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minimums_BS = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    pairs = _unpack_nibbles(blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 32))
    return pairs.reshape(*blocks.shape[:-1], 256), scale * scales_BS, -minimum * minimums_BS


def _unpack_nibbles(packed: Bytes) -> Bytes:
    """Return all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _as_float16(two_bytes: Bytes) -> NDArray[np.float32]:
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)


def block_modules(file: GgufFile, config: ModelConfig) -> dict[str, str]:
    """Return the block formats of the linear modules, embedding and head included, that have one."""
    modules = [module for fused in fused_modules(config) for module in fused]
    found, names = {}, TensorNames(config, file.tensors)
    head = () if config.head_bias else ("lm_head",)  # a packed head has no bias
    for module in ("model.embed_tokens", *head, *modules):
        tensor = file.tensors.get(names(f"{module}.weight"))
        if tensor is not None and tensor.tensor_type.name in BLOCK_FORMATS:
            found[module] = tensor.tensor_type.name
    return found


def four_bit_modules(formats: Mapping[str, str], config: ModelConfig) -> dict[str, str]:
    """Return those of `block_modules` that stay in 4 bits on any device: all modules of their product do."""
    fused = [modules for modules in fused_modules(config) if all(formats.get(m) in FOUR_BIT_BLOCKS for m in modules)]
    return {module: formats[module] for modules in fused for module in modules}


def fused_modules(config: ModelConfig) -> list[tuple[str, ...]]:
    """List the Hugging Face names of the layers' linear modules; those that are one product here together."""
    found: list[tuple[str, ...]] = []
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        found.append(tuple(f"{prefix}.self_attn.{name}_proj" for name in "qkv"))
        found.append((f"{prefix}.self_attn.o_proj",))
        experts = config.experts
        if experts is None or not experts.layers[layer]:
            blocks, names = [f"{prefix}.mlp"], ("gate_proj", "up_proj", "down_proj")
            found += [pair for block in blocks for pair in _mlp(block, *names)]
            continue
        for index in range(experts.num_experts):
            found += _mlp(f"{prefix}.{experts.names.block}.experts.{index}", *experts.names[1:4])
        if experts.shared_size is not None:
            found += _mlp(f"{prefix}.{experts.names.block}.shared_expert", "gate_proj", "up_proj", "down_proj")
    return found


def _mlp(block: str, gate: str, up: str, down: str) -> list[tuple[str, ...]]:
    return [(f"{block}.{gate}", f"{block}.{up}"), (f"{block}.{down}",)]
