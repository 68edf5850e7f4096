"""Configuration of mixtures of experts: the families' field names, and their values from config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...kernels import GroupRouting
from .config_fields import ConfigFields


class ExpertNames(NamedTuple):
    """Module names of a mixture in the checkpoint, below `model.layers.N`."""

    block: str
    gate: str
    up: str
    down: str


class ExpertFamily(NamedTuple):
    """The fields of config.json that describe an architecture's experts."""

    names: ExpertNames
    size_field: str
    everywhere: bool  # no layer has a dense MLP, and weights are always normalised
    shared: bool  # a shared expert with a gate of its own
    routing: Literal["softmax", "groups by softmax", "groups by sigmoid"] = "softmax"
    stacked: bool = False  # tensors of all experts, and a shared expert without a gate


MIXTRAL = ExpertFamily(ExpertNames("block_sparse_moe", "w1", "w3", "w2"), "intermediate_size", True, False)
_PROJECTIONS = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj")
QWEN3_MOE = ExpertFamily(_PROJECTIONS, "moe_intermediate_size", False, False)
# The experts' matrices are stacked in two tensors; the MLP beside them has no gate of its own.
GRANITE = ExpertFamily(
    ExpertNames("block_sparse_moe", "w1", "w3", "w2"), "intermediate_size", True, False, stacked=True
)
QWEN2_MOE = ExpertFamily(_PROJECTIONS, "moe_intermediate_size", False, True)
DEEPSEEK_V2 = QWEN3_MOE._replace(routing="groups by softmax")
DEEPSEEK_V3 = QWEN3_MOE._replace(routing="groups by sigmoid")
NEMOTRON_H_MOE = DEEPSEEK_V3._replace(names=ExpertNames("mlp", "", "up_proj", "down_proj"))  # experts without gates


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Sizes and routing of a mixture of experts."""

    names: ExpertNames
    num_experts: int
    num_per_token: int
    intermediate_size: int  # of one expert
    normalised: bool  # a token's weights sum to 1: the softmax is taken over its own experts
    shared_size: int | None  # of the shared expert
    groups: GroupRouting | None = None  # experts are chosen in groups, and a shared expert has no gate
    layers: tuple[bool, ...]  # True for layers with a mixture; the others have a dense MLP
    stacked: bool = False  # tensors of all experts, and a shared expert without a gate

    latent_size: int | None = None  # of the inputs and outputs of experts; None: the hidden size

    @property
    def num_matrices(self) -> int:
        """Matrices of an expert: with a gate or without."""
        return 3 if self.names.gate else 2

    @property
    def has_shared_gate(self) -> bool:
        """True if a gate of its own scales the shared expert."""
        return self.shared_size is not None and self.groups is None and not self.stacked


def parse_experts(fields: ConfigFields, family: ExpertFamily, num_layers: int) -> ExpertsConfig:
    """Read the fields of a mixture. Raises CheckpointError, naming the field."""
    if family.routing != "softmax":
        return _parse_groups(fields, family, num_layers)
    # Qwen writes `num_experts`, transformers 5 `num_local_experts`.
    spelling = "num_experts" if fields.raw.get("num_experts") is not None else "num_local_experts"
    num_experts = fields.count(spelling)
    num_per_token = fields.count("num_experts_per_tok")
    if num_per_token > num_experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most {spelling} {num_experts}")
    shared_field = "shared_intermediate_size" if family.stacked else "shared_expert_intermediate_size"
    return ExpertsConfig(
        names=family.names,
        num_experts=num_experts,
        num_per_token=num_per_token,
        intermediate_size=fields.count(family.size_field),
        normalised=family.everywhere or fields.boolean("norm_topk_prob", default=False),
        shared_size=fields.count(shared_field) if family.shared or family.stacked else None,
        stacked=family.stacked,
        layers=(True,) * num_layers if family.everywhere else _sparse_layers(fields, num_layers),
    )


def _parse_groups(fields: ConfigFields, family: ExpertFamily, num_layers: int) -> ExpertsConfig:
    """Read the fields of a mixture whose experts are in groups (DeepSeek)."""
    sigmoid = family.routing == "groups by sigmoid"
    num_experts, num_per_token = fields.count("n_routed_experts"), fields.count("num_experts_per_tok")
    fields.one_of(
        "scoring_func", ("sigmoid",) if sigmoid else ("softmax",), default="sigmoid" if sigmoid else "softmax"
    )
    methods = ("noaux_tc",) if sigmoid else ("greedy", "group_limited_greedy")
    num_groups = fields.count("n_group", default=1)
    if fields.one_of("topk_method", methods, default=methods[0]) == "greedy":
        num_groups = 1
    kept = fields.count("topk_group", default=1, most=num_groups) if num_groups > 1 else 1
    if num_experts % num_groups or (sigmoid and num_experts // num_groups < 2):
        raise fields.invalid("n_group", f"must divide n_routed_experts {num_experts} into groups of two or more")
    if num_per_token > num_experts // num_groups * kept:
        raise fields.invalid("num_experts_per_tok", f"must be at most the experts of {kept} groups")
    normalised = fields.boolean("norm_topk_prob", default=sigmoid)
    if normalised and not sigmoid:
        raise fields.unsupported("norm_topk_prob", "true for this architecture is")
    size, num_shared = fields.count(family.size_field), fields.count("n_shared_experts", default=0, least=0)
    scale = fields.number("routed_scaling_factor", default=1.0)
    return ExpertsConfig(
        names=family.names,
        num_experts=num_experts,
        num_per_token=num_per_token,
        intermediate_size=size,
        normalised=normalised,
        shared_size=num_shared * size or None,
        groups=GroupRouting(num_per_token, num_groups, kept, sigmoid, normalised, scale),
        layers=_routed_layers(fields, num_layers),
    )


def _routed_layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    types = fields.raw.get("mlp_layer_types")
    if types is not None:
        kinds = ("dense", "sparse")
        if not isinstance(types, list) or len(types) != num_layers or not all(kind in kinds for kind in types):
            raise fields.invalid("mlp_layer_types", f"must name dense or sparse for each of {num_layers} layers")
        return tuple(kind == kinds[1] for kind in types)
    first = fields.count("first_k_dense_replace", default=0, least=0)
    step = fields.count("moe_layer_freq", default=1)
    return tuple(layer >= first and layer % step == 0 for layer in range(num_layers))


def _sparse_layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    step = fields.count("decoder_sparse_step", default=1)
    dense = fields.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < num_layers for layer in dense):
        raise fields.invalid("mlp_only_layers", f"must list layers below {num_layers}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))
