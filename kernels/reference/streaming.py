"""Attention with sinks and a rolling window (Xiao et al. 2023, StreamingLLM), for outputs without end.

A query attends to the first S tokens, its sinks, and to the last W. Positions are those within what is kept: the sinks
have 0 to S - 1, the window follows them. Rotary scores depend on distances alone, and those within the window stay as
they are. So keys are stored rotated by their places in the sequence, and only the query that meets the sinks is turned
back, to the end of what is kept.

Legend: T tokens of the step, H query heads, K key/value heads, G = H / K, D head size, L keys, N queries of a block,
S sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..arguments import RowSpan
from ..kv_cache import KvCache
from .attention import gather_keys, gather_values, plain_outputs, scaled_queries
from .layers import apply_rope

# Rotations by negative distances [T], without attention factors -> cos, sin [T, 1, D].
TurnBack = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

_BLOCK = 128  # queries of a row that are computed at once


class StreamingSizes(NamedTuple):
    """Tokens that a query attends to."""

    window: int  # W, its own included
    num_sinks: int  # S


class StreamingAttention:
    """Attention of a step's rows, whose queries and keys are rotated by their places. Rows have no draft trees."""

    def __init__(
        self,
        rows: Sequence[RowSpan],
        sizes: StreamingSizes,
        *,
        page_size: int,
        turn_back: TurnBack,
        device: torch.device,
        cap: float | None,
    ) -> None:
        self._rows, self._sizes, self._cap, self._device = rows, sizes, cap, device
        places_T = np.concatenate([np.arange(row.first_position, row.first_position + row.num_tokens) for row in rows])
        beyond_T = np.maximum(places_T - (sizes.window + sizes.num_sinks - 1), 0)
        self._turned = turn_back(torch.from_numpy(beyond_T).to(device))
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []  # of each row: places that it sees, and their slots
        for row in rows:
            assert not row.tree
            end = row.first_position + row.num_tokens
            begin = max(sizes.num_sinks, row.first_position - sizes.window + 1)
            place_L = np.concatenate((np.arange(min(sizes.num_sinks, end)), np.arange(begin, end)))
            slots_L = row.pages[place_L // page_size] * page_size + place_L % page_size
            self._kept.append((torch.from_numpy(place_L).to(device), torch.from_numpy(slots_L).to(device)))

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute attention as `Attention.attend` does."""
        dtype = q_THD.dtype
        turned_THD = apply_rope(q_THD.float(), *self._turned).to(q_THD.dtype)
        q_THD, turned_THD = scaled_queries(q_THD, kv), scaled_queries(turned_THD, kv)
        parts: list[torch.Tensor] = []
        for row, kept in zip(self._rows, self._kept, strict=True):
            for start in range(0, row.num_tokens, _BLOCK):
                at = sum(map(len, parts))
                own = slice(at, at + min(_BLOCK, row.num_tokens - start))
                first = row.first_position + start
                parts.append(self._block(q_THD[own], turned_THD[own], kv, kept, first, scale, sinks_H))
        return plain_outputs(torch.cat(parts), kv).to(dtype)

    def _block(
        self,
        q_NHD: torch.Tensor,
        turned_NHD: torch.Tensor,
        kv: KvCache,
        kept: tuple[torch.Tensor, torch.Tensor],
        first: int,
        scale: float,
        sinks_H: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute a block of a row's queries, which begins at place `first`."""
        N, H, D = q_NHD.shape
        K, (window, num_sinks) = kv.k_SKD.shape[1], self._sizes
        place_N = torch.arange(first, first + N, device=self._device)[:, None]
        places_L, slots_L = kept
        seen_L = (places_L < first + N) & ((places_L < num_sinks) | (places_L > first - window))
        places_L, slots_L = places_L[seen_L], slots_L[seen_L]
        count = min(num_sinks, first + N)  # sinks come first
        k_KDL = gather_keys(kv, slots_L, places_L, q_NHD.dtype).view(len(slots_L), K, -1).permute(1, 2, 0)
        v_KLD = gather_values(kv, slots_L, q_NHD.dtype).view(len(slots_L), K, -1).transpose(0, 1)
        scores = [
            torch.matmul(queries.view(N, K, H // K, D).permute(1, 2, 0, 3).flatten(1, 2), keys).view(K, H // K, N, -1)
            for queries, keys in ((turned_NHD, k_KDL[..., :count]), (q_NHD, k_KDL[..., count:]))
        ]
        scores_KGNL = scale * torch.cat(scores, dim=-1).float()
        if self._cap is not None:
            scores_KGNL = self._cap * torch.tanh(scores_KGNL / self._cap)
        hidden_NL = places_L > place_N
        hidden_NL[:, count:] |= places_L[count:] <= place_N - window
        scores_KGNL = scores_KGNL.masked_fill(hidden_NL, float("-inf"))
        if sinks_H is not None:  # logits without values, which are the model's own
            own_KGN1 = sinks_H.float().view(K, H // K, 1, 1).expand(-1, -1, N, 1)
            scores_KGNL = torch.cat((scores_KGNL, own_KGN1), dim=-1)
        weights = scores_KGNL.softmax(dim=-1)[..., : len(places_L)].to(v_KLD.dtype)
        out_KGND = torch.matmul(weights.flatten(1, 2), v_KLD).view(K, H // K, N, -1)
        return out_KGND.permute(2, 0, 1, 3).reshape(N, H, -1)
