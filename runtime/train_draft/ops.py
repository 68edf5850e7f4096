"""The layers' arithmetic for training: its plain-torch meaning, through which gradients flow, with norms in the type of
their weights whatever type automatic mixed precision gave the products before them."""

from __future__ import annotations

import torch

from ...kernels.reference import layers
from ...kernels.reference.layers import silu_and_mul

__all__ = ["add_rms_norm", "rms_norm", "silu_and_mul"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return layers.rms_norm(x.to(weight.dtype), weight, eps)


def add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return layers.add_rms_norm(x_TE.to(weight_E.dtype), residual_TE.to(weight_E.dtype), weight_E, eps)
