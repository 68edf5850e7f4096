"""One token of linear recurrences with decay for many rows, in plain torch. `models.recurrent.scan` has many of one
row."""

from __future__ import annotations

import torch

from ..arguments import RecurrenceInputs


def step_states(state_SHKV: torch.Tensor, slots_R: torch.Tensor, inputs: RecurrenceInputs) -> torch.Tensor:
    """Advance the states in the slots of the rows by one token each, in place; return the outputs [R, H, V]."""
    q_RHK, k_RHK, d_RHV, g_RH, beta_RH = inputs
    state_RHKV = state_SHKV[slots_R]
    state_RHKV.mul_(g_RH.exp()[:, :, None, None])
    if beta_RH is not None:
        d_RHV = (d_RHV - torch.einsum("rhkv,rhk->rhv", state_RHKV, k_RHK)) * beta_RH[:, :, None]
    state_RHKV.add_(k_RHK[:, :, :, None] * d_RHV[:, :, None, :])
    state_SHKV[slots_R] = state_RHKV
    return torch.einsum("rhkv,rhk->rhv", state_RHKV, q_RHK)
