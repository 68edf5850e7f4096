"""Destinations of the checkpoint's tensors, by name, and their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ..config import ModelConfig
from ..linear import DenseLinear, Destination, JoinedLinear, SummedLinear, stacked_destinations
from ..norm import norm_destination
from ..parallel.group import SINGLE_RANK, Group
from ..quantised.block_linear import BlockLinear
from ..stored.layout import as_stored
from .allocate import allocate_parameters
from .values import NORM_NAMES, DecoderParameters


def checkpoint_destinations(
    parameters: DecoderParameters, config: ModelConfig, group: Group = SINGLE_RANK
) -> dict[str, Destination]:
    """Return the destination of every checkpoint tensor by its Hugging Face name, in Llama's spelling.

    `config` is the whole model's. Raises ValueError, naming the tensor, when its format cannot be read in the family's
    layout.
    """
    parts: dict[str, Destination] = {}

    def whole(name: str, tensor: torch.Tensor) -> None:
        parts[name] = Destination(tuple(tensor.shape), tensor.copy_)

    def vocabulary(module: str, table: torch.Tensor | BlockLinear) -> None:
        if isinstance(table, BlockLinear):
            pieces = table.row_destinations(0, config.vocab_size)
            parts.update({f"{module}.{last}": piece for last, piece in pieces.items()})
        elif parameters.rows is None:
            whole(f"{module}.weight", table)
        else:
            parts[f"{module}.weight"] = parameters.rows.destination(table)

    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    H_local = group.shard.heads(config)
    for index, layer in zip(group.stage.layers(config), parameters.layers, strict=True):
        prefix = f"model.layers.{index}"
        for name, norm in zip(NORM_NAMES[config.norm_placement], layer.norms, strict=True):
            if norm is not None:
                parts |= norm.destinations(f"{prefix}.{name}")
        if layer.part == "mlp":
            parts |= layer.mlp.destinations(prefix)
            continue
        mlp_parts = layer.mlp.destinations(prefix) if layer.part == "both" else {}
        qkv, o = layer.qkv, layer.o
        if layer.recurrent is not None:
            block, (projection, output) = f"{prefix}.{layer.recurrent.config.family.block}", (qkv, o)
            if isinstance(qkv, JoinedLinear) and isinstance(o, SummedLinear):  # both parts
                (qkv, projection), (o, output) = qkv.parts, o.parts
            parts |= layer.recurrent.destinations(prefix, projection)
            parts |= stacked_destinations(block, [("out_proj", config.hidden_size)], output) | mlp_parts
            if config.is_recurrent(index):
                continue
        if layer.latent is not None:
            heads = layer.latent.first_modules(H)
            parts |= layer.latent.destinations(f"{prefix}.self_attn", H)
        else:
            heads = [("q_proj", H * D), ("k_proj", K * D), ("v_proj", K * D)]
            if config.output_gate:
                heads.append(("q_gate", H * D))
        parts |= stacked_destinations(f"{prefix}.self_attn", heads, qkv)
        if layer.rotated_norms_2D is not None:
            for name, weight_D in zip(("query_layernorm", "key_layernorm"), layer.rotated_norms_2D, strict=True):
                whole(f"{prefix}.self_attn.{name}.weight", weight_D)
        elif layer.qk_norm_HD is not None and config.qk_norm != "without weights":
            norms = ("q_norm", layer.qk_norm_HD[:H_local]), ("k_norm", layer.qk_norm_HD[H_local:])
            for name, weight_HD in norms:
                weight = weight_HD.view(-1) if config.qk_norm == "all heads" else weight_HD
                shape = (D,) if config.qk_norm == "per head" else None
                parts[f"{prefix}.self_attn.{name}.weight"] = norm_destination(
                    weight, shape, plus_one=config.norm == "rms_plus_one"
                )
        if layer.sinks_H is not None:
            own = slice(group.shard.rank * H_local, (group.shard.rank + 1) * H_local)
            parts[f"{prefix}.self_attn.sinks"] = Destination((H,), layer.sinks_H.copy_, part=(own,))
        parts |= stacked_destinations(f"{prefix}.self_attn", [("o_proj", config.hidden_size)], o) | mlp_parts
    parts = as_stored(parts, config, group.stage.layers(config))
    if not group.stage.has_ends:
        return parts
    vocabulary("model.embed_tokens", parameters.embedding_VE)
    parts |= parameters.norm.destinations("model.norm")
    if not config.tied_embeddings:
        head = parameters.head
        vocabulary("lm_head", head if isinstance(head, BlockLinear) else head.weight)
    if config.head_bias and isinstance(parameters.head, DenseLinear) and parameters.head.bias is not None:
        whole("lm_head.bias", parameters.head.bias)
    if parameters.positions_PE is not None:
        whole("model.embed_positions.weight", parameters.positions_PE)
    return parts


def num_parameters(config: ModelConfig) -> int:
    """Count the numbers in the checkpoint as if it were not quantised; tied embeddings count once."""
    if config.counted_parameters is not None:
        return config.counted_parameters
    config = replace(config, quantisation=None)

    def sizes() -> Iterator[int]:
        for destination in checkpoint_destinations(
            allocate_parameters(config, device="meta", dtype=torch.float32), config
        ).values():
            yield torch.Size(destination.shape).numel()

    return sum(sizes())
