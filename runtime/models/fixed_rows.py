"""Layers that compute all products with one number of rows, so that a token's bits do not depend on the batch.

Legend: T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ...kernels import Ops
from ...kernels.reference.fixed_rows import in_fixed_rows
from .experts.mixture import MixtureMlp
from .linear import Destination, Linear, Loadable, WrappedLinear, linear_parts
from .mlp import DenseMlp, Mlp
from .packed_linear import packed_matrices
from .parameters import DecoderParameters, LayerParameters
from .recurrent.mixture import UngatedMixture


@dataclass(frozen=True, slots=True)
class FixedRowsLinear(WrappedLinear):
    """A linear layer that multiplies `num_rows` rows at a time; the last block is padded with zeros."""

    num_rows: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return in_fixed_rows(self.linear, x, self.num_rows)


@dataclass(frozen=True, slots=True)
class FixedRowsMlp:
    """An MLP that computes `num_rows` rows at a time."""

    mlp: Mlp
    num_rows: int

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.total(self.parts(x_TE, ops))

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        def side_by_side(rows: torch.Tensor) -> torch.Tensor:
            return torch.cat(list(self.mlp.parts(rows, ops)), dim=1)

        return in_fixed_rows(side_by_side, x_TE, self.num_rows).split(x_TE.shape[1], dim=1)

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.mlp.total(parts_TE)

    def linears(self) -> Iterator[Loadable]:
        return self.mlp.linears()

    def destinations(self, prefix: str) -> dict[str, Destination]:
        return self.mlp.destinations(prefix)


def with_fixed_product(linear: Linear, num_rows: int) -> Linear:
    """Return the layer with a product of `num_rows` rows at a time; the layer itself if its loops can compute a row
    alike in any batch, which they do then."""
    return linear if _round_alike(list(linear_parts(linear))) else FixedRowsLinear(linear, num_rows)


def _round_alike(linears: Sequence[Linear]) -> bool:
    """Have packed layers compute a row alike in any batch; return False if some are not packed."""
    matrices = packed_matrices(linears)
    for matrix in matrices or ():
        matrix.round_alike()
    return matrices is not None


def with_fixed_rows(parameters: DecoderParameters, num_rows: int) -> DecoderParameters:
    """Return the parameters with all layer products computed `num_rows` rows at a time, but for those of packed loops.

    Products of stacked experts stay as they are: the ops compute them.
    """

    def rows(linear: Linear) -> Linear:
        return with_fixed_product(linear, num_rows)

    def mlp(whole: Mlp) -> Mlp:
        if isinstance(whole, DenseMlp):
            products = [*linear_parts(whole.gate_up), *linear_parts(whole.down)]
            return whole if _round_alike(products) else FixedRowsMlp(whole, num_rows)
        if not isinstance(whole, MixtureMlp):
            return FixedRowsMlp(whole, num_rows)
        if isinstance(whole, UngatedMixture) and whole.to_latent is not None and whole.from_latent is not None:
            whole = replace(whole, to_latent=rows(whole.to_latent), from_latent=rows(whole.from_latent))
        # Experts get other batches of tokens than the router.
        return replace(
            whole,
            router=rows(whole.router),
            slices=tuple(experts.each(rows) for experts in whole.slices),
            shared=None if whole.shared is None else FixedRowsMlp(whole.shared, num_rows),
        )

    def fixed(layer: LayerParameters) -> LayerParameters:
        latent = None if layer.latent is None else layer.latent.each(rows)
        return replace(layer, qkv=rows(layer.qkv), o=rows(layer.o), mlp=mlp(layer.mlp), latent=latent)

    return replace(parameters, layers=tuple(map(fixed, parameters.layers)))
