"""A decoder's tensors: how they are fused, and which checkpoint tensor fills which part of them.

Queries, keys and values are one product, gate and up another. The table that `destinations` gives is at once the list
of what a checkpoint must hold, the shapes it must have, and where each tensor is copied: nothing is ever held twice.

Legend: V vocabulary, E hidden size, I intermediate size, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from .config import ModelConfig
from .linear import DenseLinear, Destination, Linear
from .quantised.factory import make_linear


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
    head: DenseLinear  # E -> V; the embedding itself when tied

    def linears(self) -> Iterator[Linear]:
        """Those of the layers; the head is not among them, and never quantised."""
        for layer in self.layers:
            yield from (layer.qkv, layer.o, layer.gate_up, layer.down)


def allocate(config: ModelConfig, *, device: torch.device | str, dtype: torch.dtype) -> DecoderParameters:
    """Uninitialised parameters. On the "meta" device they take no memory: good for counting.

    Raises ValueError when `config.quantisation` does not fit a layer, and names the layer.
    """

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    def linear(index: int, names: str, out: int, inner: int, bias: bool) -> Linear:
        modules = [f"model.layers.{index}.{name}" for name in names.split()]
        return make_linear(config.quantisation, modules, out, inner, bias, device=device, dtype=dtype)

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
            qkv=linear(
                index, "self_attn.q_proj self_attn.k_proj self_attn.v_proj", (H + 2 * K) * D, E, config.qkv_bias
            ),
            qk_norm_HD=tensor(H + K, D) if config.qk_norm else None,
            o=linear(index, "self_attn.o_proj", E, H * D, config.o_bias),
            post_norm_E=tensor(E),
            gate_up=linear(index, "mlp.gate_proj mlp.up_proj", 2 * inter, E, config.mlp_bias),
            down=linear(index, "mlp.down_proj", E, inter, config.mlp_bias),
        )
        for index in range(config.num_layers)
    )
    head = DenseLinear(embedding if config.tied_embeddings else tensor(config.vocab_size, E))
    return DecoderParameters(embedding, layers, tensor(E), head)


def destinations(parameters: DecoderParameters, config: ModelConfig) -> dict[str, Destination]:
    """Every checkpoint tensor by its Hugging Face name; those of quantised layers by their format's."""
    parts: dict[str, Destination] = {}

    def whole(name: str, tensor: torch.Tensor) -> None:
        parts[name] = Destination(tuple(tensor.shape), tensor.copy_)

    def stacked(prefix: str, names_sizes: list[tuple[str, int]], linear: Linear) -> None:
        start = 0
        for name, size in names_sizes:
            for last, destination in linear.pieces(start, size).items():
                parts[f"{prefix}.{name}.{last}"] = destination
            start += size

    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    whole("model.embed_tokens.weight", parameters.embedding_VE)
    for index, layer in enumerate(parameters.layers):
        prefix = f"model.layers.{index}"
        whole(f"{prefix}.input_layernorm.weight", layer.input_norm_E)
        stacked(f"{prefix}.self_attn", [("q_proj", H * D), ("k_proj", K * D), ("v_proj", K * D)], layer.qkv)
        if layer.qk_norm_HD is not None:
            parts[f"{prefix}.self_attn.q_norm.weight"] = Destination((D,), layer.qk_norm_HD[:H].copy_)
            parts[f"{prefix}.self_attn.k_norm.weight"] = Destination((D,), layer.qk_norm_HD[H:].copy_)
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
    """Numbers in the checkpoint, were it not quantised; tied embeddings count once."""
    config = replace(config, quantisation=None)

    def sizes() -> Iterator[int]:
        for destination in destinations(allocate(config, device="meta", dtype=torch.float32), config).values():
            yield torch.Size(destination.shape).numel()

    return sum(sizes())
