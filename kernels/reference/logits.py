"""Changes to logits before a token is chosen: penalties for what was said, the mask of what may be said.

Legend: R rows, V vocabulary, W mask words (32 tokens each), N penalised (row, token) pairs.
"""

from __future__ import annotations

import torch


def apply_penalties(
    logits_RV: torch.Tensor,
    *,
    rows_N: torch.Tensor,
    tokens_N: torch.Tensor,
    counts_N: torch.Tensor,
    repetition_N: torch.Tensor,
    frequency_N: torch.Tensor,
    presence_N: torch.Tensor,
) -> torch.Tensor:
    """Penalise token `tokens_N[n]` of row `rows_N[n]`, whose output holds it `counts_N[n]` times. Pairs are distinct.

    Repetition first (Keskar et al. 2019, CTRL, section 4.1: positive logits divided, negative ones multiplied), then
    `frequency * count`, and `presence` once if the count is not zero, are subtracted.
    """
    values_N = logits_RV[rows_N, tokens_N]
    values_N = torch.where(values_N > 0, values_N / repetition_N, values_N * repetition_N)
    values_N = values_N - frequency_N * counts_N - presence_N * (counts_N > 0)
    return logits_RV.index_put((rows_N, tokens_N), values_N)


def apply_token_bitmask(logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> torch.Tensor:
    """-inf where bit `t % 32` of int32 word `t // 32` is clear. W is `ceil(V / 32)`."""
    bits_32 = torch.arange(32, dtype=torch.int32, device=bitmask_RW.device)
    allowed_RV = ((bitmask_RW[:, :, None] >> bits_32) & 1).flatten(1)[:, : logits_RV.shape[1]].bool()
    return logits_RV.masked_fill(~allowed_RV, float("-inf"))
