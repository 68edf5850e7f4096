"""A chain of guesses by a draft head of one layer, all its rounds in one compiled loop: at a tenth of a millisecond a
round, whatever is called from Python costs more than it computes. Float32, lying row by row.

What the head computes is said in `runtime.speculation.eagle.head`. Knows slots; knows no requests.

Legend: P positions before the last new token, W new tokens, R rounds, S slots, E hidden size, J inputs of the first
product, N heads of queries, keys and values, H of queries, K of keys, D head size, I intermediate size, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from .attention import attend
from .attention_spans import NO_TREE
from .compiled import Floats, Ints, compiled, exp
from .layers import add_rms_norm, rms_norm, rope_and_store, silu_and_mul
from .matmul import multiply
from .packed_weights import PackedWeights


@compiled()
def draft_chain(
    ids_W: Ints,
    slots_P: Ints,
    scratch: int,
    heat: float,
    feature_SE: Floats,
    k_SKD: Floats,
    v_SKD: Floats,
    cos_PD: Floats,
    sin_PD: Floats,
    embedding_VE: Floats,
    fc_PCW: PackedWeights,
    fc_bias: Floats,
    hidden_norm_E: Floats,
    input_norm_E: Floats,
    qkv_PCW: PackedWeights,
    qkv_bias: Floats,
    o_PCW: PackedWeights,
    o_bias: Floats,
    post_norm_E: Floats,
    gate_up_PCW: PackedWeights,
    gate_up_bias: Floats,
    down_PCW: PackedWeights,
    down_bias: Floats,
    norm_E: Floats,
    lm_head_PCW: PackedWeights,
    lm_head_bias: Floats,
    token_ids_V: Ints,
    eps: float,
    scale: float,
    tokens_R: Ints,
    scores_R: Floats,
) -> None:
    """Guesses `tokens_R` after the tokens `ids_W` at the positions P - W + 1 to P, each the likeliest after the one
    before, and `scores_R`, the logarithm of its probability, its logits divided by `heat`.

    `slots_P` are those of the positions 0 to P - 1; the slot of position j holds the target's feature of its token, and
    gets the head's key and value of it. The last new token and the guesses have none: theirs go to the slots from
    `scratch` on, R of them. With norms `hidden_norm_E`, `input_norm_E` and `norm_E` the head is EAGLE-3's, else they
    have no numbers, nor has `token_ids_V` where the head's vocabulary is the target's.
    """
    W, P, E = len(ids_W), len(slots_P), feature_SE.shape[1]
    K, D = k_SKD.shape[1:]
    N = len(qkv_bias) // D
    H = N - 2 * K
    third = len(hidden_norm_E) > 0
    # Where keys lie by their place, which is the position less one.
    places_1L = np.empty((1, P + len(tokens_R) - 1), dtype=np.int64)
    for place in range(places_1L.shape[1]):
        places_1L[0, place] = slots_P[place + 1] if place + 1 < P else scratch + place + 1 - P
    row_1, begin_1, end_1 = np.zeros(1, np.int64), np.zeros(1, np.int64), np.empty(1, np.int64)
    tree_1, ancestors_1 = np.full(1, NO_TREE), np.zeros(1, np.uint64)
    out_1HD = np.empty((1, H, D), dtype=np.float32)
    y_1E, normed_1E, feature_1E = (
        np.empty((1, E), np.float32),
        np.empty((1, E), np.float32),
        np.empty((1, E), np.float32),
    )
    gated_1J = np.empty((1, len(gate_up_bias)), dtype=np.float32)
    gated_1I = np.empty((1, len(gate_up_bias) // 2), dtype=np.float32)
    logits_1V = np.empty((1, len(lm_head_bias)), dtype=np.float32)

    first, T, token = P - W, W, 0
    before_TE = np.empty((W, E), dtype=np.float32)
    for w in range(W):
        before_TE[w] = feature_SE[slots_P[first + w]]
    for r in range(len(tokens_R)):
        embedded_TE = np.empty((T, E), dtype=np.float32)
        joined_TJ = np.empty((T, 2 * E), dtype=np.float32)
        for t in range(T):
            embedded_TE[t] = embedding_VE[ids_W[t] if r == 0 else token]
        residual_TE = before_TE
        if third:
            residual_TE = before_TE.copy()
            rms_norm(embedded_TE, input_norm_E, eps, embedded_TE)
            rms_norm(before_TE, hidden_norm_E, eps, before_TE)
        joined_TJ[:, :E] = embedded_TE
        joined_TJ[:, E:] = before_TE
        if not third:
            residual_TE = np.empty((T, E), dtype=np.float32)
            multiply(fc_PCW, fc_bias, joined_TJ, residual_TE)
        qkv_TN = np.empty((T, N * D), dtype=np.float32)
        q_THD = np.empty((T, H, D), dtype=np.float32)
        multiply(qkv_PCW, qkv_bias, joined_TJ if third else residual_TE, qkv_TN)
        own = slice(first, first + T)
        rope_and_store(qkv_TN.reshape((T, N, D)), cos_PD[own], sin_PD[own], places_1L[0, own], k_SKD, v_SKD, q_THD)
        end_1[0] = first + T
        last = slice(T - 1, T)
        attend(
            q_THD[last], k_SKD, v_SKD, places_1L, row_1, begin_1, end_1, tree_1, ancestors_1, np.float32(scale), out_1HD
        )
        multiply(o_PCW, o_bias, out_1HD.reshape((1, H * D)), y_1E)
        add_rms_norm(y_1E, residual_TE[last], post_norm_E, eps, normed_1E, feature_1E)
        multiply(gate_up_PCW, gate_up_bias, normed_1E, gated_1J)
        silu_and_mul(gated_1J, gated_1I)
        multiply(down_PCW, down_bias, gated_1I, y_1E)
        for e in range(E):
            feature_1E[0, e] += y_1E[0, e]
        if third:
            rms_norm(feature_1E, norm_E, eps, normed_1E)
        multiply(lm_head_PCW, lm_head_bias, normed_1E if third else feature_1E, logits_1V)

        logits_V = logits_1V[0]
        index = np.argmax(logits_V)
        total = np.float32(0)
        for v in range(len(logits_V)):
            total += exp((logits_V[v] - logits_V[index]) / np.float32(heat))
        token = token_ids_V[index] if len(token_ids_V) else index
        tokens_R[r], scores_R[r] = token, -np.log(total)
        first, T = first + T, 1
        before_TE = feature_1E.copy()
