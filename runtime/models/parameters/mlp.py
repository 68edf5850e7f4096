"""Allocation of a layer's MLP: one dense, a mixture of experts, or none."""

from __future__ import annotations

from ..experts.config import ExpertsConfig
from ..experts.mixture import ExpertSlice, MixtureMlp, SharedExpert
from ..linear import DenseLinear, Linear
from ..mlp import DenseMlp, Mlp
from ..parallel.layers import ExpertParallelMixture, OutputSection, TensorParallelMixture, TensorParallelMlp
from ..recurrent.mixture import LATENT_NAMES, UngatedMixture
from .linears import Allocator


def allocate_mlp(make: Allocator, index: int) -> Mlp:
    """Allocate the MLP of layer `index`, of size 0 where it has none."""
    config = make.config
    experts = config.experts
    if config.part(index) == "mixer":
        return DenseMlp(make.no_linear(), make.no_linear(), 0, config.hidden_size)
    if experts is None or not experts.layers[index]:
        return _dense(make, index, "mlp", config.intermediate_size, config.mlp_bias)
    if not experts.names.gate:
        return _ungated_mixture(make, index, experts)
    return _mixture(make, index, experts)


def _dense(make: Allocator, index: int, block: str, size: int, bias: bool) -> DenseMlp:
    config, E = make.config, make.config.hidden_size
    *inner_names, down_name = config.mlp_names
    sections = [OutputSection(size, make.num_slices)] * len(inner_names)
    stored_names = ["gate_up_proj"] if config.stored.stacked_gate_up else inner_names
    gate_up = make.columns(index, " ".join(f"{block}.{name}" for name in stored_names), sections, E, bias)
    down = make.rows(index, f"{block}.{down_name}", E, size, bias)
    kind = TensorParallelMlp if make.is_cut else DenseMlp
    return kind(gate_up, down, size, E, block, config.mlp_names, config.activation)


def _mixture(make: Allocator, index: int, experts: ExpertsConfig) -> MixtureMlp:
    """Allocate a mixture of gated experts, with its router and its shared expert."""
    E, group = make.config.hidden_size, make.group
    slices = _expert_slices(make, index, experts)
    shared: Mlp | None = None
    if experts.shared_size is not None:
        shared = _dense(make, index, experts.names.shared, experts.shared_size, False)
        if experts.has_shared_gate:
            shared = SharedExpert(shared, DenseLinear(make.tensor(1, E)), experts.names.block)
    bias_N = None
    if experts.groups is not None:
        router = DenseLinear(make.float32(experts.num_experts, E))
        bias_N = make.float32(experts.num_experts) if experts.choice_bias else None
    else:
        bias = make.tensor(experts.num_experts) if experts.biases else None
        router = DenseLinear(make.tensor(experts.num_experts, E), bias)
    parts = experts, E, router, slices, shared, bias_N
    if group.shard.whole_experts:
        return ExpertParallelMixture(*parts, group=group)
    return TensorParallelMixture(*parts, group=group) if make.is_cut else MixtureMlp(*parts)


def _expert_slices(make: Allocator, index: int, experts: ExpertsConfig) -> tuple[ExpertSlice, ...]:
    """Allocate the experts: some of them whole, or slices of all of them."""
    E, shard, names, size = make.config.hidden_size, make.group.shard, experts.names, experts.intermediate_size
    each = [f"model.layers.{index}.{names.block}.experts.{number}" for number in range(experts.num_experts)]
    gates_ups = [(f"{expert}.{names.gate}", f"{expert}.{names.up}") for expert in each]
    downs = [(f"{expert}.{names.down}",) for expert in each]
    if shard.whole_experts:
        held = shard.experts(experts.num_experts)
        gates_ups, downs = gates_ups[held.start : held.stop], downs[held.start : held.stop]
        num_held = 1
    else:
        size //= make.num_slices
        make.check_slices(gates_ups[0][0], size)
        make.check_slices(downs[0][0], size, "inputs")
        num_held = len(shard.slices)
    return tuple(
        ExpertSlice(
            make.experts(gates_ups, outputs=2 * size, inputs=E, bias=experts.biases),
            make.experts(downs, outputs=E, inputs=size, bias=experts.biases),
        )
        for _ in range(num_held)
    )


def _ungated_mixture(make: Allocator, index: int, experts: ExpertsConfig) -> UngatedMixture:
    """Allocate a mixture of a hybrid, which is not divided among ranks."""
    E, bias = make.config.hidden_size, make.config.mlp_bias
    names, size, block = experts.names, experts.intermediate_size, experts.names.block
    each = [f"model.layers.{index}.{block}.experts.{number}" for number in range(experts.num_experts)]
    width = E if experts.latent_size is None else experts.latent_size
    up = make.experts([(f"{expert}.{names.up}",) for expert in each], outputs=size, inputs=width)
    down = make.experts([(f"{expert}.{names.down}",) for expert in each], outputs=width, inputs=size)
    shared = None
    if experts.shared_size is not None:
        shared = _dense(make, index, f"{block}.shared_experts", experts.shared_size, bias)
    latents: list[Linear | None] = [None, None]
    if experts.latent_size is not None:
        sizes = ((width, E), (E, width))
        latents = [
            make.linear(index, f"{block}.{name}", [outputs], inputs, bias)
            for name, (outputs, inputs) in zip(LATENT_NAMES, sizes, strict=True)
        ]
    return UngatedMixture(
        config=experts,
        hidden_size=E,
        router=DenseLinear(make.float32(experts.num_experts, E)),
        slices=(ExpertSlice(up, down),),
        shared=shared,
        bias_N=make.float32(experts.num_experts),
        to_latent=latents[0],
        from_latent=latents[1],
    )
