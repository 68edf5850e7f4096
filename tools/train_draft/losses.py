"""Training losses of a head, over `num_ahead` passes.

EAGLE-1 (section 4.2): SmoothL1 of features, and cross-entropy against the target's distribution. EAGLE-3: cross-entropy
alone, in passes that are each fed the estimates of the one before.

Legend: B texts, T tokens, P places (T - 1: a head's input needs the next token), E hidden size, V head's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...runtime.speculation.eagle.head import EagleHead
from .attention import TrainingTimeTestAttention
from .config import TrainConfig


@dataclass(frozen=True)
class Losses:
    """Loss of a batch."""

    total: torch.Tensor
    agreement: list[float]  # by pass: share of tokens at which the head's likeliest token is the target's


def losses(
    head: EagleHead,
    ids_BT: torch.Tensor,
    weights_BT: torch.Tensor,
    captured_BTC: torch.Tensor,
    final_BTE: torch.Tensor,
    noise: torch.Generator,
    config: TrainConfig,
) -> Losses:
    """Compute the losses of a batch.

    `final_BTE` are the target's hidden states after its final norm; `captured_BTC` are those that the head is fed,
    which for EAGLE-1 are the same. `weights_BT` are the tokens' weights in the loss.
    """
    B, T = ids_BT.shape
    P = T - 1
    device = ids_BT.device
    features_BTE = head.features(captured_BTC.reshape(B * T, -1)).view(B, T, -1)
    before_NE = features_BTE[:, :P].reshape(B * P, -1)
    if config.noise:
        spread = config.noise * 512 / T
        before_NE = before_NE + spread * (torch.rand(before_NE.shape, generator=noise).to(before_NE) - 0.5)
    attend = TrainingTimeTestAttention(B, head.config.num_kv_heads, head.scale)
    # The estimate at place p is that of feature p + 1, whose logits predict token p + 2.
    drafted_BP = torch.cat((weights_BT[:, 2:], torch.zeros(B, 1, device=device)), dim=1)
    places_P = torch.arange(P, device=device)
    total = torch.zeros((), device=device)
    agreement = []
    for step in range(config.num_ahead):
        ids_N = _shifted(ids_BT[:, 1:], step).reshape(-1)
        output = head.forward(ids_N, before_NE, (places_P + step).repeat(B), attend)
        wanted_BP = _shifted(drafted_BP, step) * (places_P < P - step)
        chosen_n = torch.nonzero(wanted_BP.reshape(-1)).flatten()
        if len(chosen_n) == 0:
            break
        weights_n = wanted_BP.reshape(-1)[chosen_n]
        final_nE = _shifted(final_BTE[:, 1:], step).reshape(B * P, -1)[chosen_n]
        with torch.no_grad():
            expected_nV = head.target_logits(final_nE)
        logits_nV = head.logits(output.read_NE[chosen_n])
        token_n = F.cross_entropy(logits_nV, expected_nV.softmax(dim=-1), reduction="none")
        loss_n = config.token_loss * token_n
        if config.feature_loss:
            feature_nE = F.smooth_l1_loss(output.feature_NE[chosen_n], final_nE, reduction="none")
            loss_n = loss_n + config.feature_loss * feature_nE.mean(dim=-1)
        total = total + config.decay**step * (loss_n * weights_n).sum() / weights_n.sum()
        with torch.no_grad():
            agreement.append((logits_nV.argmax(-1) == expected_nV.argmax(-1)).float().mean().item())
        before_NE = output.feature_NE
    return Losses(total, agreement)


def _shifted(x: torch.Tensor, step: int) -> torch.Tensor:
    """Shift [B, P, ...] so that place p holds what was at p + step; the last places repeat the end."""
    if step == 0:
        return x
    return torch.cat((x[:, step:], x[:, -1:].expand(-1, step, *x.shape[2:])), dim=1)
