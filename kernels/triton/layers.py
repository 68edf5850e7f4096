"""Norms and the gated activation, each in one pass over its input.

Legend: T tokens, E hidden size, I intermediate size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launching import launch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return `x / rms(x) * weight` over the last dimension. `weight` is [E], or [H, E] when each head of `x` [T, H, E]
    has its own."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_norm(x, None, weight, out, None, eps)
    return out


def add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of `x + residual`, and `x + residual`, the next residual."""
    out_TE = torch.empty(x_TE.shape, dtype=x_TE.dtype, device=x_TE.device)
    sum_TE = torch.empty(x_TE.shape, dtype=x_TE.dtype, device=x_TE.device)
    _launch_norm(x_TE, residual_TE, weight_E, out_TE, sum_TE, eps)
    return out_TE, sum_TE


def silu_and_mul(gate_up_TJ: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up` of [T, 2I], whose first half is the gate."""
    T, width = gate_up_TJ.shape
    out_TI = torch.empty((T, width // 2), dtype=gate_up_TJ.dtype, device=gate_up_TJ.device)
    block = min(1024, triton.next_power_of_2(width // 2))
    launch(
        _silu_and_mul,
        (T, triton.cdiv(width // 2, block)),
        gate_up_TJ,
        out_TI,
        gate_up_TJ.stride(0),
        SIZE=width // 2,
        BLOCK=block,
        num_warps=4,
    )
    return out_TI


def clamped_swiglu(gate_up_PJ: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """Return `gate * sigmoid(alpha * gate) * (up + 1)` of [P, 2I], whose first half is the gate: at most `limit`, ups
    within -limit and limit."""
    P, width = gate_up_PJ.shape
    out_PI = torch.empty((P, width // 2), dtype=gate_up_PJ.dtype, device=gate_up_PJ.device)
    block = min(1024, triton.next_power_of_2(width // 2))
    launch(
        _clamped_swiglu,
        (P, triton.cdiv(width // 2, block)),
        gate_up_PJ,
        out_PI,
        gate_up_PJ.stride(0),
        alpha,
        limit,
        SIZE=width // 2,
        BLOCK=block,
        num_warps=4,
    )
    return out_PI


def _launch_norm(
    x: torch.Tensor,
    residual_TE: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    sum_TE: torch.Tensor | None,
    eps: float,
) -> None:
    E, num_heads = x.shape[-1], weight.shape[0] if weight.dim() == 2 else 1
    assert x.stride(-1) == 1
    assert num_heads == 1 or x.stride(1) == E
    block = triton.next_power_of_2(E)
    launch(
        _rms_norm,
        (x.shape[0], num_heads),
        x,
        residual_TE,
        weight,
        out,
        sum_TE,
        eps,
        x.stride(0),
        H=num_heads,
        E=E,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )


@triton.jit
def _rms_norm(
    x_THE, residual_TE, weight_HE, out_THE, sum_TE, eps, stride_t, H: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    e = tl.arange(0, BLOCK)
    valid = e < E
    x = tl.load(x_THE + token * stride_t + head * E + e, mask=valid, other=0.0)
    if residual_TE is not None:
        x += tl.load(residual_TE + token * E + e, mask=valid, other=0.0)  # rounded, as the stored residual is
        tl.store(sum_TE + token * E + e, x, mask=valid)
    x = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x) / E + eps)
    weight = tl.load(weight_HE + head * E + e, mask=valid, other=0.0).to(tl.float32)
    tl.store(out_THE + (token * H + head) * E + e, (x * inverse * weight).to(out_THE.dtype.element_ty), mask=valid)


@triton.jit
def _silu_and_mul(gate_up_TJ, out_TI, stride_t, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = i < SIZE
    gate = tl.load(gate_up_TJ + token * stride_t + i, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(gate_up_TJ + token * stride_t + SIZE + i, mask=valid, other=0.0)
    dtype: tl.constexpr = out_TI.dtype.element_ty
    tl.store(out_TI + token * SIZE + i, (gate / (1.0 + tl.exp(-gate))).to(dtype) * up, mask=valid)


@triton.jit
def _clamped_swiglu(gate_up_PJ, out_PI, stride_p, alpha, limit, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = i < SIZE
    gate = tl.load(gate_up_PJ + row * stride_p + i, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(gate_up_PJ + row * stride_p + SIZE + i, mask=valid, other=0.0).to(tl.float32)
    gate = tl.where(gate > limit, limit, gate)  # NaN stays, which a minimum would drop
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    y = (up + 1.0) * (gate / (1.0 + tl.exp(-alpha * gate)))
    tl.store(out_PI + row * SIZE + i, y.to(out_PI.dtype.element_ty), mask=valid)
