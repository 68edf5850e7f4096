"""Allocation of a decoder: its layers, and the ends of the model, that is, embedding, last norm and head."""

from __future__ import annotations

import torch

from ..config import LayerPart, ModelConfig
from ..linear import DenseLinear
from ..parallel.group import SINGLE_RANK, Group
from ..parallel.layers import VocabParallelEmbedding
from ..quantised.block_linear import BlockLinear
from ..quantised.factory import make_vocabulary
from .attention import attending_layer
from .linears import Allocator
from .mlp import allocate_mlp
from .recurrence import recurrent_layer, with_recurrence
from .values import NORM_NAMES, BlockNorms, DecoderParameters, LayerParameters


def allocate_parameters(
    config: ModelConfig,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    group: Group = SINGLE_RANK,
    groups_experts: bool = True,
) -> DecoderParameters:
    """Allocate the uninitialised parameters that the rank of `group` holds of the model `config`.

    `groups_experts` stacks experts for grouped products. On the "meta" device nothing is allocated: good for counting.
    Raises ValueError, naming the layer, when `config.quantisation` does not fit it.
    """
    make = Allocator(config, group, device, dtype, groups_experts)
    if make.is_cut and config.quantisation is not None and not config.quantisation.is_divisible:
        kind = "act-order" if config.quantisation.scheme.act_order else config.quantisation.scheme.kind
        raise ValueError(f"{kind} has groups across all ranks: it runs with --tp 1 and without --deterministic")
    layers = tuple(_layer(make, index) for index in group.stage.layers(config))
    embedding_VE, head, rows = _vocabulary(make)
    has_ends, positions_PE = group.stage.has_ends, None
    if config.learned_positions is not None and has_ends:
        positions_PE = make.tensor(config.context_length + config.learned_positions, config.hidden_size)
    norm = make.norm(config.hidden_size if has_ends else 0)
    return DecoderParameters(embedding_VE, layers, norm, head, rows, positions_PE)


def _layer(make: Allocator, index: int) -> LayerParameters:
    config, own, part = make.config, make.config.recurrent, make.config.part(index)
    norms = _norms(make, part)
    if part == "mlp":
        return LayerParameters(norms, make.no_linear(), None, make.no_linear(), allocate_mlp(make, index), part=part)
    if config.is_recurrent(index):
        return recurrent_layer(make, index, norms)
    attending = attending_layer(make, index, norms)
    if own is None or not own.family.parallel:
        return attending
    return with_recurrence(make, index, attending)


def _norms(make: Allocator, part: LayerPart) -> BlockNorms:
    names = NORM_NAMES[make.config.norm_placement]
    found = BlockNorms(*(None if name is None else make.norm(make.config.hidden_size) for name in names))
    if part == "both":
        return found
    return found._replace(mlp_in=None) if part == "mixer" else found._replace(attention_in=None)


def _vocabulary(
    make: Allocator,
) -> tuple[torch.Tensor | BlockLinear, DenseLinear | BlockLinear, VocabParallelEmbedding | None]:
    """Allocate embedding and head, and return them with this rank's part of the vocabulary, None for all of it.

    They have no rows on a stage without the model's ends.
    """
    config, has_ends, E = make.config, make.group.stage.has_ends, make.config.hidden_size
    rows = VocabParallelEmbedding(make.group, config.vocab_size) if make.is_cut and has_ends else None
    num_rows = 0 if not has_ends else config.vocab_size if rows is None else rows.num_rows

    def packed(module: str) -> BlockLinear | None:
        if rows is not None or not has_ends:
            return None
        return make_vocabulary(config.quantisation, module, num_rows, E, device=make.device, dtype=make.dtype)

    embedding = packed("model.embed_tokens")
    embedding_VE = make.tensor(num_rows, E) if embedding is None else embedding
    bias = make.tensor(num_rows) if config.head_bias else None
    head: DenseLinear | BlockLinear
    if not config.tied_embeddings:
        head = packed("lm_head") or DenseLinear(make.tensor(num_rows, E), bias)
    else:
        head = embedding_VE if isinstance(embedding_VE, BlockLinear) else DenseLinear(embedding_VE, bias)
    return embedding_VE, head, rows
