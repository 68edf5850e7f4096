"""Norms and the gated activation, each in one pass over its input.

Legend: T tokens, E hidden size, I intermediate size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def rms_norm(x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / rms(x) * weight` over the last dimension."""
    out_TE = torch.empty(x_TE.shape, dtype=x_TE.dtype, device=x_TE.device)
    _launch_norm(x_TE, None, weight_E, out_TE, None, eps)
    return out_TE


def add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next residual `x + residual`, normed and as it is."""
    out_TE = torch.empty(x_TE.shape, dtype=x_TE.dtype, device=x_TE.device)
    sum_TE = torch.empty(x_TE.shape, dtype=x_TE.dtype, device=x_TE.device)
    _launch_norm(x_TE, residual_TE, weight_E, out_TE, sum_TE, eps)
    return out_TE, sum_TE


def silu_and_mul(gate_up_TJ: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of [T, 2I], whose first half is the gate."""
    T, width = gate_up_TJ.shape
    out_TI = torch.empty((T, width // 2), dtype=gate_up_TJ.dtype, device=gate_up_TJ.device)
    block = min(1024, triton.next_power_of_2(width // 2))
    _silu_and_mul[(T, triton.cdiv(width // 2, block))](
        gate_up_TJ, out_TI, gate_up_TJ.stride(0), SIZE=width // 2, BLOCK=block, num_warps=4
    )
    return out_TI


def _launch_norm(
    x_TE: torch.Tensor,
    residual_TE: torch.Tensor | None,
    weight_E: torch.Tensor,
    out_TE: torch.Tensor,
    sum_TE: torch.Tensor | None,
    eps: float,
) -> None:
    T, E = x_TE.shape
    block = triton.next_power_of_2(E)
    _rms_norm[(T,)](
        x_TE,
        residual_TE,
        weight_E,
        out_TE,
        sum_TE,
        eps,
        x_TE.stride(0),
        E=E,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )


@triton.jit
def _rms_norm(x_TE, residual_TE, weight_E, out_TE, sum_TE, eps, stride_t, E: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    valid = e < E
    x = tl.load(x_TE + token * stride_t + e, mask=valid, other=0.0)
    if residual_TE is not None:
        x += tl.load(residual_TE + token * E + e, mask=valid, other=0.0)  # rounded, as the residual that is kept is
        tl.store(sum_TE + token * E + e, x, mask=valid)
    x = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x) / E + eps)
    weight = tl.load(weight_E + e, mask=valid, other=0.0).to(tl.float32)
    tl.store(out_TE + token * E + e, (x * inverse * weight).to(out_TE.dtype.element_ty), mask=valid)


@triton.jit
def _silu_and_mul(gate_up_TJ, out_TI, stride_t, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = i < SIZE
    gate = tl.load(gate_up_TJ + token * stride_t + i, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(gate_up_TJ + token * stride_t + SIZE + i, mask=valid, other=0.0)
    dtype: tl.constexpr = out_TI.dtype.element_ty
    tl.store(out_TI + token * SIZE + i, (gate / (1.0 + tl.exp(-gate))).to(dtype) * up, mask=valid)
