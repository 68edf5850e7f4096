"""Compiled attention of a few queries, which reads keys and values from their slots: no gathering, no padding.

Legend: T tokens, R rows, L keys of the longest row, S slots, H query heads, K key/value heads, G = H / K, D head size.
"""

from __future__ import annotations

import numpy as np

from .attention_spans import Bits
from .compiled import Floats, Ints, compiled, exp


@compiled("void(float32[::1], float32[::1], float32[:,:,::1], int64[::1], int64, int64, float32[:,::1])")
def _score(p_D: Floats, q_D: Floats, k_SKD: Floats, slots_L: Ints, of: int, L: int, scores_2L: Floats) -> None:
    """Write the products of two queries and the keys of key/value head `of`."""
    for key in range(0, L, 4):
        k0, k1 = k_SKD[slots_L[key], of], k_SKD[slots_L[key + 1], of]
        k2, k3 = k_SKD[slots_L[key + 2], of], k_SKD[slots_L[key + 3], of]
        a0 = a1 = a2 = a3 = np.float32(0)
        b0 = b1 = b2 = b3 = np.float32(0)
        for d in range(len(p_D)):
            p, q = p_D[d], q_D[d]
            a0 += p * k0[d]
            a1 += p * k1[d]
            a2 += p * k2[d]
            a3 += p * k3[d]
            b0 += q * k0[d]
            b1 += q * k1[d]
            b2 += q * k2[d]
            b3 += q * k3[d]
        scores_2L[0, key], scores_2L[0, key + 1], scores_2L[0, key + 2], scores_2L[0, key + 3] = a0, a1, a2, a3
        scores_2L[1, key], scores_2L[1, key + 1], scores_2L[1, key + 2], scores_2L[1, key + 3] = b0, b1, b2, b3


@compiled("void(float32[::1], int64, float32)")
def _softmax(scores_L: Floats, L: int, scale: float) -> None:
    """Replace the first L scores by their softmax, and the four after them by zeros."""
    highest = scores_L[0]
    for key in range(L):
        highest = max(highest, scores_L[key])
    total = np.float32(0)
    for key in range(L):
        weight = exp((scores_L[key] - highest) * scale)
        scores_L[key] = weight
        total += weight
    for key in range(L):
        scores_L[key] /= total
    scores_L[L : L + 4] = 0


@compiled("void(float32[:,:,::1], int64[::1], int64, int64, float32[:,::1], float32[::1], float32[::1])")
def _weighted_sum(v_SKD: Floats, slots_L: Ints, of: int, L: int, weights_2L: Floats, p_D: Floats, q_D: Floats) -> None:
    """Write the values of head `of`, summed by the weights of two queries."""
    p_D[:] = 0
    q_D[:] = 0
    for key in range(0, L, 4):
        v0, v1 = v_SKD[slots_L[key], of], v_SKD[slots_L[key + 1], of]
        v2, v3 = v_SKD[slots_L[key + 2], of], v_SKD[slots_L[key + 3], of]
        u0, u1, u2, u3 = weights_2L[0, key], weights_2L[0, key + 1], weights_2L[0, key + 2], weights_2L[0, key + 3]
        w0, w1, w2, w3 = weights_2L[1, key], weights_2L[1, key + 1], weights_2L[1, key + 2], weights_2L[1, key + 3]
        for d in range(len(p_D)):
            p = p_D[d] + u0 * v0[d] + u1 * v1[d] + u2 * v2[d] + u3 * v3[d]
            q = q_D[d] + w0 * v0[d] + w1 * v1[d] + w2 * v2[d] + w3 * v3[d]
            p_D[d], q_D[d] = p, q


@compiled(
    "void(float32[:,:,::1], float32[:,:,::1], float32[:,:,::1], int64[:,::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], uint64[::1], float32, float32[:,:,::1])"
)
def attend(
    q_THD: Floats,
    k_SKD: Floats,
    v_SKD: Floats,
    slots_RL: Ints,
    row_T: Ints,
    begin_T: Ints,
    end_T: Ints,
    tree_T: Ints,
    ancestors_T: Bits,
    scale: float,
    out_THD: Floats,
) -> None:
    """Write `softmax(scale * q k^T) v` over the keys that each token sees, in two passes: scores, then the values' sum.

    The arrays from `slots_RL` to `ancestors_T` are those of `AttentionSpans`. A token sees at least itself.
    """
    T, H, D = q_THD.shape
    K = k_SKD.shape[1]
    G = H // K
    slots_L = np.empty(slots_RL.shape[1] + 4, dtype=np.int64)
    scores_2L = np.empty((2, slots_RL.shape[1] + 4), dtype=np.float32)
    spare_D = np.empty(D, dtype=np.float32)
    for t in range(T):
        row_L = slots_RL[row_T[t]]
        L = 0
        for place in range(begin_T[t], end_T[t]):
            node = place - tree_T[t]
            if node < 0 or (ancestors_T[t] >> np.uint64(node)) & np.uint64(1):
                slots_L[L] = row_L[place]
                L += 1
        for more in range(4):  # keys are taken four at a time: the surplus repeats the last one, with weight 0
            slots_L[L + more] = slots_L[L - 1]
        for of in range(K):
            for head in range(of * G, (of + 1) * G, 2):  # and two heads at a time: an odd last one is computed twice
                alone = head + 1 == (of + 1) * G
                other_D = q_THD[t, head] if alone else q_THD[t, head + 1]
                other_out_D = spare_D if alone else out_THD[t, head + 1]
                _score(q_THD[t, head], other_D, k_SKD, slots_L, of, L, scores_2L)
                _softmax(scores_2L[0], L, scale)
                _softmax(scores_2L[1], L, scale)
                _weighted_sum(v_SKD, slots_L, of, L, scores_2L, out_THD[t, head], other_out_D)
