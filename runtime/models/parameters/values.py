"""Tensors of a decoder and of its layers, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..config import LayerPart
from ..families.row import NormPlacement
from ..latent.attention import LatentParameters
from ..linear import DenseLinear, Linear, Loadable, linear_parts
from ..mlp import Mlp
from ..norm import Norm
from ..parallel.layers import VocabParallelEmbedding
from ..quantised.block_linear import BlockLinear
from ..recurrent.layer import RecurrentLayer


class BlockNorms(NamedTuple):
    """Norms before and after the two parts of a block; None where the block has none."""

    attention_in: Norm | None
    attention_out: Norm | None
    mlp_in: Norm | None
    mlp_out: Norm | None


# Checkpoint modules of the norms, in the order of BlockNorms.
NORM_NAMES: dict[NormPlacement, tuple[str | None, ...]] = {
    "pre": ("input_layernorm", None, "post_attention_layernorm", None),
    "post": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "sandwich": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    "parallel": ("input_layernorm", None, None, None),  # one norm for both parts
    "one": ("norm", None, "norm", None),  # of the layer's only part
    "parallel, two norms": ("input_layernorm", None, "post_attention_layernorm", None),
}


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Tensors of one decoder layer. A part that the layer does not have is of size 0."""

    norms: BlockNorms
    qkv: Linear  # E -> (H + 2K) * D, and H * D gates behind them; of a recurrent layer its input projection
    qk_norm_HD: torch.Tensor | None  # [H + K, D]: weights of the norm of queries, then of keys
    o: Linear  # H * D -> E
    mlp: Mlp
    rotated_norms_2D: torch.Tensor | None = None  # weights of norms of rotated queries and keys
    sinks_H: torch.Tensor | None = None  # float32, logits of attention without values
    latent: LatentParameters | None = None  # of latent attention, whose `qkv` is its first products
    # None: the layer attends. A layer that does both has both projections in `qkv` and in `o`, attention's first.
    recurrent: RecurrentLayer | None = None
    part: LayerPart = "both"


@dataclass(frozen=True, slots=True)
class DecoderParameters:
    """Tensors of a decoder. A stage without the model's ends has an embedding, norm and head of no rows."""

    embedding_VE: torch.Tensor | BlockLinear  # this rank's rows of the vocabulary
    layers: tuple[LayerParameters, ...]
    norm: Norm
    head: DenseLinear | BlockLinear  # E -> V; the embedding itself when tied
    rows: VocabParallelEmbedding | None = None  # this rank's part of the vocabulary; None: all
    positions_PE: torch.Tensor | None = None  # the position embedding

    def linears(self) -> Iterator[Loadable]:
        """Iterate over the layers' linear layers, which may be quantised."""
        for layer in self.layers:
            yield from linear_parts(layer.qkv)
            yield from linear_parts(layer.o)
            if layer.recurrent is not None:
                yield from layer.recurrent.linears()
            if layer.latent is not None:
                yield from layer.latent.linears()
            yield from layer.mlp.linears()

    def packed_vocabulary(self) -> Iterator[BlockLinear]:
        """Iterate over those of embedding and head that are kept in the blocks of a GGUF file."""
        for part in (self.embedding_VE, self.head):
            if isinstance(part, BlockLinear):
                yield part

    def embed(self, ids_T: torch.Tensor) -> torch.Tensor:
        """Return rows of the embedding that this rank holds."""
        embedding = self.embedding_VE
        return embedding.rows(ids_T) if isinstance(embedding, BlockLinear) else embedding.index_select(0, ids_T)

    @property
    def num_embedded(self) -> int:
        """Rows of the embedding that this rank holds."""
        embedding = self.embedding_VE
        return embedding.outputs if isinstance(embedding, BlockLinear) else len(embedding)

    def dense_embedding(self) -> torch.Tensor:
        """Return the embedding as a tensor, decoded if it is packed."""
        embedding = self.embedding_VE
        return embedding.dense() if isinstance(embedding, BlockLinear) else embedding

    def dense_head(self) -> torch.Tensor:
        """Return the head's weight as a tensor, decoded if it is packed."""
        return self.head.dense() if isinstance(self.head, BlockLinear) else self.head.weight
