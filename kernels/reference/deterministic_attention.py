"""Attention in which a query's numbers do not depend on who else is in the step, nor on how a prompt was cut into
chunks: all products have one shape, and sums run over blocks of keys that begin where the sequence does.

Libraries choose how they add up a product by its shape, so equal shapes are what makes equal bits. Online softmax as in
Milakov and Gimelshein 2018, section 3.

Legend: T tokens of the step, B blocks of Q queries of one row, L keys, N keys of a block, H query heads, K key/value
heads, G = H / K, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..arguments import RowSpan
from ..kv_cache import KvCache
from ..transfer import to_device
from .attention import gather_slots, scale_heads
from .attention_layout import ancestors

_QUERIES = 8
_KEYS = 64


@dataclass(frozen=True)
class DeterministicAttention:
    queries_BQ: torch.Tensor  # indices into the step's tokens; a short block repeats its last one
    blocks_BN: tuple[tuple[torch.Tensor, torch.Tensor], ...]  # slots [B, N], and [B, Q, N] bool: hidden

    def attend(self, q_THD: torch.Tensor, kv: KvCache, scale: float) -> torch.Tensor:
        _, H, D = q_THD.shape
        K = kv.k_SKD.shape[1]
        G, Q = H // K, _QUERIES
        if kv.k_scale_K is not None:
            q_THD = scale_heads(q_THD, kv.k_scale_K)
        B = len(self.queries_BQ)
        q_BKMD = q_THD[self.queries_BQ].float().view(B, Q, K, G, D).transpose(1, 2).reshape(B * K, Q * G, D) * scale
        acc = torch.zeros_like(q_BKMD)
        largest = q_BKMD.new_full((B * K, Q * G, 1), float("-inf"))
        total = torch.zeros_like(largest)
        for slots_BN, hidden_BQN in self.blocks_BN:
            k, v = (
                gather_slots(cache_SKD, slots_BN.flatten(), torch.float32)
                .view(B, _KEYS, K, D)
                .transpose(1, 2)
                .reshape(B * K, _KEYS, D)
                for cache_SKD in (kv.k_SKD, kv.v_SKD)
            )
            scores = torch.bmm(q_BKMD, k.transpose(1, 2)).view(B, K, Q, G, _KEYS)
            scores = scores.masked_fill(hidden_BQN[:, None, :, None], float("-inf")).view(B * K, Q * G, _KEYS)
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            base = torch.where(new == float("-inf"), 0.0, new)
            weights, shrink = torch.exp(scores - base), torch.exp(largest - base)
            total = total * shrink + weights.sum(-1, keepdim=True)
            acc = acc * shrink + torch.bmm(weights, v)
            largest = new
        out_BQHD = (acc / total).view(B, K, Q, G, D).transpose(1, 2).reshape(B * Q, H, D).to(q_THD.dtype)
        out_THD = torch.empty_like(q_THD)
        out_THD[self.queries_BQ.flatten()] = out_BQHD  # a query that is repeated is so with the same numbers
        return out_THD if kv.v_scale_K is None else scale_heads(out_THD, kv.v_scale_K)


def deterministic_attention(
    rows: Sequence[RowSpan], *, page_size: int, window: int | None, device: torch.device
) -> DeterministicAttention:
    """Causal attention over `rows`; the arguments as `attention_layout` has them."""
    most = max(row.first_position + row.num_tokens for row in rows)
    num_keys = -(-most // _KEYS) * _KEYS
    queries: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    hidden: list[np.ndarray] = []
    start = 0
    for row in rows:
        num_blocks = -(-row.num_tokens // _QUERIES)
        own = np.minimum(np.arange(num_blocks * _QUERIES), row.num_tokens - 1)
        queries.append((start + own).reshape(num_blocks, _QUERIES))
        places = np.minimum(np.arange(num_keys), row.first_position + row.num_tokens - 1)
        row_slots = row.pages[places // page_size] * page_size + places % page_size
        slots.append(np.broadcast_to(row_slots, (num_blocks, num_keys)))
        hidden.append(_hidden(row, num_keys, window)[own].reshape(num_blocks, _QUERIES, num_keys))
        start += row.num_tokens
    arrays = [np.concatenate(queries)]
    slots_BL, hidden_BQL = np.concatenate(slots), np.concatenate(hidden)
    for begin in range(0, num_keys, _KEYS):
        block = slice(begin, begin + _KEYS)
        arrays += [slots_BL[:, block].copy(), hidden_BQL[:, :, block].copy()]
    queries_BQ, *tensors = to_device(arrays, device)
    return DeterministicAttention(queries_BQ, tuple(zip(tensors[::2], tensors[1::2], strict=True)))


def _hidden(row: RowSpan, num_keys: int, window: int | None) -> np.ndarray:
    """Which keys [T, L] the row's tokens do not see."""
    place_T, place_L = row.first_position + np.arange(row.num_tokens), np.arange(num_keys)
    hidden_TL = place_L > place_T[:, None]
    position_T, position_L = place_T.copy(), place_L.copy()
    if row.tree:
        visible_NN, depth_N = ancestors(row.tree)
        first = row.first_position + row.num_tokens - len(row.tree)
        nodes = slice(first, first + len(row.tree))
        hidden_TL[-len(row.tree) :, nodes] = ~visible_NN
        position_T[-len(row.tree) :] = position_L[nodes] = first - 1 + depth_N
    if window is not None:
        hidden_TL |= position_L <= position_T[:, None] - window
    return hidden_TL
