"""Linear recurrences with decay, in plain torch and float32: many tokens of one row.

A head's state S [K, V] follows S' = exp(g) S + k d^T with an output o = S'^T q. Mamba2 adds its value, d = v (Dao and
Gu 2024). The gated delta rule replaces what the state holds at the key: d = beta (v - exp(g) S^T k) (Yang et al. 2024).

Legend: N tokens of one row, H heads, K key size, V value size.
"""

from __future__ import annotations

import torch

CHUNK = 64  # tokens computed by matrix products at once


def scan(
    state_HKV: torch.Tensor,
    q_NHK: torch.Tensor,
    k_NHK: torch.Tensor,
    v_NHV: torch.Tensor,
    g_NH: torch.Tensor,
    beta_NH: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute N tokens of one row from a state; return the outputs [N, H, V] and the state after them."""
    outputs = []
    for start in range(0, len(q_NHK), CHUNK):
        own = slice(start, start + CHUNK)
        beta_CH = None if beta_NH is None else beta_NH[own]
        output_CHV, state_HKV = _chunk(state_HKV, q_NHK[own], k_NHK[own], v_NHV[own], g_NH[own], beta_CH)
        outputs.append(output_CHV)
    return (torch.cat(outputs) if outputs else torch.zeros_like(v_NHV)), state_HKV


def selective_scan(
    state_HKV: torch.Tensor,
    x_NV: torch.Tensor,
    step_NV: torch.Tensor,
    k_NK: torch.Tensor,
    q_NK: torch.Tensor,
    rate_KV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute N tokens of one row by Mamba1's recurrence, S' = exp(step rate) S + k (step x)^T with an output S'^T q
    (Gu and Dao 2023). Every place of the state, one head's, has a decay of its own.

    Return the outputs [N, 1, V] and the state after the tokens.
    """
    outputs = []
    for start in range(0, len(x_NV), CHUNK):
        own = slice(start, start + CHUNK)
        decay_CKV = torch.exp(step_NV[own][:, None] * rate_KV)
        state_CKV = k_NK[own][:, :, None] * (step_NV[own] * x_NV[own])[:, None]
        state_CKV[0] += decay_CKV[0] * state_HKV[0]
        reach = 1
        while reach < len(state_CKV):  # each adds the sum of as many tokens before it as it has itself
            state_CKV[reach:] = state_CKV[reach:] + decay_CKV[reach:] * state_CKV[:-reach]
            decay_CKV[reach:] = decay_CKV[reach:] * decay_CKV[:-reach]
            reach *= 2
        outputs.append(torch.einsum("nkv,nk->nv", state_CKV, q_NK[own])[:, None])
        state_HKV = state_CKV[-1:]
    return torch.cat(outputs), state_HKV


def _chunk(
    state_HKV: torch.Tensor,
    q_CHK: torch.Tensor,
    k_CHK: torch.Tensor,
    v_CHV: torch.Tensor,
    g_CH: torch.Tensor,
    beta_CH: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the tokens of a chunk together. What they add to the state depends on the state before them and, by the
    delta rule, on each other: that is a triangular system."""
    q_HCK, k_HCK, d_HCV = (x.transpose(0, 1) for x in (q_CHK, k_CHK, v_CHV))
    decay_HC = g_CH.t().cumsum(-1)  # from before the chunk to each token, in logarithms
    pairs_HCC = decay_HC[:, :, None] - decay_HC[:, None, :]
    # Later tokens do not count: their exponents, which may be large, must not reach exp.
    is_later_CC = torch.ones(pairs_HCC.shape[1:], dtype=torch.bool, device=q_CHK.device).triu(1)
    pairs_HCC = pairs_HCC.masked_fill(is_later_CC, float("-inf")).exp()
    if beta_CH is not None:
        beta_HC1 = beta_CH.t()[:, :, None]
        # The solver reads below the diagonal only, and takes ones on it.
        system_HCC = beta_HC1 * (k_HCK @ k_HCK.mT) * pairs_HCC
        held_HCV = (k_HCK * decay_HC.exp()[:, :, None]) @ state_HKV
        d_HCV = torch.linalg.solve_triangular(
            system_HCC, beta_HC1 * (d_HCV - held_HCV), upper=False, unitriangular=True
        )
    output_HCV = (q_HCK * decay_HC.exp()[:, :, None]) @ state_HKV + ((q_HCK @ k_HCK.mT) * pairs_HCC) @ d_HCV
    rest_HC1 = (decay_HC[:, -1:] - decay_HC).exp()[:, :, None]
    state_HKV = state_HKV * decay_HC[:, -1].exp()[:, None, None] + (k_HCK * rest_HC1).mT @ d_HCV
    return output_HCV.transpose(0, 1), state_HKV
