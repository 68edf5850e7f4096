"""A decoder's tensors: their allocation, and the destination of each checkpoint tensor.

Queries, keys and values are one product, gate and up another. `checkpoint_destinations` is at once the list of tensors
that a checkpoint must hold, their shapes, and where each is copied.

Legend: V vocabulary, E hidden size, I intermediate size, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from .config import LayerPart, ModelConfig
from .experts.config import ExpertsConfig
from .experts.mixture import ExpertSlice, MixtureMlp, SharedExpert, make_experts
from .families.row import NormPlacement
from .latent.attention import LatentParameters
from .linear import (
    DenseLinear,
    Destination,
    JoinedLinear,
    Linear,
    Loadable,
    SummedLinear,
    linear_parts,
    stacked_destinations,
)
from .mlp import DenseMlp, Mlp
from .norm import Norm, allocate_norm, norm_destination
from .parallel.group import SINGLE_RANK, Group
from .parallel.layers import (
    ColumnParallelLinear,
    ExpertParallelMixture,
    OutputSection,
    RowParallelLinear,
    TensorParallelMixture,
    TensorParallelMlp,
    VocabParallelEmbedding,
)
from .quantised.block_linear import BlockLinear
from .quantised.blockwise import FP8_BLOCK as BLOCK
from .quantised.factory import make_linear, make_vocabulary
from .quantised.mxfp4 import MXFP4_GROUP
from .recurrent.config import RecurrentConfig
from .recurrent.layer import RecurrentLayer, projection_modules
from .recurrent.mixture import LATENT_NAMES, UngatedMixture
from .recurrent.parallel import joined_projections, scaled_mlp
from .recurrent.selective import allocate_recurrent
from .stored.layout import as_stored

_EXPANSION = "self_attn.kv_b_proj"  # of latents


class BlockNorms(NamedTuple):
    """Norms before and after the two parts of a block; None where the block has none."""

    attention_in: Norm | None
    attention_out: Norm | None
    mlp_in: Norm | None
    mlp_out: Norm | None


# Checkpoint modules of the norms, in the order of BlockNorms.
_NORM_NAMES: dict[NormPlacement, tuple[str | None, ...]] = {
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
    num_slices = group.shard.num_slices
    cut = num_slices > 1
    experts_of = partial(make_experts, config.quantisation, device=device, dtype=dtype, grouped=groups_experts)
    if cut and config.quantisation is not None and not config.quantisation.is_divisible:
        kind = "act-order" if config.quantisation.scheme.act_order else config.quantisation.scheme.kind
        raise ValueError(f"{kind} has groups across all ranks: it runs with --tp 1 and without --deterministic")

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    def check_slices(module: str, size: int, kind: str = "outputs") -> None:
        """Refuse slices that straddle the blocks of a format."""
        scheme = None if config.quantisation is None or not cut else config.quantisation.scheme_of(module)
        block = 0 if scheme is None else BLOCK if scheme.source == "fp8" else 0
        if scheme is not None and scheme.kind == "mxfp4" and kind == "inputs":
            block = MXFP4_GROUP
        if block and size % block:
            raise ValueError(
                f"{module}: in {num_slices} slices (tp or deterministic) each has {size} {kind}, "
                f"which blocks of {block} do not divide"
            )

    def linear(index: int, names: str, sizes: list[int], inner: int, bias: bool) -> Linear:
        modules = [f"model.layers.{index}.{name}" for name in names.split()]
        quantisation = config.quantisation
        if names == _EXPANSION and quantisation is not None and quantisation.scheme.source == "dense":
            quantisation = None  # it is kept dense anyway
        return make_linear(quantisation, modules, sum(sizes), inner, bias, sizes=sizes, device=device, dtype=dtype)

    def columns(index: int, names: str, sections: list[OutputSection], inner: int, bias: bool) -> Linear:
        if not cut:
            return linear(index, names, [section.rows for section in sections], inner, bias)
        sizes = [section.size for section in sections]
        for number, section in enumerate(sections):
            if section.num_pieces > 1:
                name = names.split()[min(number, len(names.split()) - 1)]
                check_slices(f"model.layers.{index}.{name}", section.size)
        slices = [linear(index, names, sizes, inner, bias) for _ in group.shard.slices]
        return ColumnParallelLinear(group.shard, sections, slices)

    def rows(index: int, name: str, out: int, inner: int, bias: bool) -> Linear:
        if not cut:
            return linear(index, name, [out], inner, bias)
        check_slices(f"model.layers.{index}.{name}", inner // num_slices, "inputs")
        slices = [linear(index, name, [out], inner // num_slices, bias=False) for _ in group.shard.slices]
        return RowParallelLinear(group, inner, tensor(out) if bias else None, slices)

    def dense(index: int, block: str, size: int, bias: bool) -> DenseMlp:
        *inner_names, down_name = config.mlp_names
        sections = [OutputSection(size, num_slices)] * len(inner_names)
        stored_names = ["gate_up_proj"] if config.stored.stacked_gate_up else inner_names
        gate_up = columns(index, " ".join(f"{block}.{name}" for name in stored_names), sections, E, bias)
        down = rows(index, f"{block}.{down_name}", E, size, bias)
        kind = TensorParallelMlp if cut else DenseMlp
        return kind(gate_up, down, size, E, block, config.mlp_names, config.activation)

    def mixture(*parts: Any) -> MixtureMlp:
        if group.shard.whole_experts:
            return ExpertParallelMixture(*parts, group=group)
        return TensorParallelMixture(*parts, group=group) if cut else MixtureMlp(*parts)

    def ungated_mixture(index: int, experts: ExpertsConfig) -> UngatedMixture:
        """Make a mixture of a hybrid, which is not divided among ranks."""
        names, size, block = experts.names, experts.intermediate_size, experts.names.block
        each = [f"model.layers.{index}.{block}.experts.{number}" for number in range(experts.num_experts)]
        width = E if experts.latent_size is None else experts.latent_size
        up = experts_of([(f"{expert}.{names.up}",) for expert in each], outputs=size, inputs=width)
        down = experts_of([(f"{expert}.{names.down}",) for expert in each], outputs=width, inputs=size)
        shared, bias = None, config.mlp_bias
        if experts.shared_size is not None:
            shared = dense(index, f"{block}.shared_experts", experts.shared_size, bias)
        latents: list[Linear | None] = [None, None]
        if experts.latent_size is not None:
            sizes = ((width, E), (E, width))
            latents = [
                linear(index, f"{block}.{name}", [outputs], inputs, bias)
                for name, (outputs, inputs) in zip(LATENT_NAMES, sizes, strict=True)
            ]
        router = DenseLinear(torch.empty((experts.num_experts, E), device=device, dtype=torch.float32))
        bias_N = torch.empty(experts.num_experts, device=device)
        return UngatedMixture(
            config=experts,
            hidden_size=E,
            router=router,
            slices=(ExpertSlice(up, down),),
            shared=shared,
            bias_N=bias_N,
            to_latent=latents[0],
            from_latent=latents[1],
        )

    def mlp(index: int) -> Mlp:
        experts = config.experts
        if config.part(index) == "mixer":
            return DenseMlp(DenseLinear(tensor(0, E)), DenseLinear(tensor(0, E)), 0, E)
        if experts is not None and experts.layers[index] and not experts.names.gate:
            return ungated_mixture(index, experts)
        if experts is None or not experts.layers[index]:
            return dense(index, "mlp", config.intermediate_size, config.mlp_bias)
        names, size = experts.names, experts.intermediate_size
        each = [f"model.layers.{index}.{names.block}.experts.{n}" for n in range(experts.num_experts)]
        gates_ups = [(f"{expert}.{names.gate}", f"{expert}.{names.up}") for expert in each]
        downs = [(f"{expert}.{names.down}",) for expert in each]
        if group.shard.whole_experts:
            held = group.shard.experts(experts.num_experts)
            gates_ups, downs = gates_ups[held.start : held.stop], downs[held.start : held.stop]
        inner, slice_indices = (size, (0,)) if group.shard.whole_experts else (size // num_slices, group.shard.slices)
        if not group.shard.whole_experts:
            check_slices(gates_ups[0][0], inner)
            check_slices(downs[0][0], inner, "inputs")
        slices = tuple(
            ExpertSlice(
                experts_of(gates_ups, outputs=2 * inner, inputs=E, bias=experts.biases),
                experts_of(downs, outputs=E, inputs=inner, bias=experts.biases),
            )
            for _ in slice_indices
        )
        if experts.groups is not None:
            shared = dense(index, names.shared, experts.shared_size, False) if experts.shared_size else None
            router = DenseLinear(torch.empty((experts.num_experts, E), device=device, dtype=torch.float32))
            bias_N = torch.empty(experts.num_experts, device=device) if experts.choice_bias else None
            return mixture(experts, E, router, slices, shared, bias_N)
        router = DenseLinear(tensor(experts.num_experts, E), tensor(experts.num_experts) if experts.biases else None)
        shared: Mlp | None = None
        if experts.shared_size is not None and not experts.has_shared_gate:
            shared = dense(index, names.shared, experts.shared_size, False)
        elif experts.shared_size is not None:
            mlp = dense(index, names.shared, experts.shared_size, False)
            shared = SharedExpert(mlp, DenseLinear(tensor(1, E)), names.block)
        return mixture(experts, E, router, slices, shared)

    def norm(size: int) -> Norm:
        return allocate_norm(config.norm, size, config.norm_eps, device=device, dtype=dtype)

    def latent(index: int) -> LatentParameters | None:
        sizes = config.latent
        if sizes is None:
            return None
        query = None
        if sizes.query_rank is not None:
            section = [OutputSection(H * sizes.query_size, num_slices)]
            query = columns(index, "self_attn.q_b_proj", section, sizes.query_rank, False)
        expand = columns(index, _EXPANSION, [OutputSection(H * sizes.expanded_size, num_slices)], sizes.rank, False)
        return LatentParameters.unfilled(sizes, query, expand, device=device, dtype=dtype)

    def projections(index: int) -> Linear:
        sizes = config.latent
        if sizes is None:
            return columns(index, qkv_names, heads, E, config.qkv_bias)
        latents = "self_attn.kv_a_proj_with_mqa"
        if sizes.query_rank is not None:
            return linear(index, f"self_attn.q_a_proj {latents}", [sizes.query_rank, sizes.key_size], E, False)
        sections = [OutputSection(H * sizes.query_size, num_slices), OutputSection(sizes.key_size, 1)]
        return columns(index, f"self_attn.q_proj {latents}", sections, E, False)

    def input_projection(index: int, own: RecurrentConfig) -> Linear:
        """Make the input projection of a recurrent layer: one product, where its stored modules have one format."""
        modules, quantisation = projection_modules(own), config.quantisation
        schemes = [quantisation and quantisation.scheme_of(f"model.layers.{index}.{name}") for name, _ in modules]
        if len(set(schemes)) == 1 and not (schemes[0] is not None and schemes[0].source == "fp8"):
            return linear(index, " ".join(name for name, _ in modules), [own.projected], E, own.projection_bias)
        parts = [linear(index, name, [size], E, own.projection_bias) for name, size in modules]
        return JoinedLinear(tuple(parts), tuple(size for _, size in modules))

    E, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    gates = (H,) if config.output_gate else ()
    heads = [OutputSection(count * D, min(count, num_slices)) for count in (H, K, K, *gates)]
    local_heads = group.shard.heads(config) + group.shard.kv_heads(config)
    has_ends = group.stage.has_ends
    vocabulary = VocabParallelEmbedding(group, config.vocab_size) if cut and has_ends else None
    num_rows = config.vocab_size if vocabulary is None else vocabulary.num_rows
    num_rows = num_rows if has_ends else 0
    vocabulary_of = partial(make_vocabulary, config.quantisation, rows=num_rows, size=E, device=device, dtype=dtype)
    in_blocks = has_ends and vocabulary is None
    embedding = vocabulary_of("model.embed_tokens") if in_blocks else None
    qkv_names = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
    if config.stored.qkv != "separate":
        qkv_names = "self_attn.qkv_proj"

    def norms(part: LayerPart) -> BlockNorms:
        found = BlockNorms(*(None if name is None else norm(E) for name in _NORM_NAMES[config.norm_placement]))
        if part == "both":
            return found
        return found._replace(mlp_in=None) if part == "mixer" else found._replace(attention_in=None)

    def qk_norm(index: int) -> torch.Tensor | None:
        if config.qk_norm in ("without weights", "per head after rope"):
            return None if config.uses_second_rope(index) else tensor(local_heads, D).fill_(1)
        return tensor(local_heads, D) if config.qk_norm is not None else None

    def layer(index: int) -> LayerParameters:
        own, part = config.recurrent, config.part(index)
        if part == "mlp":
            return LayerParameters(
                norms(part), DenseLinear(tensor(0, E)), None, DenseLinear(tensor(0, E)), mlp(index), part=part
            )
        if config.is_recurrent(index):
            assert own is not None
            return LayerParameters(
                norms=norms(part),
                qkv=input_projection(index, own),
                qk_norm_HD=None,
                o=rows(index, f"{own.family.block}.out_proj", E, own.inner, own.output_bias),
                mlp=mlp(index),
                recurrent=allocate_recurrent(own, config.norm_eps, device=device, dtype=dtype),
                part=part,
            )
        attending = LayerParameters(
            norms=norms(part),
            qkv=projections(index),
            qk_norm_HD=qk_norm(index),
            o=rows(index, "self_attn.o_proj", E, H * config.output_dim, config.o_bias),
            mlp=mlp(index),
            rotated_norms_2D=tensor(2, D) if config.qk_norm == "per head after rope" else None,
            sinks_H=torch.empty(group.shard.heads(config), device=device) if config.sinks else None,
            latent=latent(index),
            part=part,
        )
        if own is None or not own.family.parallel:
            return attending
        output = rows(index, f"{own.family.block}.out_proj", E, own.inner, own.output_bias)
        qkv, o = joined_projections(
            config, (attending.qkv, attending.o), (input_projection(index, own), output), tensor(0)
        )
        state = allocate_recurrent(own, config.norm_eps, device=device, dtype=dtype)
        return replace(attending, qkv=qkv, o=o, mlp=scaled_mlp(config, attending.mlp, tensor(0)), recurrent=state)

    layers = tuple(map(layer, group.stage.layers(config)))
    embedding_VE = tensor(num_rows, E) if embedding is None else embedding
    head: DenseLinear | BlockLinear
    head_bias = tensor(num_rows) if config.head_bias else None
    if not config.tied_embeddings:
        head = (vocabulary_of("lm_head") if in_blocks else None) or DenseLinear(tensor(num_rows, E), head_bias)
    else:
        head = embedding_VE if isinstance(embedding_VE, BlockLinear) else DenseLinear(embedding_VE, head_bias)
    positions_PE = None
    if config.learned_positions is not None and has_ends:
        positions_PE = tensor(config.context_length + config.learned_positions, E)
    return DecoderParameters(embedding_VE, layers, norm(E if has_ends else 0), head, vocabulary, positions_PE)


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
        for name, norm in zip(_NORM_NAMES[config.norm_placement], layer.norms, strict=True):
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
