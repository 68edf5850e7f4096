"""Attention of a few queries, read from the slots where their keys lie: nothing is gathered, nothing padded.

Legend: T tokens, R rows, L keys of the longest row, S slots, P pages, H query heads, K key/value heads, G = H / K,
D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import Floats, Ints, compiled, exp

Bits = NDArray[np.uint64]
NO_TREE = np.iinfo(np.int64).max


class Sight(NamedTuple):
    """What each token sees: of its row's places, those in [begin, end), but of those from `tree` on only the ones whose
    bits in `ancestors` are set, the lowest for the first."""

    slots_RL: Ints  # where the rows' keys lie, by place
    row_T: Ints
    begin_T: Ints
    end_T: Ints
    tree_T: Ints  # NO_TREE: none of its places is a node's
    ancestors_T: Bits


@compiled("void(int64[:,::1], int64, int64[:,::1])")
def find_slots(pages_RP: Ints, page_size: int, slots_RL: Ints) -> None:
    R, L = slots_RL.shape
    for r in range(R):
        for place in range(0, L, page_size):
            first = pages_RP[r, place // page_size] * page_size
            for k in range(place, min(place + page_size, L)):
                slots_RL[r, k] = first + k - place


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
    """`softmax(scale * q k^T) v` over what each token sees (`Sight`), in two passes: the scores, then the values' sum.
    A token sees itself at least."""
    T, H, D = q_THD.shape
    K = k_SKD.shape[1]
    G = H // K
    slots_L = np.empty(slots_RL.shape[1] + 4, dtype=np.int64)
    scores_L = np.empty(slots_RL.shape[1] + 4, dtype=np.float32)
    for t in range(T):
        row_L = slots_RL[row_T[t]]
        L = 0
        for place in range(begin_T[t], end_T[t]):
            node = place - tree_T[t]
            if node < 0 or (ancestors_T[t] >> np.uint64(node)) & np.uint64(1):
                slots_L[L] = row_L[place]
                L += 1
        for more in range(4):  # keys are taken four at a time: the surplus repeats the last one, with no weight
            slots_L[L + more] = slots_L[L - 1]
        for head in range(H):
            of, q_D, out_D = head // G, q_THD[t, head], out_THD[t, head]
            for key in range(0, L, 4):
                k0, k1 = k_SKD[slots_L[key], of], k_SKD[slots_L[key + 1], of]
                k2, k3 = k_SKD[slots_L[key + 2], of], k_SKD[slots_L[key + 3], of]
                a0 = a1 = a2 = a3 = np.float32(0)
                for d in range(D):
                    a0 += q_D[d] * k0[d]
                    a1 += q_D[d] * k1[d]
                    a2 += q_D[d] * k2[d]
                    a3 += q_D[d] * k3[d]
                scores_L[key], scores_L[key + 1], scores_L[key + 2], scores_L[key + 3] = a0, a1, a2, a3
            highest = scores_L[0]
            for key in range(L):
                highest = max(highest, scores_L[key])
            total = np.float32(0)
            for key in range(L):
                weight = exp((scores_L[key] - highest) * scale)
                scores_L[key] = weight
                total += weight
            for more in range(4):
                scores_L[L + more] = 0
            for d in range(D):
                out_D[d] = 0
            for key in range(0, L, 4):
                v0, v1 = v_SKD[slots_L[key], of], v_SKD[slots_L[key + 1], of]
                v2, v3 = v_SKD[slots_L[key + 2], of], v_SKD[slots_L[key + 3], of]
                w0, w1, w2, w3 = scores_L[key], scores_L[key + 1], scores_L[key + 2], scores_L[key + 3]
                for d in range(D):
                    out_D[d] += w0 * v0[d] + w1 * v1[d] + w2 * v2[d] + w3 * v3[d]
            for d in range(D):
                out_D[d] /= total
