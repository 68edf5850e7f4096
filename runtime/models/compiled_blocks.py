"""Read what the compiled decoder step takes of a model: its config, the matrices of a layer, and a layer's mixture.

Legend: E hidden size, F fields of a layer's record, W words of a field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch

from ...kernels.cpu.compiled import Floats, Ints
from ...kernels.cpu.products.packed_matrix import PackedMatrix
from ...kernels.cpu.step.decoder_step import (
    EXPERTS,
    ROUTER,
)
from ...kernels.cpu.step.experts import (
    ALPHA,
    CHOICE_BIAS,
    CLAMPED,
    DOWNS,
    GATES_UPS,
    KEPT_GROUPS,
    LIMIT,
    NORMALISED,
    NUM_CHOSEN,
    NUM_EXPERTS,
    NUM_FACTORS,
    NUM_GROUPS,
    NUM_SETTINGS,
    SCALE,
    SCALES_INPUTS,
    SHARED_GATE,
    SIGMOID,
    SIZE,
)
from .config import ModelConfig
from .experts.config import ExpertsConfig
from .experts.mixture import MixtureMlp, SeparateExperts, SharedExpert
from .linear import DenseLinear
from .mlp import DenseMlp
from .packed_linear import packed_matrices
from .parameters import LayerParameters

# Fields of a model's config that the loop takes, or that are no concern of it, whatever they hold. Blocks and matrices
# are looked at one by one.
_ANY_VALUE = frozenset(
    {
        *("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"),
        *("head_dim", "norm_eps", "context_length", "qkv_bias", "o_bias", "mlp_bias", "tied_embeddings", "head_bias"),
        *("rope", "second_rope", "second_rope_layers", "learned_positions", "streaming", "query_scales"),
        *("activation", "mlp_names", "attention_scale", "sinks", "attention_cap", "embedding_scale", "residual_scale"),
        *("logit_scale", "logit_cap", "stored", "experts", "recurrent", "multipliers", "mlp_layers", "quantisation"),
    }
)
# The values that it takes of others; any further field has to be at its default.
_VALUES: dict[str, Callable[[Any], bool]] = {
    "windows": lambda windows: len(set(windows)) <= 2,
    "qk_norm": frozenset((None, "per head", "per head after rope", "all heads", "without weights")).__contains__,
    "norm": frozenset(
        ("rms", "rms_plus_one", "layer_norm", "layer_norm_plus_one", "layer_norm_no_bias", "layer_norm_plain")
    ).__contains__,
    "norm_placement": frozenset(("pre", "post", "sandwich", "parallel", "parallel, two norms", "one")).__contains__,
}


def takes(config: ModelConfig) -> bool:
    """Return True if the loop takes a model of this config."""
    values = {field: getattr(config, field.name) for field in fields(config) if field.name not in _ANY_VALUE}
    return all(
        _VALUES[field.name](value) if field.name in _VALUES else value == field.default
        for field, value in values.items()
    )


class CompiledMixture:
    """A layer's mixture as the loop reads it; `of` makes it."""

    def __init__(self, config: ExpertsConfig, router: PackedMatrix, matrices: Sequence[Sequence[PackedMatrix]]) -> None:
        """`matrices` are all experts' gates and ups, and their downs."""
        self.config, self.router, self.matrices = config, router, matrices
        self.tables: list[Ints] = [np.stack([matrix.descriptor for matrix in each]) for each in matrices]
        self.bias = np.empty(0, np.float32)  # of the choice of experts
        total = sum(matrix.nbytes for each in matrices for matrix in each)
        self.nbytes = router.nbytes + total * config.num_per_token // config.num_experts  # that a token reads

    @classmethod
    def of(cls, mlp: MixtureMlp) -> CompiledMixture | None:
        """Return a layer's mixture without the shared expert, or None when the loop does not compute it."""
        config, router = mlp.config, mlp.router
        if len(mlp.slices) != 1 or not isinstance(router, DenseLinear) or mlp.hidden_size % 2:
            return None
        if config.groups is not None and config.scales_inputs:
            return None
        matrices = []
        for experts in mlp.slices[0]:
            packed = packed_matrices(experts.linears) if isinstance(experts, SeparateExperts) else None
            # Rows are prepared once for all experts.
            if packed is None or len({tuple(matrix.descriptor[[0, 2, 3]]) for matrix in packed}) > 1:
                return None
            matrices.append(packed)
        weight, bias = router.weight, router.bias
        if config.has_shared_gate:
            if not isinstance(mlp.shared, SharedExpert) or not isinstance(mlp.shared.gate, DenseLinear):
                return None
            weight = torch.cat((weight, mlp.shared.gate.weight))
        mixture = cls(config, PackedMatrix.of_dense(weight.float(), bias), matrices)
        if mlp.bias_N is not None:
            mixture.bias = mlp.bias_N.numpy()
        return mixture

    def write(self, record_FW: Ints) -> None:
        """Write the addresses of the mixture to a layer's record."""
        record_FW[ROUTER] = self.router.descriptor
        record_FW[EXPERTS, GATES_UPS], record_FW[EXPERTS, DOWNS] = (table.ctypes.data for table in self.tables)
        record_FW[EXPERTS, CHOICE_BIAS] = self.bias.ctypes.data if self.bias.size else 0

    @property
    def settings(self) -> Ints:
        """Numbers of the model's mixtures, as the loop takes them."""
        config, groups, numbers = self.config, self.config.groups, np.zeros(NUM_SETTINGS, np.int64)
        numbers[NUM_EXPERTS], numbers[NUM_CHOSEN] = config.num_experts, config.num_per_token
        numbers[SIGMOID] = groups is not None and groups.sigmoid
        numbers[NUM_GROUPS] = 1 if groups is None else groups.num_groups
        numbers[KEPT_GROUPS] = 1 if groups is None else groups.kept_groups
        numbers[NORMALISED] = config.normalised if groups is None else groups.normalised
        numbers[SCALES_INPUTS], numbers[CLAMPED] = config.scales_inputs, config.swiglu is not None
        numbers[SHARED_GATE], numbers[SIZE] = config.has_shared_gate, config.intermediate_size
        return numbers

    @property
    def factors(self) -> Floats:
        """Further numbers of the model's mixtures, as the loop takes them."""
        numbers = np.ones(NUM_FACTORS, np.float32)
        if self.config.groups is not None:
            numbers[SCALE] = self.config.groups.scale
        if self.config.swiglu is not None:
            numbers[ALPHA], numbers[LIMIT] = self.config.swiglu
        return numbers


class CompiledBlock(NamedTuple):
    """The matrices of a layer: QKV, OUTPUT, GATE_UP and DOWN. The last two are those of the shared expert in a
    mixture."""

    matrices: Sequence[PackedMatrix]
    mixture: CompiledMixture | None

    @classmethod
    def of(cls, layer: LayerParameters) -> CompiledBlock | None:
        """Return the matrices of a layer, or None when the loop does not compute it."""
        mlp, mixture = layer.mlp, None
        linears = [layer.qkv, layer.o]
        if layer.recurrent is not None or layer.part != "both":
            return None
        if type(mlp) is MixtureMlp:
            mixture = CompiledMixture.of(mlp)
            if mixture is None or layer.norms.mlp_in is None or layer.norms.mlp_out is not None:
                return None
            mlp = mlp.shared.mlp if isinstance(mlp.shared, SharedExpert) else mlp.shared
        if isinstance(mlp, DenseMlp):
            if mlp.gated and mlp.activation not in (("silu", "gelu_tanh") if mixture is None else ("silu",)):
                return None
            linears += [mlp.gate_up, mlp.down]
        elif mlp is not None or mixture is None:
            return None
        matrices = packed_matrices(linears)
        return None if matrices is None else cls(matrices, mixture)
