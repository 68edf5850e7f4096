"""Normalisation layers of a decoder: RMS norm by the device's ops, and LayerNorm with or without weights.

Legend: T tokens, E hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...kernels import Ops
from .families.row import NormKind
from .linear import Destination


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / rms(x) * weight."""

    weight_E: torch.Tensor
    eps: float
    plus_one: bool = False  # the checkpoint stores weight - 1 (Gemma); `weight_E` is whole

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Normalise each token."""
        return ops.rms_norm(x_TE, self.weight_E, self.eps)

    def add(self, x_TE: torch.Tensor, residual_TE: torch.Tensor, ops: Ops) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum of both, and the sum itself."""
        return ops.add_rms_norm(x_TE, residual_TE, self.weight_E, self.eps)

    def destinations(self, name: str) -> dict[str, Destination]:
        """Map the checkpoint tensors of the module `name` to this norm's tensors."""
        return {f"{name}.weight": norm_destination(self.weight_E, plus_one=self.plus_one)}


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean(x)) / std(x) * weight + bias."""

    weight_E: torch.Tensor
    bias_E: torch.Tensor | None
    eps: float
    plus_one: bool = False  # the checkpoint stores weight - 1; `weight_E` is whole
    stored: bool = True  # False: the checkpoint has no weight

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return F.layer_norm(x_TE, self.weight_E.shape, self.weight_E, self.bias_E, self.eps)

    def add(self, x_TE: torch.Tensor, residual_TE: torch.Tensor, ops: Ops) -> tuple[torch.Tensor, torch.Tensor]:
        residual_TE = residual_TE + x_TE
        return self(residual_TE, ops), residual_TE

    def destinations(self, name: str) -> dict[str, Destination]:
        if not self.stored:
            return {}
        weight = {f"{name}.weight": norm_destination(self.weight_E, plus_one=self.plus_one)}
        return weight if self.bias_E is None else {**weight, f"{name}.bias": norm_destination(self.bias_E)}


Norm = RmsNorm | LayerNorm


def allocate_norm(kind: NormKind, size: int, eps: float, *, device: torch.device | str, dtype: torch.dtype) -> Norm:
    """Make an uninitialised norm of `size` weights."""
    weight_E = torch.empty(size, device=device, dtype=dtype)
    match kind:
        case "layer_norm" | "layer_norm_plus_one":
            return LayerNorm(weight_E, torch.empty_like(weight_E), eps, plus_one=kind == "layer_norm_plus_one")
        case "layer_norm_no_bias":
            return LayerNorm(weight_E, None, eps)
        case "layer_norm_plain":
            return LayerNorm(weight_E.fill_(1), None, eps, stored=False)
    return RmsNorm(weight_E, eps, plus_one=kind == "rms_plus_one")


def norm_destination(
    weight: torch.Tensor, shape: tuple[int, ...] | None = None, *, plus_one: bool = False
) -> Destination:
    """Make the destination of a stored norm weight of `shape`, which is broadcast; None: that of `weight`.

    `plus_one` adds 1 in float32 before the conversion.
    """

    def put_plus_one(stored: torch.Tensor) -> None:
        weight.copy_(stored.float() + 1)

    return Destination(tuple(weight.shape) if shape is None else shape, put_plus_one if plus_one else weight.copy_)
