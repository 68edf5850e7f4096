"""Batch-invariant attention: a query's bits do not depend on the other rows, nor on how its prompt was chunked.

Libraries choose the order of a product's sums by its shape. So all products have one shape, and sums run over blocks of
keys that begin where the sequence does. Online softmax as in Milakov and Gimelshein 2018, section 3.

Legend: T tokens of the step, B blocks of Q queries of one row, L keys, N keys of a block, H query heads, K key/value
heads, G = H / K, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..arguments import RowSpan, first_seen
from ..kv_cache import KvCache
from ..transfer import to_device
from .attention import gather_keys, gather_values, plain_outputs, scaled_queries
from .attention_layout import tree_paths

_QUERIES = 8
_KEYS = 64


@dataclass(frozen=True)
class DeterministicAttention:
    """Blocks of queries and blocks of keys of one step and window."""

    queries_BQ: torch.Tensor  # indices into the step's tokens; a short block repeats its last one
    blocks_BN: tuple[tuple[torch.Tensor, torch.Tensor], ...]  # slots [B, N], and [B, Q, N] bool: hidden
    cap: float | None = None

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        _, H, D = q_THD.shape
        K = kv.k_SKD.shape[1]
        G, Q = H // K, _QUERIES
        dtype = q_THD.dtype
        q_THD = scaled_queries(q_THD, kv)
        B = len(self.queries_BQ)
        q_BKMD = q_THD[self.queries_BQ].float().view(B, Q, K, G, D).transpose(1, 2).reshape(B * K, Q * G, D) * scale
        V = kv.value_dim
        acc = q_BKMD.new_zeros((B * K, Q * G, V))
        largest = q_BKMD.new_full((B * K, Q * G, 1), float("-inf"))
        total = torch.zeros_like(largest)
        if sinks_H is not None:  # as the first key, without a value
            largest.view(B, K, Q, G, 1).copy_(sinks_H.float().view(K, 1, G, 1))
            total.fill_(1)
        for block, (slots_BN, hidden_BQN) in enumerate(self.blocks_BN):
            slots = slots_BN.flatten()
            # Of keys that a run does not have, the position is any.
            positions = torch.arange(block * _KEYS, (block + 1) * _KEYS, device=slots.device).repeat(B)
            k, v = (
                found.view(B, _KEYS, K, -1).transpose(1, 2).flatten(0, 1)
                for found in (gather_keys(kv, slots, positions, torch.float32), gather_values(kv, slots, torch.float32))
            )
            scores = torch.bmm(q_BKMD, k.transpose(1, 2)).view(B, K, Q, G, _KEYS)
            if self.cap is not None:
                scores = self.cap * torch.tanh(scores / self.cap)
            scores = scores.masked_fill(hidden_BQN[:, None, :, None], float("-inf")).view(B * K, Q * G, _KEYS)
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            base = torch.where(new == float("-inf"), 0.0, new)
            weights, shrink = torch.exp(scores - base), torch.exp(largest - base)
            total = total * shrink + weights.sum(-1, keepdim=True)
            acc = acc * shrink + torch.bmm(weights, v)
            largest = new
        out_BQHD = (acc / total).view(B, K, Q, G, V).transpose(1, 2).reshape(B * Q, H, V).to(q_THD.dtype)
        out_THD = q_THD.new_empty((len(q_THD), H, V))
        out_THD[self.queries_BQ.flatten()] = out_BQHD  # a repeated query has the same output
        return plain_outputs(out_THD, kv).to(dtype)


class _Run(NamedTuple):
    """Consecutive places of one sequence: keys from the sequence's start, queries at the last of them."""

    tokens_T: np.ndarray  # indices into the step's tokens
    slots_L: np.ndarray


def deterministic_attention(
    rows: Sequence[RowSpan],
    *,
    page_size: int,
    window: int | None,
    device: torch.device,
    cap: float | None = None,
) -> DeterministicAttention:
    """Prepare causal attention over `rows`; the arguments are those of `attention_layout` and `paged_attention`.

    A draft tree is computed path by path: the keys of a node's ancestors take the places in their blocks that they
    would have in plain decoding, wherever they lie in the cache.
    """
    runs = _runs(rows, page_size)
    num_keys = -(-max(len(run.slots_L) for run in runs) // _KEYS) * _KEYS
    place_L = np.arange(num_keys)
    queries: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    hidden: list[np.ndarray] = []
    for run in runs:
        T, L = len(run.tokens_T), len(run.slots_L)
        num_blocks = -(-T // _QUERIES)
        own = np.minimum(np.arange(num_blocks * _QUERIES), T - 1)
        queries.append(run.tokens_T[own].reshape(num_blocks, _QUERIES))
        slots.append(np.broadcast_to(run.slots_L[np.minimum(place_L, L - 1)], (num_blocks, num_keys)))
        place_T = L - T + own
        hidden_TL = place_L > place_T[:, None]
        if window is not None:
            hidden_TL |= place_L < first_seen(place_T[:, None], window)
        hidden.append(hidden_TL.reshape(num_blocks, _QUERIES, num_keys))
    arrays = [np.concatenate(queries)]
    slots_BL, hidden_BQL = np.concatenate(slots), np.concatenate(hidden)
    for begin in range(0, num_keys, _KEYS):
        block = slice(begin, begin + _KEYS)
        arrays += [slots_BL[:, block].copy(), hidden_BQL[:, :, block].copy()]
    queries_BQ, *tensors = to_device(arrays, device)
    return DeterministicAttention(queries_BQ, tuple(zip(tensors[::2], tensors[1::2], strict=True)), cap)


def _runs(rows: Sequence[RowSpan], page_size: int) -> list[_Run]:
    """Return a run for each row's tokens before its tree, and one for each path of the tree."""
    runs: list[_Run] = []
    start = 0
    for row in rows:
        place_L = np.arange(row.first_position + row.num_tokens)
        slots_L = row.pages[place_L // page_size] * page_size + place_L % page_size
        num_before = row.num_tokens - len(row.tree)  # of the row's tokens
        first_node = row.first_position + num_before  # its place
        if num_before:
            runs.append(_Run(start + np.arange(num_before), slots_L[:first_node]))
        for nodes, num_new in tree_paths(row.tree):
            path_L = np.concatenate((slots_L[:first_node], slots_L[first_node + nodes]))
            runs.append(_Run(start + num_before + nodes[-num_new:], path_L))
        start += row.num_tokens
    return runs
