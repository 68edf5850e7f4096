"""Element-wise ops between a decoder's matrix products: norms, rotary embedding, gated activation.

Legend: T tokens, E hidden size, H heads, D head size, I intermediate size.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from .fixed_rows import FIXED_ROWS, in_fixed_rows


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return `x / rms(x) * weight`, the rms taken over the last dimension (Zhang & Sennrich 2019, eq. 4).

    `weight` is `[E]`, or `[H, D]` when each head of `x` [T, H, D] has its own.
    """
    if weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x, weight.shape[-1:], None, eps) * weight


def add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of `x + residual`, and `x + residual`, the next residual."""
    residual_TE = residual_TE + x_TE
    return rms_norm(residual_TE, weight_E, eps), residual_TE


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + D/2) of the last dimension of `x` [..., H, D] (Su et al. 2021, RoFormer, section 3.2.2).

    `cos` and `sin` are `[..., 1, D]`; the first half of `sin` is negated already, so that a rotation is
    `x * cos + halves_swapped(x) * sin`: three ops instead of seven.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up` of `gate_up` [..., 2I], whose first half is the gate (Shazeer 2020, SwiGLU)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """Return `gate * sigmoid(alpha * gate) * (up + 1)` of `gate_up` [..., 2I], whose first half is the gate (OpenAI
    2025, gpt-oss). Gates above `limit` are clamped to it, ups to -limit and limit."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return (up.clamp(-limit, limit) + 1) * (gate * torch.sigmoid(alpha * gate))


def deterministic_clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """Compute `clamped_swiglu` of [P, 2I] so that a row's bits do not depend on the number of rows."""
    return in_fixed_rows(partial(clamped_swiglu, alpha=alpha, limit=limit), gate_up, FIXED_ROWS)


def deterministic_silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Compute `silu_and_mul` of [T, 2I] so that a row's bits do not depend on the number of rows."""
    return in_fixed_rows(silu_and_mul, gate_up, FIXED_ROWS)
