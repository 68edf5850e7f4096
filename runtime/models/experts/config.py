"""Configuration of mixtures of experts: the families' field names, and their values from config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ....kernels import GroupRouting
from ..config_fields import ConfigFields


class ExpertNames(NamedTuple):
    """Module names of a mixture in the checkpoint, below `model.layers.N`."""

    block: str
    gate: str
    up: str
    down: str
    router: str = "gate"
    shared: str = "mlp.shared_expert"  # below the layer
    bias: str = "gate.e_score_correction_bias"  # of the choice of experts


class StackedNames(NamedTuple):
    """Names and layout of tensors [N, outputs, inputs] that hold the matrices of all experts."""

    gate_up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    end: str = ""  # of the two names above, where a matrix's name ends so
    transposed: bool = True  # [N, inputs, outputs]
    either_way: bool = False  # transposed where published, and not as transformers 5 writes them
    alternating: bool = False  # gates and ups take turns; else all gates come first


class ExpertFamily(NamedTuple):
    """The fields of config.json that describe an architecture's experts."""

    names: ExpertNames
    size_field: str
    everywhere: bool  # no layer has a dense MLP, and weights are always normalised
    shared: bool  # a shared expert with a gate of its own
    # sigmoid of inputs: the chosen scores' sigmoids multiply an expert's inputs, not its outputs
    routing: Literal["softmax", "softmax in float32", "groups by softmax", "groups by sigmoid", "sigmoid of inputs"] = (
        "softmax"
    )
    choice_bias: bool = False  # a bias of the router's affinities that only the choice of experts sees
    stacked: StackedNames | None = None  # tensors of all experts
    shared_size_field: str | None = None  # of a shared expert without a gate
    biases: bool = False  # of the router and the experts
    swiglu: bool = False  # gates are clamped and ups have 1 added (`Ops.clamped_swiglu`)


MIXTRAL = ExpertFamily(ExpertNames("block_sparse_moe", "w1", "w3", "w2"), "intermediate_size", True, False)
_PROJECTIONS = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj")
QWEN3_MOE = ExpertFamily(_PROJECTIONS, "moe_intermediate_size", False, False)
# The experts' matrices are stacked in two tensors; the MLP beside them has no gate of its own.
GRANITE = MIXTRAL._replace(
    names=MIXTRAL.names._replace(router="router.layer", shared="mlp"),
    stacked=StackedNames("input_linear", "output_linear", ".weight", transposed=False),
    shared_size_field="shared_intermediate_size",
)
GPT_OSS = ExpertFamily(
    _PROJECTIONS._replace(router="router"),
    "intermediate_size",
    True,
    False,
    stacked=StackedNames(alternating=True),
    biases=True,
    swiglu=True,
)
QWEN2_MOE = ExpertFamily(_PROJECTIONS, "moe_intermediate_size", False, True)
DEEPSEEK_V2 = QWEN3_MOE._replace(names=_PROJECTIONS._replace(shared="mlp.shared_experts"), routing="groups by softmax")
DEEPSEEK_V3 = DEEPSEEK_V2._replace(routing="groups by sigmoid", choice_bias=True)
LFM2_MOE = DEEPSEEK_V3._replace(names=_PROJECTIONS._replace(bias="expert_bias"))
ERNIE = DEEPSEEK_V2._replace(
    names=DEEPSEEK_V2.names._replace(bias="moe_statics.e_score_correction_bias"),
    routing="softmax in float32",
    choice_bias=True,
)
HUNYUAN = ExpertFamily(
    _PROJECTIONS._replace(router="gate.wg", shared="mlp.shared_mlp"),
    "intermediate_size",
    True,
    False,
    routing="softmax in float32",
)
OLMOE = QWEN3_MOE._replace(size_field="intermediate_size")
LLAMA4 = ExpertFamily(
    _PROJECTIONS._replace(router="router"),
    "moe_intermediate_size",
    False,
    False,
    routing="sigmoid of inputs",
    stacked=StackedNames(),
    shared_size_field="moe_intermediate_size",
)
JAMBA_MOE = ExpertFamily(_PROJECTIONS._replace(router="router"), "intermediate_size", False, False)
# Experts without gates.
NEMOTRON_H_MOE = DEEPSEEK_V3._replace(names=DEEPSEEK_V3.names._replace(gate="", up="up_proj", down="down_proj"))


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Sizes and routing of a mixture of experts."""

    names: ExpertNames
    num_experts: int
    num_per_token: int
    intermediate_size: int  # of one expert
    normalised: bool  # a token's weights sum to 1: the softmax is taken over its own experts
    shared_size: int | None  # of the shared expert
    groups: GroupRouting | None = None  # experts are chosen in groups, one or more, by a router in float32
    choice_bias: bool = False  # of that choice
    layers: tuple[bool, ...]  # True for layers with a mixture; the others have a dense MLP
    scales_inputs: bool = False  # by the sigmoids of the chosen scores; then their outputs are not weighted
    stacked: StackedNames | None = None  # tensors of all experts; None: each expert has its own
    has_shared_gate: bool = False  # a gate of its own scales the shared expert
    biases: bool = False  # of the router and the experts
    swiglu: tuple[float, float] | None = None  # alpha and limit of `Ops.clamped_swiglu`; None: silu gates
    latent_size: int | None = None  # of the inputs and outputs of experts; None: the hidden size

    @property
    def num_matrices(self) -> int:
        """Matrices of an expert: with a gate or without."""
        return 3 if self.names.gate else 2


def parse_experts(fields: ConfigFields, family: ExpertFamily, num_layers: int) -> ExpertsConfig:
    """Read the fields of a mixture. Raises CheckpointError, naming the field."""
    if family.routing.startswith("groups") or family.routing == "softmax in float32":
        return _parse_groups(fields, family, num_layers)
    # Qwen writes `num_experts`, transformers 5 `num_local_experts`.
    spelling = "num_experts" if fields.raw.get("num_experts") is not None else "num_local_experts"
    num_experts = fields.count(spelling)
    num_per_token = fields.count("num_experts_per_tok")
    if num_per_token > num_experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most {spelling} {num_experts}")
    shared_field = family.shared_size_field or ("shared_expert_intermediate_size" if family.shared else None)
    return ExpertsConfig(
        names=family.names,
        num_experts=num_experts,
        num_per_token=num_per_token,
        intermediate_size=fields.count(family.size_field),
        normalised=family.everywhere or fields.boolean("norm_topk_prob", default=False),
        shared_size=None if shared_field is None else fields.count(shared_field),
        has_shared_gate=family.shared,
        stacked=family.stacked,
        biases=family.biases,
        swiglu=_swiglu(fields) if family.swiglu else None,
        scales_inputs=family.routing == "sigmoid of inputs",
        layers=_layers(fields, family, num_layers),
    )


def _swiglu(fields: ConfigFields) -> tuple[float, float]:
    return fields.number("swiglu_alpha", default=1.702), fields.number("swiglu_limit", default=7.0)


def _parse_groups(fields: ConfigFields, family: ExpertFamily, num_layers: int) -> ExpertsConfig:
    """Read the fields of a mixture whose experts are in groups (DeepSeek)."""
    sigmoid, in_groups = family.routing == "groups by sigmoid", family.routing != "softmax in float32"
    num_experts, num_per_token = fields.count("n_routed_experts"), fields.count("num_experts_per_tok")
    fields.one_of(
        "scoring_func", ("sigmoid",) if sigmoid else ("softmax",), default="sigmoid" if sigmoid else "softmax"
    )
    methods = ("noaux_tc",) if sigmoid else ("greedy", "group_limited_greedy")
    num_groups = fields.count("n_group", default=1) if in_groups else 1
    if fields.one_of("topk_method", methods, default=methods[0]) == "greedy":
        num_groups = 1
    kept = fields.count("topk_group", default=1, most=num_groups) if num_groups > 1 else 1
    if num_experts % num_groups or (sigmoid and num_experts // num_groups < 2):
        raise fields.invalid("n_group", f"must divide n_routed_experts {num_experts} into groups of two or more")
    if num_per_token > num_experts // num_groups * kept:
        raise fields.invalid("num_experts_per_tok", f"must be at most the experts of {kept} groups")
    normalised = fields.boolean("norm_topk_prob", default=sigmoid or not in_groups)
    if normalised and not sigmoid and in_groups:
        raise fields.unsupported("norm_topk_prob", "true for this architecture is")
    size, num_shared = fields.count(family.size_field), fields.count("n_shared_experts", default=0, least=0)
    # Hunyuan's files say false for 1.
    scaled = fields.raw.get("routed_scaling_factor") is not False
    scale = fields.number("routed_scaling_factor", default=1.0) if scaled else 1.0
    return ExpertsConfig(
        names=family.names,
        num_experts=num_experts,
        num_per_token=num_per_token,
        intermediate_size=size,
        normalised=normalised,
        shared_size=num_shared * size or None,
        groups=GroupRouting(num_per_token, num_groups, kept, sigmoid, normalised, scale),
        choice_bias=family.choice_bias,
        layers=(True,) * num_layers if family.everywhere else _routed_layers(fields, num_layers),
    )


def _layers(fields: ConfigFields, family: ExpertFamily, num_layers: int) -> tuple[bool, ...]:
    if family.everywhere:
        return (True,) * num_layers
    if family.routing != "sigmoid of inputs":
        return _sparse_layers(fields, num_layers)
    listed = fields.raw.get("moe_layers")
    if listed is None:
        step = fields.count("interleave_moe_layer_step", default=1)
        return tuple((layer + 1) % step == 0 for layer in range(num_layers))
    if not isinstance(listed, list) or not all(type(layer) is int and 0 <= layer < num_layers for layer in listed):
        raise fields.invalid("moe_layers", f"must list layers below {num_layers}")
    return tuple(layer in listed for layer in range(num_layers))


def _routed_layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    types = fields.raw.get("mlp_layer_types")
    if types is not None:
        kinds = ("dense", "sparse")
        if not isinstance(types, list) or len(types) != num_layers or not all(kind in kinds for kind in types):
            raise fields.invalid("mlp_layer_types", f"must name dense or sparse for each of {num_layers} layers")
        return tuple(kind == kinds[1] for kind in types)
    if fields.raw.get("moe_layer_interval") is not None:  # ERNIE
        step, last = fields.count("moe_layer_interval"), fields.raw.get("moe_layer_end_index")
        first = fields.count("moe_layer_start_index", default=0, least=0)
        end = num_layers if last in (None, -1) else fields.count("moe_layer_end_index", least=0) + 1
        return tuple(first <= layer < end and (layer + 1) % step == 0 for layer in range(num_layers))
    first = fields.count("first_k_dense_replace", default=0, least=0)
    step = fields.count("moe_layer_freq", default=1)
    return tuple(layer >= first and layer % step == 0 for layer in range(num_layers))


def _sparse_layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    if "expert_layer_period" in fields.raw:  # Jamba
        period = fields.count("expert_layer_period")
        offset = fields.count("expert_layer_offset", default=1, least=0, most=period - 1)
        return tuple(layer % period == offset for layer in range(num_layers))
    step = fields.count("decoder_sparse_step", default=1)
    dense = fields.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < num_layers for layer in dense):
        raise fields.invalid("mlp_only_layers", f"must list layers below {num_layers}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))
