"""How the nodes of a growing tree attend: each sees its row's tokens so far, its ancestors and itself; nothing else.

The row's keys and values are gathered from the pages once; each round's are written behind them.

Legend: B rows, K front nodes (KV: key/value heads), P tokens of the longest row, S slots, H query heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class TreeAttention:
    """Room for `num_rounds` rounds of `width` nodes a row behind the keys and values of `slots_BP`."""

    def __init__(
        self,
        k_SD: torch.Tensor,
        v_SD: torch.Tensor,
        slots_BP: torch.Tensor,
        visible_BP: torch.Tensor | None,
        *,
        num_kv_heads: int,
        width: int,
        num_rounds: int,
        scale: float,
    ) -> None:
        """`k_SD`, `v_SD` [S, KV * D] are a memory's, slots flattened. `visible_BP`: which of `slots_BP` are the row's
        own; None: all. The others must be of the row all the same: whatever another sequence's memory holds, NaN
        included, would enter the sums."""
        B, P = slots_BP.shape
        self._num_kv_heads, self._width, self._scale = num_kv_heads, width, scale
        self._end = P
        room = num_rounds * width
        keys = [cache_SD.index_select(0, slots_BP.flatten()).view(B, P, -1) for cache_SD in (k_SD, v_SD)]
        self._kv = [torch.cat((part, part.new_empty(B, room, part.shape[-1])), dim=1) for part in keys]
        self._bias = torch.full((B, width, P + room), -torch.inf, dtype=k_SD.dtype, device=k_SD.device)
        self._bias[:, :, :P] = 0.0
        if visible_BP is not None:
            self._bias[:, :, :P].masked_fill_(~visible_BP[:, None, :], -torch.inf)
        self._own = torch.where(torch.eye(width, device=k_SD.device).bool(), 0.0, -torch.inf).to(k_SD.dtype)

    def descend(self, parents_BK: torch.Tensor) -> None:
        """The next nodes that attend are children of those before, at these places. Called before every round but
        needs nothing of the first, whose parent is the rows' last token."""
        self._bias = self._bias.gather(1, parents_BK[:, :, None].expand_as(self._bias))

    def __call__(self, q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor) -> torch.Tensor:
        """One round: B * width nodes, in order. Returns [B * width, H * D]."""
        start, self._end = self._end, self._end + self._width
        B, W, D = self._bias.shape[0], self._width, q_NHD.shape[-1]
        for cache, new in zip(self._kv, (k_NKD, v_NKD), strict=True):
            cache[:, start : self._end] = new.reshape(B, W, -1)
        self._bias[:, :, start : self._end] = self._own
        k, v = (cache[:, : self._end].view(B, self._end, self._num_kv_heads, D).transpose(1, 2) for cache in self._kv)
        q = q_NHD.view(B, W, -1, D).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self._bias[:, None, :, : self._end], scale=self._scale,
            enable_gqa=q.shape[1] != self._num_kv_heads,
        )
        return out.transpose(1, 2).reshape(B * W, -1)
