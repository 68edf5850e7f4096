"""Attention of a row's newest token, and then of the nodes of its growing tree.

The newest token attends to all tokens before it. A node attends to its row's tokens, its ancestors and itself. The
row's keys and values are gathered from the pages once; those of each pass are appended to the copy, not to the pages.

Legend: B rows, K frontier nodes, P tokens before the newest, C key/value heads times head size, H query heads, N heads
of queries, keys and values, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ....kernels import KvCache, Ops, RopeAndStoreArgs


class TreeAttention:
    """Call once for the newest tokens; before every further call `branch` or `descend`, or for chains `follow`."""

    def __init__(
        self,
        k_BPC: torch.Tensor,
        v_BPC: torch.Tensor,
        hidden_BP: torch.Tensor | None,
        *,
        room: int,
        num_kv_heads: int,
        scale: float,
        ops: Ops,
    ) -> None:
        """`room` is the number of tokens and nodes a row will have. `hidden_BP` masks the padding of shorter rows,
        whose keys and values are any finite numbers."""
        self._num_kv_heads, self._scale, self._ops = num_kv_heads, scale, ops
        B, P, C = k_BPC.shape
        self._start, self._end = P, P + 1
        k, v = (torch.cat((part, part.new_zeros(B, room, C)), dim=1) for part in (k_BPC, v_BPC))
        self._kv = KvCache(*(part.view(B * (P + room), num_kv_heads, -1) for part in (k, v)))
        self._slots_BL = torch.arange(B * (P + room), device=k.device).view(B, -1)
        self._bias = k_BPC.new_full((B, 1, P + room), -torch.inf)
        self._bias[:, :, : P + 1] = 0.0
        self._ragged = hidden_BP is not None  # rows differ in length
        self._all_seen = not self._ragged  # the next nodes attend to every column
        if hidden_BP is not None:
            self._bias[:, :, :P].masked_fill_(hidden_BP[:, None], -torch.inf)

    def follow(self) -> None:
        """Announce one node per row, the child of the last one."""
        self._all_seen = not self._ragged
        self._start, self._end = self._end, self._end + 1
        if not self._all_seen:
            self._bias = self._bias[:, -1:]
            self._bias[:, :, self._start] = 0.0

    def branch(self, width: int) -> None:
        """Announce `width` nodes per row, children of its last token."""
        self._all_seen = False
        self._bias = self._bias[:, -1:].repeat(1, width, 1)
        self._open_nodes(width)

    def descend(self, parents_BK: torch.Tensor) -> None:
        """Announce children of the nodes at these indices of the previous frontier."""
        self._bias = self._bias.gather(1, parents_BK[:, :, None].expand(-1, -1, self._bias.shape[-1]))
        self._open_nodes(parents_BK.shape[1])

    def _open_nodes(self, width: int) -> None:
        own = self._bias.new_full((width, width), -torch.inf)
        self._start, self._end = self._end, self._end + width
        self._bias[:, :, self._start : self._end] = own.fill_diagonal_(0.0)

    def __call__(self, qkv_NND: torch.Tensor, cos_N1D: torch.Tensor, sin_N1D: torch.Tensor) -> torch.Tensor:
        """Attend with the announced tokens or nodes, row by row. Returns [B * width, H * D].

        Takes their heads of queries, keys and values, and their angles.
        """
        (B, length), end, D = self._slots_BL.shape, self._end, qkv_NND.shape[-1]
        slots_N = self._slots_BL[:, self._start : end].flatten().contiguous()
        num_heads = qkv_NND.shape[1] - 2 * self._num_kv_heads
        args = RopeAndStoreArgs(cos_N1D, sin_N1D, slots_N, num_heads, eps=0.0)
        q_NHD = self._ops.rope_and_store(qkv_NND, self._kv, None, args)
        k, v = (
            part.view(B, length, self._num_kv_heads, D)[:, :end].transpose(1, 2)
            for part in (self._kv.k_SKD, self._kv.v_SKD)
        )
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
