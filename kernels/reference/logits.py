"""Changes to logits before a token is chosen: penalties for what was said, the mask of what may be said.

Legend: R rows, V vocabulary, W mask words (32 tokens each), N penalised (row, token) pairs.
"""

from __future__ import annotations

import torch

from ..arguments import PenaltyTensors


def apply_penalties(logits_RV: torch.Tensor, penalties: PenaltyTensors) -> torch.Tensor:
    """Return the logits with token `tokens_N[n]` of row `rows_N[n]` penalised.

    First comes the repetition penalty (Keskar et al. 2019, CTRL, section 4.1): positive logits are divided by it,
    negative ones multiplied. Then `frequency * count` is subtracted, and `presence` once if the count is not zero.
    """
    rows_N, tokens_N, counts_N, repetition_N, frequency_N, presence_N = penalties
    values_N = logits_RV[rows_N, tokens_N]
    values_N = torch.where(values_N > 0, values_N / repetition_N, values_N * repetition_N)
    values_N = values_N - frequency_N * counts_N - presence_N * (counts_N > 0)
    return logits_RV.index_put((rows_N, tokens_N), values_N)


def apply_token_bitmask(logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> torch.Tensor:
    """-inf where bit `t % 32` of int32 word `t // 32` is clear. W is `ceil(V / 32)`."""
    bits_32 = torch.arange(32, dtype=torch.int32, device=bitmask_RW.device)
    allowed_RV = ((bitmask_RW[:, :, None] >> bits_32) & 1).flatten(1)[:, : logits_RV.shape[1]].bool()
    return logits_RV.masked_fill(~allowed_RV, float("-inf"))
