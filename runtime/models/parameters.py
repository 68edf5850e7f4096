"""A decoder's tensors: how they are fused, and which checkpoint tensor fills which part of them.

Queries, keys and values are one product, gate and up another. The table that `destinations` gives is at once the list
of what a checkpoint must hold, the shapes it must have, and where each tensor is copied: nothing is ever held twice.

Legend: V vocabulary, E hidden size, I intermediate size, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from .config import ModelConfig


@dataclass(frozen=True, slots=True)
class Linear:
    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class LayerParameters:
    input_norm_E: torch.Tensor
    qkv: Linear  # E -> (H + 2K) * D
    qk_norm_HD: torch.Tensor | None  # [H + K, D]: the query norm H times, then the key norm K times
    o: Linear  # H * D -> E
    post_norm_E: torch.Tensor
    gate_up: Linear  # E -> 2I
    down: Linear  # I -> E


@dataclass(frozen=True, slots=True)
class DecoderParameters:
    embedding_VE: torch.Tensor
    layers: tuple[LayerParameters, ...]
    norm_E: torch.Tensor
    head: Linear  # E -> V; the embedding itself when tied


class Destination(NamedTuple):
    """Where a checkpoint tensor of `shape` goes; `part` has that shape, or broadcasts it."""

    part: torch.Tensor
    shape: tuple[int, ...]


def allocate(config: ModelConfig, *, device: torch.device | str, dtype: torch.dtype) -> DecoderParameters:
    """Uninitialised parameters. On the "meta" device they take no memory: good for counting."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    def linear(out: int, inner: int, bias: bool) -> Linear:
        return Linear(tensor(out, inner), tensor(out) if bias else None)

    E, inter, H, K, D = (
        config.hidden_size,
        config.intermediate_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
    )
    embedding = tensor(config.vocab_size, E)
    layers = tuple(
        LayerParameters(
            input_norm_E=tensor(E),
            qkv=linear((H + 2 * K) * D, E, config.qkv_bias),
            qk_norm_HD=tensor(H + K, D) if config.qk_norm else None,
            o=linear(E, H * D, config.o_bias),
            post_norm_E=tensor(E),
            gate_up=linear(2 * inter, E, config.mlp_bias),
            down=linear(E, inter, config.mlp_bias),
        )
        for _ in range(config.num_layers)
    )
    head = Linear(embedding if config.tied_embeddings else tensor(config.vocab_size, E))
    return DecoderParameters(embedding, layers, tensor(E), head)


def destinations(parameters: DecoderParameters, config: ModelConfig) -> dict[str, Destination]:
    """Every checkpoint tensor by its Hugging Face name."""
    parts: dict[str, Destination] = {}

    def whole(name: str, tensor: torch.Tensor) -> None:
        parts[name] = Destination(tensor, tuple(tensor.shape))

    def stacked(prefix: str, names_sizes: list[tuple[str, int]], linear: Linear) -> None:
        start = 0
        for name, size in names_sizes:
            whole(f"{prefix}.{name}.weight", linear.weight[start : start + size])
            if linear.bias is not None:
                whole(f"{prefix}.{name}.bias", linear.bias[start : start + size])
            start += size

    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    whole("model.embed_tokens.weight", parameters.embedding_VE)
    for index, layer in enumerate(parameters.layers):
        prefix = f"model.layers.{index}"
        whole(f"{prefix}.input_layernorm.weight", layer.input_norm_E)
        stacked(f"{prefix}.self_attn", [("q_proj", H * D), ("k_proj", K * D), ("v_proj", K * D)], layer.qkv)
        if layer.qk_norm_HD is not None:
            parts[f"{prefix}.self_attn.q_norm.weight"] = Destination(layer.qk_norm_HD[:H], (D,))
            parts[f"{prefix}.self_attn.k_norm.weight"] = Destination(layer.qk_norm_HD[H:], (D,))
        stacked(f"{prefix}.self_attn", [("o_proj", config.hidden_size)], layer.o)
        whole(f"{prefix}.post_attention_layernorm.weight", layer.post_norm_E)
        size = config.intermediate_size
        stacked(f"{prefix}.mlp", [("gate_proj", size), ("up_proj", size)], layer.gate_up)
        stacked(f"{prefix}.mlp", [("down_proj", config.hidden_size)], layer.down)
    whole("model.norm.weight", parameters.norm_E)
    if not config.tied_embeddings:
        whole("lm_head.weight", parameters.head.weight)
    return parts


def num_parameters(config: ModelConfig) -> int:
    """Numbers in the checkpoint; tied embeddings count once."""

    def sizes() -> Iterator[int]:
        for destination in destinations(allocate(config, device="meta", dtype=torch.float32), config).values():
            yield torch.Size(destination.shape).numel()

    return sum(sizes())
