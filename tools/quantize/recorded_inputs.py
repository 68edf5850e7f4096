"""Recording the inputs of a decoder layer's products, for calibration.

Legend: T tokens, N rows (outputs), C columns (inputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ...runtime.models.config import ModelConfig
from ...runtime.models.experts.mixture import ExpertLinear, ExpertSlice, MixtureMlp, SeparateExperts, SharedExpert
from ...runtime.models.linear import DenseLinear, Destination, Linear
from ...runtime.models.mlp import DenseMlp, Mlp
from ...runtime.models.packed_linear import PackedLinear
from ...runtime.models.parameters import LayerParameters


@dataclass
class RecordedInputs:
    """A dense layer that accumulates statistics of its inputs."""

    linear: DenseLinear
    hessian_CC: torch.Tensor  # the sum of outer products with themselves
    absolute_C: torch.Tensor  # the sum of absolute values
    largest_C: torch.Tensor  # the largest absolute values
    count: int = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        self.hessian_CC.addmm_(wide.t(), wide)
        self.absolute_C += wide.abs().sum(0)
        if len(x):
            self.largest_C = torch.maximum(self.largest_C, wide.abs().amax(0))
        self.count += len(x)
        return self.linear(x)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        return self.linear.row_destinations(start, size)

    def finish(self) -> None:
        self.linear.finish()

    @property
    def nbytes(self) -> int:
        return self.linear.nbytes


class RecordedProduct(NamedTuple):
    """One product of a layer: its checkpoint modules with their rows, in order, and its recorded inputs."""

    modules: tuple[tuple[str, int], ...]  # names and numbers of rows
    inputs: RecordedInputs


class ScaleTransfer(NamedTuple):
    """Factors that AWQ and SmoothQuant may move: columns of `products` and of `dense` are multiplied, and rows of
    `before` divided, which give those inputs."""

    products: list[RecordedInputs]
    before: list[torch.Tensor]
    dense: list[torch.Tensor]


def record_inputs(layer: LayerParameters) -> LayerParameters:
    """Return the layer with recording products, which may be changed.

    On a CPU the layer then takes twice its memory, so record one layer at a time.
    """
    return replace(layer, qkv=_recording(layer.qkv), o=_recording(layer.o), mlp=_recording_mlp(layer.mlp))


def stop_recording(layer: LayerParameters) -> LayerParameters:
    """Return the layer without recording."""

    def mlp(whole: Mlp) -> Mlp:
        if isinstance(whole, SharedExpert):
            return replace(whole, mlp=mlp(whole.mlp))
        if isinstance(whole, DenseMlp):
            return replace(whole, gate_up=_linear(whole.gate_up), down=_linear(whole.down))
        assert isinstance(whole, MixtureMlp)
        slices = tuple(experts.each(_linear) for experts in whole.slices)
        return replace(whole, slices=slices, shared=None if whole.shared is None else mlp(whole.shared))

    return replace(layer, qkv=_linear(layer.qkv), o=_linear(layer.o), mlp=mlp(layer.mlp))


def recorded_products(index: int, layer: LayerParameters, config: ModelConfig) -> Iterator[RecordedProduct]:
    """Iterate over the products of the recorded layer `index`."""
    prefix, D = f"model.layers.{index}", config.head_dim

    def product(linear: Linear, *modules: tuple[str, int]) -> RecordedProduct:
        return RecordedProduct(tuple((f"{prefix}.{name}", rows) for name, rows in modules), _recorded(linear))

    sizes = (config.num_heads * D, config.num_kv_heads * D, config.num_kv_heads * D)
    heads = zip(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), sizes, strict=True)
    yield product(layer.qkv, *heads)
    yield product(layer.o, ("self_attn.o_proj", config.hidden_size))
    for mlp in _dense_mlps(layer.mlp):
        size = mlp.intermediate_size
        *inner, down_name = mlp.names
        yield product(mlp.gate_up, *((f"{mlp.block}.{name}", size) for name in inner))
        yield product(mlp.down, (f"{mlp.block}.{down_name}", config.hidden_size))
    if isinstance(layer.mlp, MixtureMlp):
        names, size = layer.mlp.config.names, layer.mlp.config.intermediate_size
        for number in range(layer.mlp.config.num_experts):
            gate_up, down = layer.mlp.expert(number)
            expert = f"{names.block}.experts.{number}"
            yield product(gate_up, (f"{expert}.{names.gate}", size), (f"{expert}.{names.up}", size))
            yield product(down, (f"{expert}.{names.down}", config.hidden_size))


def scale_transfers(layer: LayerParameters) -> Iterator[ScaleTransfer]:
    """Iterate over the scale transfers of a recorded layer.

    Output projections have none: several query heads share the value head whose rows would take the factors.
    """
    pairs = [(mlp.gate_up, mlp.down) for mlp in _dense_mlps(layer.mlp)]
    dense: list[torch.Tensor] = []
    if isinstance(layer.mlp, MixtureMlp):
        pairs += [layer.mlp.expert(number) for number in range(layer.mlp.config.num_experts)]
        dense = [linear.weight for linear in _gates(layer.mlp).values()]
    for gate_up, down in pairs:
        both = _recorded(gate_up).linear
        size = both.weight.shape[0] // 2
        up = [both.weight[size:]] if both.bias is None else [both.weight[size:], both.bias[size:]]
        yield ScaleTransfer([_recorded(down)], up, [])
    attention_norm_E, mlp_norm_E = _input_norms(layer)
    yield ScaleTransfer([_recorded(layer.qkv)], [attention_norm_E], [])
    yield ScaleTransfer([_recorded(gate_up) for gate_up, _ in pairs], [mlp_norm_E], dense)


def transferred_tensors(index: int, layer: LayerParameters) -> dict[str, torch.Tensor]:
    """Return the dense tensors that took factors, by checkpoint name."""
    prefix = f"model.layers.{index}"
    attention_norm_E, mlp_norm_E = _input_norms(layer)
    found = {
        f"{prefix}.input_layernorm.weight": attention_norm_E,
        f"{prefix}.post_attention_layernorm.weight": mlp_norm_E,
    }
    for mlp in _dense_mlps(layer.mlp):
        if (bias := _recorded(mlp.gate_up).linear.bias) is not None:
            found[f"{prefix}.{mlp.block}.up_proj.bias"] = bias[len(bias) // 2 :]
    if isinstance(layer.mlp, MixtureMlp):
        block = layer.mlp.config.names.block
        found |= {f"{prefix}.{block}.{name}.weight": linear.weight for name, linear in _gates(layer.mlp).items()}
    return found


def _input_norms(layer: LayerParameters) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of the two norms of a pre-norm block."""
    attention, mlp = layer.norms.attention_in, layer.norms.mlp_in
    assert attention is not None
    assert mlp is not None
    return attention.weight_E, mlp.weight_E


def _recording_mlp(mlp: Mlp) -> Mlp:
    if isinstance(mlp, DenseMlp):
        return replace(mlp, gate_up=_recording(mlp.gate_up), down=_recording(mlp.down))
    if isinstance(mlp, SharedExpert):
        return replace(mlp, mlp=_recording_mlp(mlp.mlp))
    assert isinstance(mlp, MixtureMlp)
    [experts] = mlp.slices

    def separate(linear: ExpertLinear) -> ExpertLinear:
        return SeparateExperts(tuple(_recording(linear.expert(number)) for number in range(mlp.config.num_experts)))

    shared = None if mlp.shared is None else _recording_mlp(mlp.shared)
    return replace(mlp, slices=(ExpertSlice(separate(experts.gate_up), separate(experts.down)),), shared=shared)


def _recording(linear: Linear) -> RecordedInputs:
    dense = linear.dense() if isinstance(linear, PackedLinear) else linear
    assert isinstance(dense, DenseLinear)
    C = dense.weight.shape[1]
    zeros_CC = torch.zeros((C, C), dtype=torch.float32, device=dense.weight.device)
    return RecordedInputs(dense, zeros_CC, zeros_CC[0].clone(), zeros_CC[0].clone())


def _recorded(linear: Linear) -> RecordedInputs:
    assert isinstance(linear, RecordedInputs)
    return linear


def _linear(linear: Linear) -> Linear:
    return _recorded(linear).linear


def _dense_mlps(mlp: Mlp) -> list[DenseMlp]:
    """Return the MLP itself, or a mixture's shared expert."""
    if isinstance(mlp, DenseMlp):
        return [mlp]
    assert isinstance(mlp, MixtureMlp)
    return [mlp.shared.mlp] if isinstance(mlp.shared, SharedExpert) else []


def _gates(mlp: MixtureMlp) -> dict[str, DenseLinear]:
    """Return the dense layers that read a mixture's inputs and are never rounded."""
    gates = {"gate": mlp.router}
    if isinstance(mlp.shared, SharedExpert):
        gates["shared_expert_gate"] = mlp.shared.gate
    return {name: linear for name, linear in gates.items() if isinstance(linear, DenseLinear)}
