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
from ..quantised.widening import widen
from ..stored.layout import as_stored
from .allocate import allocate_parameters
from .values import NORM_NAMES, DecoderParameters, LayerParameters


def checkpoint_destinations(
    parameters: DecoderParameters, config: ModelConfig, group: Group = SINGLE_RANK
) -> dict[str, Destination]:
    """Return the destination of every checkpoint tensor by its Hugging Face name, in Llama's spelling.

    `config` is the whole model's. Raises ValueError, naming the tensor, when its format cannot be read in the family's
    layout.
    """
    parts: dict[str, Destination] = {}
    for index, layer in zip(group.stage.layers(config), parameters.layers, strict=True):
        prefix = f"model.layers.{index}"
        for name, norm in zip(NORM_NAMES[config.norm_placement], layer.norms, strict=True):
            if norm is not None:
                parts |= norm.destinations(f"{prefix}.{name}")
        if layer.part != "mlp":
            parts |= _mixer_destinations(layer, config, index, group)
        if layer.part != "mixer":
            parts |= layer.mlp.destinations(prefix)
    parts = as_stored(parts, config, group.stage.layers(config))
    if group.stage.has_ends:
        parts |= _end_destinations(parameters, config)
    return parts if config.quantisation is None else widen(parts, config.quantisation)


def _mixer_destinations(
    layer: LayerParameters, config: ModelConfig, index: int, group: Group
) -> dict[str, Destination]:
    """Return the destinations of what attends, is recurrent, or both."""
    prefix = f"model.layers.{index}"
    qkv, o = layer.qkv, layer.o
    parts: dict[str, Destination] = {}
    if layer.recurrent is not None:
        block, (projection, output) = f"{prefix}.{layer.recurrent.config.family.block}", (qkv, o)
        if isinstance(qkv, JoinedLinear) and isinstance(o, SummedLinear):  # both parts
            (qkv, projection), (o, output) = qkv.parts, o.parts
        parts |= layer.recurrent.destinations(prefix, projection)
        parts |= stacked_destinations(block, [("out_proj", config.hidden_size)], output)
        if config.is_recurrent(index):
            return parts
    attention = f"{prefix}.self_attn"
    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    if layer.latent is not None:
        heads = layer.latent.first_modules(H)
        parts |= layer.latent.destinations(attention, H)
    else:
        heads = [("q_proj", H * D), ("k_proj", K * D), ("v_proj", K * D)]
        if config.output_gate:
            heads.append(("q_gate", H * D))
    parts |= stacked_destinations(attention, heads, qkv)
    parts |= _qk_norm_destinations(attention, layer, config, group)
    if layer.sinks_H is not None:
        H_local = group.shard.heads(config)
        own = slice(group.shard.rank * H_local, (group.shard.rank + 1) * H_local)
        parts[f"{attention}.sinks"] = Destination((H,), layer.sinks_H.copy_, part=(own,))
    return parts | stacked_destinations(attention, [("o_proj", config.hidden_size)], o)


def _qk_norm_destinations(
    attention: str, layer: LayerParameters, config: ModelConfig, group: Group
) -> dict[str, Destination]:
    """Return the destinations of the norms of queries and keys, in the module `attention`."""
    if layer.rotated_norms_2D is not None:
        names = ("query_layernorm", "key_layernorm")
        return {
            f"{attention}.{name}.weight": _whole(weight_D)
            for name, weight_D in zip(names, layer.rotated_norms_2D, strict=True)
        }
    if layer.qk_norm_HD is None or config.qk_norm == "without weights":
        return {}
    H_local = group.shard.heads(config)
    shape = (config.head_dim,) if config.qk_norm == "per head" else None
    return {
        f"{attention}.{name}.weight": norm_destination(
            weight_HD.view(-1) if config.qk_norm == "all heads" else weight_HD,
            shape,
            plus_one=config.norm == "rms_plus_one",
        )
        for name, weight_HD in (("q_norm", layer.qk_norm_HD[:H_local]), ("k_norm", layer.qk_norm_HD[H_local:]))
    }


def _end_destinations(parameters: DecoderParameters, config: ModelConfig) -> dict[str, Destination]:
    """Return the destinations of embeddings, final norm and head."""
    head = parameters.head
    parts = _vocabulary_destinations("model.embed_tokens", parameters.embedding_VE, parameters, config)
    parts |= parameters.norm.destinations("model.norm")
    if not config.tied_embeddings:
        parts |= _vocabulary_destinations(
            "lm_head", head if isinstance(head, BlockLinear) else head.weight, parameters, config
        )
    if config.head_bias and isinstance(head, DenseLinear) and head.bias is not None:
        parts["lm_head.bias"] = _whole(head.bias)
    if parameters.positions_PE is not None:
        parts["model.embed_positions.weight"] = _whole(parameters.positions_PE)
    return parts


def _vocabulary_destinations(
    module: str, table: torch.Tensor | BlockLinear, parameters: DecoderParameters, config: ModelConfig
) -> dict[str, Destination]:
    """Return the destinations of a table with a row for each token: this rank's rows of it."""
    if isinstance(table, BlockLinear):
        pieces = table.row_destinations(0, config.vocab_size)
        return {f"{module}.{last}": piece for last, piece in pieces.items()}
    own = _whole(table) if parameters.rows is None else parameters.rows.destination(table)
    return {f"{module}.weight": own}


def _whole(tensor: torch.Tensor) -> Destination:
    return Destination(tuple(tensor.shape), tensor.copy_)


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
