"""Configuration of mixtures of experts: the families' field names, and their values from config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    stacked: bool = False  # tensors of all experts, and a shared expert without a gate


MIXTRAL = ExpertFamily(ExpertNames("block_sparse_moe", "w1", "w3", "w2"), "intermediate_size", True, False)
_PROJECTIONS = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj")
QWEN3_MOE = ExpertFamily(_PROJECTIONS, "moe_intermediate_size", False, False)
# The experts' matrices are stacked in two tensors; the MLP beside them has no gate of its own.
GRANITE = ExpertFamily(
    ExpertNames("block_sparse_moe", "w1", "w3", "w2"), "intermediate_size", True, False, stacked=True
)
QWEN2_MOE = ExpertFamily(_PROJECTIONS, "moe_intermediate_size", False, True)


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Sizes and routing of a mixture of experts."""

    names: ExpertNames
    num_experts: int
    num_per_token: int
    intermediate_size: int  # of one expert
    normalised: bool  # a token's weights sum to 1: the softmax is taken over its own experts
    shared_size: int | None  # of the shared expert
    layers: tuple[bool, ...]  # True for layers with a mixture; the others have a dense MLP
    stacked: bool = False  # tensors of all experts, and a shared expert without a gate


def parse_experts(fields: ConfigFields, family: ExpertFamily, num_layers: int) -> ExpertsConfig:
    """Read the fields of a mixture. Raises CheckpointError, naming the field."""
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


def _sparse_layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    step = fields.count("decoder_sparse_step", default=1)
    dense = fields.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < num_layers for layer in dense):
        raise fields.invalid("mlp_only_layers", f"must list layers below {num_layers}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))
