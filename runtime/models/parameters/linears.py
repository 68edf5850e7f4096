"""Allocation of tensors, norms and linear layers, whole or cut into the slices of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..config import ModelConfig
from ..experts.mixture import ExpertLinear, make_experts
from ..linear import DenseLinear, Linear
from ..norm import Norm, allocate_norm
from ..parallel.group import Group
from ..parallel.layers import ColumnParallelLinear, OutputSection, RowParallelLinear
from ..quantised.blockwise import FP8_BLOCK
from ..quantised.factory import make_linear
from ..quantised.mxfp4 import MXFP4_GROUP

EXPANSION = "self_attn.kv_b_proj"  # of latents


@dataclass(frozen=True)
class Allocator:
    """Allocates uninitialised parameters that the rank of `group` holds of the model `config`.

    `groups_experts` stacks experts for grouped products.
    """

    config: ModelConfig
    group: Group
    device: torch.device | str
    dtype: torch.dtype
    groups_experts: bool

    @property
    def num_slices(self) -> int:
        """Number of slices of the whole model."""
        return self.group.shard.num_slices

    @property
    def is_cut(self) -> bool:
        """True if the model's products are cut into slices."""
        return self.num_slices > 1

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def float32(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=torch.float32)

    def norm(self, size: int) -> Norm:
        config = self.config
        return allocate_norm(config.norm, size, config.norm_eps, device=self.device, dtype=self.dtype)

    def no_linear(self) -> DenseLinear:
        """Allocate the product of a part that a layer does not have."""
        return DenseLinear(self.tensor(0, self.config.hidden_size))

    def linear(self, index: int, names: str, sizes: list[int], inner: int, bias: bool) -> Linear:
        """Allocate one product of all modules `names` of a layer, whole."""
        modules = [f"model.layers.{index}.{name}" for name in names.split()]
        quantisation = self.config.quantisation
        if names == EXPANSION and quantisation is not None and quantisation.scheme.source == "dense":
            quantisation = None  # it is kept dense anyway
        return make_linear(
            quantisation, modules, sum(sizes), inner, bias, sizes=sizes, device=self.device, dtype=self.dtype
        )

    def columns(self, index: int, names: str, sections: list[OutputSection], inner: int, bias: bool) -> Linear:
        """Allocate a product whose outputs are divided among the slices."""
        if not self.is_cut:
            return self.linear(index, names, [section.rows for section in sections], inner, bias)
        sizes = [section.size for section in sections]
        for number, section in enumerate(sections):
            if section.num_pieces > 1:
                name = names.split()[min(number, len(names.split()) - 1)]
                self.check_slices(f"model.layers.{index}.{name}", section.size)
        slices = [self.linear(index, names, sizes, inner, bias) for _ in self.group.shard.slices]
        return ColumnParallelLinear(self.group.shard, sections, slices)

    def rows(self, index: int, name: str, out: int, inner: int, bias: bool) -> Linear:
        """Allocate a product whose inputs are divided among the slices."""
        if not self.is_cut:
            return self.linear(index, name, [out], inner, bias)
        each = inner // self.num_slices
        self.check_slices(f"model.layers.{index}.{name}", each, "inputs")
        slices = [self.linear(index, name, [out], each, bias=False) for _ in self.group.shard.slices]
        return RowParallelLinear(self.group, inner, self.tensor(out) if bias else None, slices)

    def experts(
        self, modules: Sequence[tuple[str, ...]], *, outputs: int, inputs: int, bias: bool = False
    ) -> ExpertLinear:
        """Allocate the same product of all experts of a layer."""
        return make_experts(
            self.config.quantisation,
            modules,
            outputs=outputs,
            inputs=inputs,
            bias=bias,
            device=self.device,
            dtype=self.dtype,
            grouped=self.groups_experts,
        )

    def check_slices(self, module: str, size: int, kind: str = "outputs") -> None:
        """Refuse slices that straddle the blocks of a format. Raises ValueError."""
        quantisation = self.config.quantisation
        scheme = None if quantisation is None or not self.is_cut else quantisation.scheme_of(module)
        block = 0 if scheme is None else FP8_BLOCK if scheme.source == "fp8" else 0
        if scheme is not None and scheme.kind == "mxfp4" and kind == "inputs":
            block = MXFP4_GROUP
        if block and size % block:
            raise ValueError(
                f"{module}: in {self.num_slices} slices (tp or deterministic) each has {size} {kind}, "
                f"which blocks of {block} do not divide"
            )
