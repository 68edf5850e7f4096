"""Token mask on logits. Legend: R rows, V vocabulary, W mask words of 32 tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launching import launch

_BLOCK = 4096


def apply_token_bitmask(logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> torch.Tensor:
    """Return the logits with -inf where bit `t % 32` of int32 word `t // 32` is clear."""
    R, V = logits_RV.shape
    out_RV = torch.empty((R, V), dtype=logits_RV.dtype, device=logits_RV.device)
    launch(
        _mask,
        (R, triton.cdiv(V, _BLOCK)),
        logits_RV,
        bitmask_RW,
        out_RV,
        V,
        logits_RV.stride(0),
        bitmask_RW.stride(0),
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out_RV


@triton.jit(do_not_specialize=["stride_mask"])
def _mask(logits_RV, bitmask_RW, out_RV, V, stride_logits, stride_mask, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(bitmask_RW + row * stride_mask + v // 32, mask=v < V, other=0)
    allowed = ((word >> (v % 32)) & 1) != 0
    logit = tl.load(logits_RV + row * stride_logits + v, mask=allowed, other=float("-inf"))
    tl.store(out_RV + row * V + v, logit, mask=v < V)
