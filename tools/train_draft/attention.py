"""Attention of EAGLE-3's training-time test (Li et al. 2025, arXiv 2503.01840, section 3.2).

In pass i every place of a text is a chain of its own: the target's feature at that place, then i estimates of the head.
A chain sees the keys made from features up to its place, and the keys of its own i estimates.

Legend: B texts, T places, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...kernels import apply_rope


class TrainingTimeTestAttention:
    """Attention of all passes of a batch, called once per pass in order.

    A call takes the heads of queries, keys and values [B*T, H + 2K, D] and their angles [B*T, 1, D], and returns
    [B*T, H * D].
    """

    def __init__(self, num_texts: int, num_kv_heads: int, scale: float) -> None:
        self._num_texts, self._num_kv_heads, self._scale = num_texts, num_kv_heads, scale
        self._keys: list[torch.Tensor] = []  # [B, H, T, D] of each pass
        self._values: list[torch.Tensor] = []

    def __call__(self, qkv_NND: torch.Tensor, cos_N1D: torch.Tensor, sin_N1D: torch.Tensor) -> torch.Tensor:
        K, D = self._num_kv_heads, qkv_NND.shape[-1]
        H = qkv_NND.shape[1] - 2 * K
        qk_NND = apply_rope(qkv_NND[:, : H + K], cos_N1D, sin_N1D)
        q_NHD, k_NKD, v_NKD = qk_NND[:, :H], qk_NND[:, H:], qkv_NND[:, H + K :]
        group = H // K

        def by_head(x: torch.Tensor) -> torch.Tensor:
            return x.reshape(self._num_texts, -1, x.shape[1], D).transpose(1, 2)

        q = by_head(q_NHD)
        self._keys.append(by_head(k_NKD).repeat_interleave(group, dim=1))
        self._values.append(by_head(v_NKD).repeat_interleave(group, dim=1))
        if len(self._keys) == 1:
            out = F.scaled_dot_product_attention(q, self._keys[0], self._values[0], is_causal=True, scale=self._scale)
        else:
            out = self._attend(q)
        return out.transpose(1, 2).reshape(q_NHD.shape[0], H * D)

    def _attend(self, q: torch.Tensor) -> torch.Tensor:
        T = q.shape[2]
        hidden_TT = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
        scores = [(q @ self._keys[0].mT).masked_fill(hidden_TT, -torch.inf)]
        scores += [(q * k).sum(dim=-1, keepdim=True) for k in self._keys[1:]]
        weights = (torch.cat(scores, dim=-1) * self._scale).softmax(dim=-1)
        out = weights[..., :T] @ self._values[0]
        for i, v in enumerate(self._values[1:]):
            out = out + weights[..., T + i, None] * v
        return out
