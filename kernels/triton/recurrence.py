"""One token of linear recurrences with decay for many rows, in the memory of their slots.

A program computes some columns of a head's state, which do not meet the others, so a state is read and written once.

Legend: R rows, S slots, H heads, K key size, V value size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..arguments import RecurrenceInputs
from .launching import launch

_BLOCK = 4096  # numbers of a state in a program's registers


def step_states(state_SHKV: torch.Tensor, slots_R: torch.Tensor, inputs: RecurrenceInputs) -> torch.Tensor:
    """Advance the states in the slots of the rows by one token each, in place; return the outputs [R, H, V].

    Inputs are float32. No two rows have the same slot.
    """
    _, H, K, V = state_SHKV.shape
    out_RHV = torch.empty(inputs.v_THV.shape, dtype=torch.float32, device=state_SHKV.device)
    block_k = triton.next_power_of_2(K)
    block_v = max(1, min(triton.next_power_of_2(V), _BLOCK // block_k))
    launch(
        _step_states,
        (len(slots_R), H, triton.cdiv(V, block_v)),
        state_SHKV,
        slots_R,
        *(None if x is None else x.contiguous() for x in inputs),
        out_RHV,
        H=H,
        K=K,
        V=V,
        BLOCK_K=block_k,
        BLOCK_V=block_v,
        num_warps=4,
    )
    return out_RHV


@triton.jit
def _step_states(
    state_SHKV,
    slots_R,
    q_RHK,
    k_RHK,
    v_RHV,
    g_RH,
    beta_RH,
    out_RHV,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * H + head
    k, v = tl.arange(0, BLOCK_K), tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    valid = (k < K)[:, None] & (v < V)[None, :]
    slot = tl.load(slots_R + tl.program_id(0))
    at = state_SHKV + ((slot * H + head) * K + k[:, None]) * V + v[None, :]
    state_KV = tl.load(at, mask=valid, other=0.0) * tl.exp(tl.load(g_RH + row))
    key_K = tl.load(k_RHK + row * K + k, mask=k < K, other=0.0)
    query_K = tl.load(q_RHK + row * K + k, mask=k < K, other=0.0)
    d_V = tl.load(v_RHV + row * V + v, mask=v < V, other=0.0)
    if beta_RH is not None:
        d_V = (d_V - tl.sum(state_KV * key_K[:, None], axis=0)) * tl.load(beta_RH + row)
    state_KV += key_K[:, None] * d_V[None, :]
    tl.store(at, state_KV, mask=valid)
    tl.store(out_RHV + row * V + v, tl.sum(state_KV * query_K[:, None], axis=0), mask=v < V)
