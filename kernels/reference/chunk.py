"""Causal attention of one row's chunk, block by block of queries: what a chunk costs when it is long.

torch's fused attention on a CPU multiplies each query head by itself, and reads every key for every query when a mask
says what is visible. Here the heads that share a key head are rows of one product, a block of queries meets the keys up
to its own last one, and only the square on the diagonal is masked. A block's scores stay in the processor's cache.

Legend: T queries, L keys, H query heads, K key/value heads, G = H / K, D head size, B queries of a block, N key/value
heads at a time, R = B * G rows of a product.
"""

from __future__ import annotations

import torch

_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
# Of a key head's product: rows that are worth a call, and bytes of scores that stay in a processor's cache.
_ROWS, _SCORES = 512, 2 << 20


def attend_chunk(q_THD: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, scale: float) -> torch.Tensor:
    """`softmax(scale * q k^T) v`, [T, H, D], of queries that are the last T of L positions; each sees the keys up to
    its own. The softmax adds up in float32 at least, whatever the type of its scores."""
    T, H, D = q_THD.shape
    L, K = k_LKD.shape[:2]
    G = H // K
    size = max(16, min(_ROWS, _SCORES // (L * q_THD.element_size())) // G)
    by_onednn = q_THD.dtype == torch.float32 and q_THD.device.type == "cpu" and _HAS_ONEDNN
    # Key heads in one call: with one for each thread, calls are as few as can be, and what a thread has written it
    # reads itself.
    at_once = 1 if by_onednn or q_THD.device.type != "cpu" else torch.get_num_threads()
    out_TKGD = q_THD.new_empty((T, K, G, D))
    q_KTGD = (q_THD * scale).view(T, K, G, D).transpose(0, 1)
    k_KLD, v_KLD = (x_LKD.transpose(0, 1).contiguous() for x_LKD in (k_LKD, v_LKD))
    v_KDL = v_KLD.transpose(1, 2).contiguous() if by_onednn else v_KLD.transpose(1, 2)
    hidden_BB = q_THD.new_full((size, size), float("-inf")).triu_(1)
    for first in range(0, K, at_once):
        heads = slice(first, first + at_once)
        for start in range(0, T, size):
            end = min(start + size, T)
            num_keys = L - T + end
            q_NRD = q_KTGD[heads, start:end].flatten(1, 2)
            scores = _products(q_NRD, k_KLD[heads, :num_keys], by_onednn)
            diagonal_NBGB = scores.unflatten(1, (end - start, G))[..., L - T + start :]
            diagonal_NBGB += hidden_BB[: end - start, None, : end - start]
            weights = torch.softmax(scores, dim=-1)
            out_NRD = _products(weights, v_KDL[heads, :, :num_keys], by_onednn)
            out_TKGD[start:end, heads] = out_NRD.unflatten(1, (end - start, G)).transpose(0, 1)
    return out_TKGD.view(T, H, D)


def _products(x: torch.Tensor, y: torch.Tensor, by_onednn: bool) -> torch.Tensor:
    """x y^T of each head."""
    if by_onednn:
        # torch's own goes to MKL, which takes twice the time where the processor is not Intel's.
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x[0], y[0].contiguous(), None, "none", [], "")
        return product[None]
    return torch.bmm(x, y.transpose(1, 2))
