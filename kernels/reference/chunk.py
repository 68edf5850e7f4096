"""Causal attention of one row's chunk, block by block of queries: what a chunk costs when it is long.

torch's fused attention on a CPU multiplies each query head by itself, and reads every key for every query when a mask
says what is visible. Here the heads that share a key head are rows of one product, a block of queries meets the keys up
to its own last one, and only the square on the diagonal is masked. A block's scores stay in the processor's cache.

Legend: T queries, L keys, H query heads, K key/value heads, G = H / K, D head size, B queries of a block.
"""

from __future__ import annotations

import torch

_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_ROWS = 256  # of a block's product: 1024 keys' scores of so many are 1 MiB of float32


def attend_chunk(q_THD: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, scale: float) -> torch.Tensor:
    """`softmax(scale * q k^T) v`, [T, H, D], of queries that are the last T of L positions; each sees the keys up to
    its own. Scores and their softmax are float32 at least."""
    T, H, D = q_THD.shape
    L, K = k_LKD.shape[:2]
    G, size = H // K, max(16, _ROWS // (H // K))
    out_TKGD = q_THD.new_empty((T, K, G, D))
    q_TKGD = (q_THD * scale).view(T, K, G, D)
    wide = torch.promote_types(q_THD.dtype, torch.float32)
    hidden_BB = torch.full((size, size), float("-inf"), dtype=wide, device=q_THD.device).triu_(1)
    for head in range(K):
        k_LD, v_DL = k_LKD[:, head].contiguous(), v_LKD[:, head].t().contiguous()
        for start in range(0, T, size):
            end = min(start + size, T)
            num_keys = L - T + end
            q_BGD = q_TKGD[start:end, head]
            scores = _product(q_BGD.reshape(-1, D), k_LD[:num_keys]).to(wide)
            diagonal_BGB = scores.view(end - start, G, num_keys)[:, :, L - T + start :]
            diagonal_BGB += hidden_BB[: end - start, None, : end - start]
            weights = torch.softmax(scores, dim=-1).to(q_THD.dtype)
            out_TKGD[start:end, head] = _product(weights, v_DL[:, :num_keys].contiguous()).view(end - start, G, D)
    return out_TKGD.view(T, H, D)


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x y^T."""
    if x.dtype == torch.float32 and x.device.type == "cpu" and _HAS_ONEDNN:
        # torch's own goes to MKL, which takes twice the time where the processor is not Intel's.
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, y, None, "none", [], "")
        return product
    return x @ y.t()
