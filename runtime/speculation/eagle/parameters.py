"""Tensors of a draft head, fused as they are computed, and their names in published checkpoints.

`checkpoint_layout` is the one table of tensors: loading fills them, saving reads them, training learns them.

Legend: V the head's vocabulary, E hidden size, C captured size, I intermediate size, H query heads, K key/value heads,
D head size.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from ...models.linear import DenseLinear, Linear
from ...models.packed_linear import pack_linear
from .config import HeadConfig


@dataclass(frozen=True, slots=True)
class HeadParameters:
    """Parameters of a head; None for parts that it lacks."""

    fc: Linear  # eagle: 2E -> E of (embedding, feature); eagle3: C -> E of captured states
    hidden_norm_E: torch.Tensor | None  # eagle3: of the feature
    input_norm_E: torch.Tensor | None  # eagle3: of the embedding
    qkv: Linear  # (eagle3: 2) E -> (H + 2K) * D
    o: Linear  # H * D -> E
    post_norm_E: torch.Tensor
    gate_up: Linear  # E -> 2I
    down: Linear  # I -> E
    norm_E: torch.Tensor | None  # eagle3: before the logits
    lm_head: Linear | None  # E -> V; None: the target's
    embedding: torch.Tensor | None  # [vocab_size, E]; None: the target's


def allocate_head(
    config: HeadConfig,
    *,
    biases: Collection[str] = (),
    own_lm_head: bool,
    own_embedding: bool,
    device: torch.device | str,
    dtype: torch.dtype,
) -> HeadParameters:
    """Allocate zeros. `biases` are those of "fc", "qkv", "o" and "mlp" that the head has."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device, dtype=dtype)

    def linear(out: int, inner: int, bias: bool = False) -> DenseLinear:
        return DenseLinear(tensor(out, inner), tensor(out) if bias else None)

    E, inter, D = config.hidden_size, config.intermediate_size, config.head_dim
    third = config.kind == "eagle3"
    return HeadParameters(
        fc=linear(E, config.captured_size if third else 2 * E, "fc" in biases),
        hidden_norm_E=tensor(E) if third else None,
        input_norm_E=tensor(E) if third else None,
        qkv=linear((config.num_heads + 2 * config.num_kv_heads) * D, 2 * E if third else E, "qkv" in biases),
        o=linear(E, config.num_heads * D, "o" in biases),
        post_norm_E=tensor(E),
        gate_up=linear(2 * inter, E, "mlp" in biases),
        down=linear(E, inter, "mlp" in biases),
        norm_E=tensor(E) if third else None,
        lm_head=linear(config.draft_vocab_size, E) if own_lm_head else None,
        embedding=tensor(config.vocab_size, E) if own_embedding else None,
    )


def packed_parameters(parameters: HeadParameters) -> HeadParameters:
    """Return the parameters with their weights packed as a decoder's are."""

    def pack_it(linear: Linear) -> Linear:
        return pack_linear(linear) if isinstance(linear, DenseLinear) else linear

    return replace(
        parameters,
        fc=pack_it(parameters.fc),
        qkv=pack_it(parameters.qkv),
        o=pack_it(parameters.o),
        gate_up=pack_it(parameters.gate_up),
        down=pack_it(parameters.down),
        lm_head=None if parameters.lm_head is None else pack_it(parameters.lm_head),
    )


def checkpoint_layout(parameters: HeadParameters, config: HeadConfig) -> dict[str, torch.Tensor]:
    """Return every checkpoint tensor by its published name, as a view of the parameter that holds it. Not for packed
    parameters."""
    parts: dict[str, torch.Tensor] = {}

    def stacked(names_sizes: list[tuple[str, int]], linear: Linear) -> None:
        assert isinstance(linear, DenseLinear), "packed already"
        start = 0
        for name, size in names_sizes:
            parts[f"{name}.weight"] = linear.weight[start : start + size]
            if linear.bias is not None:
                parts[f"{name}.bias"] = linear.bias[start : start + size]
            start += size

    def vector(name: str, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            parts[f"{name}.weight"] = tensor

    H, K, D, E, inter = (
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.hidden_size,
        config.intermediate_size,
    )
    layer = "midlayer" if config.kind == "eagle3" else "layers.0"
    vector("embed_tokens", parameters.embedding)
    stacked([("fc", E)], parameters.fc)
    vector(f"{layer}.hidden_norm", parameters.hidden_norm_E)
    vector(f"{layer}.input_layernorm", parameters.input_norm_E)
    attention = f"{layer}.self_attn"
    stacked(
        [(f"{attention}.q_proj", H * D), (f"{attention}.k_proj", K * D), (f"{attention}.v_proj", K * D)],
        parameters.qkv,
    )
    stacked([(f"{attention}.o_proj", E)], parameters.o)
    vector(f"{layer}.post_attention_layernorm", parameters.post_norm_E)
    stacked([(f"{layer}.mlp.gate_proj", inter), (f"{layer}.mlp.up_proj", inter)], parameters.gate_up)
    stacked([(f"{layer}.mlp.down_proj", E)], parameters.down)
    vector("norm", parameters.norm_E)
    if parameters.lm_head is not None:
        stacked([("lm_head", config.draft_vocab_size)], parameters.lm_head)
    return parts
