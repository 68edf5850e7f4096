"""Attention of rows of one query each, read from the pages where they lie: nothing is gathered, nothing padded.

Legend: R rows, P pages of the longest, S slots, H query heads, K key/value heads, G = H / K, D head size, L keys.
"""

from __future__ import annotations

import numpy as np

from .compiled import Floats, Ints, compiled, exp


@compiled(
    "void(float32[:,:,::1], float32[:,:,::1], float32[:,:,::1], int64[:,::1], int64[::1], int64[::1], int64,"
    " float32, float32[:,:,::1])"
)
def decode_attention(
    q_RHD: Floats,
    k_SKD: Floats,
    v_SKD: Floats,
    pages_RP: Ints,
    begin_R: Ints,
    end_R: Ints,
    page_size: int,
    scale: float,
    out_RHD: Floats,
) -> None:
    """`softmax(scale * q k^T) v` over the places [begin, end) of each row's page table, in two passes: the scores, then
    the values' sum."""
    R, H, D = q_RHD.shape
    K = k_SKD.shape[1]
    G = H // K
    longest = 0
    for r in range(R):
        longest = max(longest, end_R[r] - begin_R[r])
    scores_GL = np.empty((G, longest), dtype=np.float32)
    for r in range(R):
        begin, L = begin_R[r], end_R[r] - begin_R[r]
        for head in range(K):
            for key in range(L):
                place = begin + key
                k_D = k_SKD[pages_RP[r, place // page_size] * page_size + place % page_size, head]
                for g in range(G):
                    q_D = q_RHD[r, head * G + g]
                    total = np.float32(0)
                    for d in range(D):
                        total += q_D[d] * k_D[d]
                    scores_GL[g, key] = total * scale
            for g in range(G):
                highest = scores_GL[g, 0]
                for key in range(L):
                    highest = max(highest, scores_GL[g, key])
                total = np.float32(0)
                for key in range(L):
                    weight = exp(scores_GL[g, key] - highest)
                    scores_GL[g, key] = weight
                    total += weight
                for key in range(L):
                    scores_GL[g, key] /= total
                out_RHD[r, head * G + g, :] = 0
            for key in range(L):
                place = begin + key
                v_D = v_SKD[pages_RP[r, place // page_size] * page_size + place % page_size, head]
                for g in range(G):
                    weight, out_D = scores_GL[g, key], out_RHD[r, head * G + g]
                    for d in range(D):
                        out_D[d] += weight * v_D[d]
