"""Layout of a step's attention in plain torch: index tensors and masks, computed once and used by every layer.

Rows of one step differ in queries (a decode row has one, a prefill chunk many) and in keys. Rows of like size are
padded to one size and computed together; sizes within a factor of two share a group, so at most half of the work is
padding in either direction. Padding repeats the row's *own* last query and last key, so nothing of another sequence's
memory, NaN included, enters a row's sums.

Legend: R rows, B rows of a group, T queries of a row, L keys of a row, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..arguments import RowSpan, first_seen

_MIN_KEYS = 256  # rows with fewer keys than this are cheap enough to be padded together
_MIN_CHUNK = 32  # queries from which on a row is computed by itself, block by block
_ALONE = 128  # queries from which on a row is not padded to share its products with others
_MAX_KEYS = 2048  # of a group: gathered keys should still be in a core's cache when they are used


@dataclass(frozen=True)
class PaddedRows:
    """Rows of like size. `queries` are indices into the step's tokens; None means all of them, in order."""

    num_rows: int
    num_queries: int
    num_keys: int
    queries: torch.Tensor | None  # [B * T] int64
    slots: torch.Tensor  # [B * L] int64
    positions: torch.Tensor  # [B * L] int64, of the keys
    bias: torch.Tensor | None  # [B, 1, T, L], 0 where the key is visible, else -inf; None: all are
    causal: bool  # one row, whose queries are the last of its keys, and each sees those up to itself


@dataclass(frozen=True)
class AttentionLayout:
    """Groups of rows, and the index of each token's output in their concatenation (None: already in order)."""

    groups: tuple[PaddedRows, ...]
    order: torch.Tensor | None  # [tokens] int64


def attention_layout(
    rows: Sequence[RowSpan],
    *,
    page_size: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionLayout:
    """Return the layout of causal attention over `rows`, whose tokens are concatenated in order.

    With a `window` W, position i sees the positions (i - W, i], or those of its `Chunk`. `dtype` is the queries'.
    """
    num_R = np.array([row.num_tokens for row in rows])
    first_R = np.array([row.first_position for row in rows])
    begin_R = np.zeros_like(first_R) if window is None else np.maximum(first_seen(first_R, window), 0)
    starts_R = np.cumsum(num_R) - num_R
    num_keys_R = first_R + num_R - begin_R

    groups: list[PaddedRows] = []
    order = np.empty(int(num_R.sum()), dtype=np.int64)
    in_order = True
    offset = 0
    for rows_B in _groups_of_like_size(num_R, num_keys_R):
        num_B, first_B, begin_B = num_R[rows_B, None], first_R[rows_B, None], begin_R[rows_B, None]
        T, L = int(num_B.max()), int(num_keys_R[rows_B].max())
        last_B = first_B + num_B - 1
        local_BT = np.minimum(np.arange(T), num_B - 1)
        query_BT = starts_R[rows_B, None] + local_BT
        key_BL = begin_B + np.arange(L)
        place_BL = np.minimum(key_BL, last_B)
        slots_BL = _slots([rows[r].pages for r in rows_B], place_BL, page_size)
        trees = {b: rows[r] for b, r in enumerate(rows_B.tolist()) if rows[r].tree}
        seen_BT = _last_seen(first_B + local_BT, [rows[r] for r in rows_B])
        causal = window is None and len(rows_B) == 1 and T >= _MIN_CHUNK and not trees and not rows[rows_B[0]].blocks
        if causal:
            bias = None
        elif trees:
            bias = _tree_bias(first_B + local_BT, seen_BT, key_BL, window, trees, dtype, device)
        else:
            bias = _bias(first_B + local_BT, seen_BT, key_BL, window, dtype, device)

        order[query_BT] = offset + np.arange(query_BT.size).reshape(query_BT.shape)
        offset += query_BT.size
        every = query_BT.size == order.size and bool((query_BT.ravel() == np.arange(order.size)).all())
        in_order &= every
        groups.append(
            PaddedRows(
                num_rows=len(rows_B),
                num_queries=T,
                num_keys=L,
                queries=None if every else torch.from_numpy(query_BT.ravel()).to(device),
                slots=torch.from_numpy(slots_BL.ravel()).to(device),
                positions=torch.from_numpy(_key_positions(place_BL, trees).ravel()).to(device),
                bias=bias,
                causal=causal,
            )
        )
    return AttentionLayout(tuple(groups), None if in_order else torch.from_numpy(order).to(device))


def _groups_of_like_size(num_R: np.ndarray, num_keys_R: np.ndarray) -> list[np.ndarray]:
    """Return the indices of the rows of each group, in order."""
    if len(num_R) == 1:
        return [np.zeros(1, dtype=np.int64)]
    size_R = 64 * _size_class(num_R) + _size_class(np.maximum(num_keys_R, _MIN_KEYS))
    groups: list[np.ndarray] = []
    for size in np.unique(size_R):
        rows = np.flatnonzero(size_R == size)
        many = num_R[rows].min() >= _ALONE
        step = 1 if many else max(1, _MAX_KEYS // int(num_keys_R[rows].max()))
        groups += (rows[start : start + step] for start in range(0, len(rows), step))
    return groups


def _size_class(n: np.ndarray) -> np.ndarray:
    """Return the least c with n <= 2**c."""
    return np.asarray(np.ceil(np.log2(n)), dtype=np.int64)


def _slots(pages: list[np.ndarray], positions_BL: np.ndarray, page_size: int) -> np.ndarray:
    table = np.zeros((len(pages), max(map(len, pages))), dtype=np.int64)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own
    page_BL, within_BL = np.divmod(positions_BL, page_size)
    return np.take_along_axis(table, page_BL, axis=1) * page_size + within_BL


def _last_seen(query_BT: np.ndarray, rows: Sequence[RowSpan]) -> np.ndarray:
    """Return the last place that each query sees, by its place: itself, or the end of its block."""
    seen_BT = query_BT
    for b, row in enumerate(rows):
        for first, end in row.blocks:
            if seen_BT is query_BT:
                seen_BT = query_BT.copy()
            seen_BT[b, (query_BT[b] >= first) & (query_BT[b] < end)] = end - 1
    return seen_BT


def _bias(
    query_BT: np.ndarray,
    seen_BT: np.ndarray,
    key_BL: np.ndarray,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor | None:
    all_near = window is None or key_BL[:, 0].min() >= first_seen(query_BT.max(), window)
    if key_BL[:, -1].max() <= seen_BT.min() and all_near:
        return None
    q_BT1, seen_BT1 = (torch.from_numpy(place).to(device)[:, :, None] for place in (query_BT, seen_BT))
    k_B1L = torch.from_numpy(key_BL).to(device)[:, None, :]
    hidden = k_B1L > seen_BT1
    if window is not None:
        hidden |= k_B1L < first_seen(q_BT1, window)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))[:, None]


def _tree_bias(
    query_BT: np.ndarray,
    seen_BT: np.ndarray,
    key_BL: np.ndarray,
    window: int | None,
    trees: Mapping[int, RowSpan],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return the bias of a group with trees in some of its rows. Queries and keys are given by place."""
    hidden_BTL = key_BL[:, None, :] > seen_BT[:, :, None]
    query_position_BT, key_position_BL = query_BT.copy(), np.broadcast_to(key_BL, hidden_BTL.shape[::2]).copy()
    for b, row in trees.items():
        first_node = row.first_position + row.num_tokens - len(row.tree)
        visible_NN, depth_N = ancestors(row.tree)
        nodes_T, nodes_L = query_BT[b] - first_node, key_BL[b] - first_node  # index of the node; negative: none
        own_T, own_L = nodes_T >= 0, (nodes_L >= 0) & (nodes_L < len(row.tree))
        hidden_BTL[b][np.ix_(own_T, own_L)] = ~visible_NN[np.ix_(nodes_T[own_T], nodes_L[own_L])]
        query_position_BT[b, own_T] = first_node - 1 + depth_N[nodes_T[own_T]]
        key_position_BL[b, own_L] = first_node - 1 + depth_N[nodes_L[own_L]]
    if window is not None:
        hidden_BTL |= key_position_BL[:, None, :] < first_seen(query_position_BT[:, :, None], window)
    hidden = torch.from_numpy(hidden_BTL).to(device)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))[:, None]


def _key_positions(place_BL: np.ndarray, trees: Mapping[int, RowSpan]) -> np.ndarray:
    """Return the positions of keys, given by place: a node's is that of the last token before the tree plus its
    depth."""
    position_BL = place_BL.copy()
    for b, row in trees.items():
        first_node = row.first_position + row.num_tokens - len(row.tree)
        nodes_L = place_BL[b] - first_node
        position_BL[b, nodes_L >= 0] = first_node - 1 + ancestors(row.tree)[1][nodes_L[nodes_L >= 0]]
    return position_BL


def ancestors(tree: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return which nodes each node sees, bool [N, N], and its depth, 1 for the children of -1."""
    visible_NN = np.eye(len(tree), dtype=np.bool_)
    for node, parent in enumerate(tree):
        if parent >= 0:
            visible_NN[node] |= visible_NN[parent]
    return visible_NN, visible_NN.sum(axis=1)


def tree_paths(tree: Sequence[int]) -> list[tuple[np.ndarray, int]]:
    """Return the paths of a tree: of each leaf the nodes from the first level down to it, int64, and how many of them,
    the last ones, no earlier path has."""
    inner = set(tree)
    seen: set[int] = set()
    paths: list[tuple[np.ndarray, int]] = []
    for leaf in range(len(tree)):
        if leaf in inner:
            continue
        nodes, node = [leaf], tree[leaf]
        while node >= 0:
            nodes.append(node)
            node = tree[node]
        num_new = sum(node not in seen for node in nodes)
        seen.update(nodes)
        paths.append((np.array(nodes[::-1]), num_new))
    return paths
