"""Allocation of a layer that attends."""

from __future__ import annotations

import torch

from ..latent.attention import LatentParameters
from ..linear import Linear
from ..parallel.layers import OutputSection
from .linears import EXPANSION, Allocator
from .mlp import allocate_mlp
from .values import BlockNorms, LayerParameters


def attending_layer(make: Allocator, index: int, norms: BlockNorms) -> LayerParameters:
    """Allocate layer `index`, but for its norms and for a recurrent part beside its attention."""
    config, shard = make.config, make.group.shard
    rotated_norms = config.qk_norm == "per head after rope"
    return LayerParameters(
        norms=norms,
        qkv=_projections(make, index),
        qk_norm_HD=_qk_norm(make, index),
        o=make.rows(index, "self_attn.o_proj", config.hidden_size, config.num_heads * config.output_dim, config.o_bias),
        mlp=allocate_mlp(make, index),
        rotated_norms_2D=make.tensor(2, config.head_dim) if rotated_norms else None,
        sinks_H=make.float32(shard.heads(config)) if config.sinks else None,
        latent=_latent(make, index),
        part=config.part(index),
    )


def _projections(make: Allocator, index: int) -> Linear:
    """Allocate the product of queries, keys and values; of latent attention its first products."""
    config, sizes = make.config, make.config.latent
    E, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    if sizes is None:
        is_stacked = config.stored.qkv != "separate"
        names = "self_attn.qkv_proj" if is_stacked else "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
        gates = (H,) if config.output_gate else ()
        heads = [OutputSection(count * D, min(count, make.num_slices)) for count in (H, K, K, *gates)]
        return make.columns(index, names, heads, E, config.qkv_bias)
    latents = "self_attn.kv_a_proj_with_mqa"
    if sizes.query_rank is not None:
        return make.linear(index, f"self_attn.q_a_proj {latents}", [sizes.query_rank, sizes.key_size], E, False)
    sections = [OutputSection(H * sizes.query_size, make.num_slices), OutputSection(sizes.key_size, 1)]
    return make.columns(index, f"self_attn.q_proj {latents}", sections, E, False)


def _qk_norm(make: Allocator, index: int) -> torch.Tensor | None:
    config, shard = make.config, make.group.shard
    if config.qk_norm is None:
        return None
    shape = shard.heads(config) + shard.kv_heads(config), config.head_dim
    if config.qk_norm in ("without weights", "per head after rope"):
        return None if config.uses_second_rope(index) else make.tensor(*shape).fill_(1)
    return make.tensor(*shape)


def _latent(make: Allocator, index: int) -> LatentParameters | None:
    """Allocate the further products of latent attention."""
    sizes, H = make.config.latent, make.config.num_heads
    if sizes is None:
        return None
    query = None
    if sizes.query_rank is not None:
        section = [OutputSection(H * sizes.query_size, make.num_slices)]
        query = make.columns(index, "self_attn.q_b_proj", section, sizes.query_rank, False)
    section = [OutputSection(H * sizes.expanded_size, make.num_slices)]
    expand = make.columns(index, EXPANSION, section, sizes.rank, False)
    return LatentParameters.unfilled(sizes, query, expand, device=make.device, dtype=make.dtype)
