"""How a row's newest tokens, and after them the nodes of a growing tree, attend: new tokens to all before them, a node
to its row's tokens, its ancestors and itself; nothing else.

The row's keys and values are gathered from the pages once; what each pass adds is kept behind them, not in the pages.

Legend: B rows, W new tokens of a row, K front nodes, P tokens before the new ones, C key/value heads times head size,
H query heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class TreeAttention:
    """First `begin`, then one call for the new tokens; before every further call `branch` or `descend`, or for chains
    `follow`."""

    def __init__(
        self,
        k_BPC: torch.Tensor,
        v_BPC: torch.Tensor,
        hidden_BP: torch.Tensor | None,
        *,
        room: int,
        num_kv_heads: int,
        scale: float,
    ) -> None:
        """`room`: how many new tokens and nodes a row will have. `hidden_BP`: what fills up shorter rows; its keys and
        values are any finite numbers."""
        self._num_kv_heads, self._scale = num_kv_heads, scale
        B, P = k_BPC.shape[:2]
        self._start = self._end = P
        self._kv = [torch.cat((part, part.new_zeros(B, room, part.shape[-1])), dim=1) for part in (k_BPC, v_BPC)]
        self._bias = k_BPC.new_full((B, 1, P + room), -torch.inf)
        self._bias[:, :, :P] = 0.0
        self._ragged = hidden_BP is not None  # rows see different columns
        self._all_seen = False  # everything, by all that come next
        if hidden_BP is not None:
            self._bias[:, :, :P].masked_fill_(hidden_BP[:, None], -torch.inf)

    def begin(self, width: int, padding_BW: torch.Tensor | None) -> None:
        """`width` new tokens a row come next; those of shorter rows end where the longest's do. `padding_BW`: what
        precedes them, which only itself sees."""
        self._ragged |= padding_BW is not None
        self._all_seen = width == 1 and not self._ragged
        if self._all_seen:
            self._start, self._end = self._end, self._end + 1
            self._bias[:, :, self._start] = 0.0
            return
        self._bias = self._bias.repeat(1, width, 1)
        own = torch.ones(width, width, dtype=torch.bool, device=self._bias.device).triu(1)
        if padding_BW is not None:
            eye = torch.eye(width, dtype=torch.bool, device=own.device)
            own = (own | padding_BW[:, None, :]) & ~eye
        self._open(
            width, torch.zeros(own.shape, dtype=self._bias.dtype, device=own.device).masked_fill_(own, -torch.inf)
        )

    def follow(self) -> None:
        """The next node of each row follows what came last."""
        self._all_seen = not self._ragged
        self._start, self._end = self._end, self._end + 1
        if not self._all_seen:
            self._bias = self._bias[:, -1:]
            self._bias[:, :, self._start] = 0.0

    def branch(self, width: int) -> None:
        """The next `width` nodes follow each row's last token."""
        self._all_seen = False
        self._bias = self._bias[:, -1:].repeat(1, width, 1)
        self._open_nodes(width)

    def descend(self, parents_BK: torch.Tensor) -> None:
        """The next nodes are children of those at these places among the ones before."""
        self._bias = self._bias.gather(1, parents_BK[:, :, None].expand(-1, -1, self._bias.shape[-1]))
        self._open_nodes(parents_BK.shape[1])

    def _open_nodes(self, width: int) -> None:
        own = self._bias.new_full((width, width), -torch.inf)
        self._open(width, own.fill_diagonal_(0.0))

    def _open(self, width: int, own: torch.Tensor) -> None:
        self._start, self._end = self._end, self._end + width
        self._bias[:, :, self._start : self._end] = own

    def __call__(self, q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor) -> torch.Tensor:
        """[B * width, H * D] of the tokens or nodes that were announced, row by row."""
        B, end, D = self._bias.shape[0], self._end, q_NHD.shape[-1]
        for cache, new in zip(self._kv, (k_NKD, v_NKD), strict=True):
            cache[:, self._start : end] = new.reshape(B, end - self._start, -1)
        k, v = (cache[:, :end].view(B, end, self._num_kv_heads, D).transpose(1, 2) for cache in self._kv)
        q = q_NHD.view(B, end - self._start, -1, D).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if self._all_seen else self._bias[:, None, :, :end],
            scale=self._scale,
            enable_gqa=q.shape[1] != self._num_kv_heads,
        )
        return out.transpose(1, 2).reshape(q_NHD.shape[0], -1)

    def newest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, W, C] of the last call."""
        k, v = (cache[:, self._start : self._end] for cache in self._kv)
        return k, v
