"""Compiled drafting of a token chain by an EAGLE head of one layer, all rounds in one loop.

A round takes a tenth of a millisecond, so calls from Python would cost more than they compute. Arrays are float32 and
contiguous. `runtime.speculation.eagle.head` defines the head.

Legend: P positions before the last new token, W new tokens, R rounds, S slots, E hidden size, J inputs of the first
product, N heads of queries, keys and values, H of queries, K of keys, D head size, I intermediate size, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from .attention.blocks import DESCRIPTOR, DTYPE, HEAD_SIZE, KEYS, KV_HEADS, STRIDE, VALUES
from .attention.inner import BLOCK, FLOAT32
from .attention.paged import attend_tasks, num_tasks
from .attention.plan_array import (
    BEGINS,
    ENDS,
    GROUP,
    HEADER,
    HEADS,
    MAX_QUERIES,
    NUM_TILES,
    SEGMENT_FIELDS,
    SEGMENTS,
    TILE_FIELDS,
    TILES,
    TOKENS,
)
from .compiled import Floats, Ints, compiled, exp
from .layers import add_rms_norm, rms_norm, rope_and_store, silu_and_mul
from .pointers import address_of
from .products.matmul import multiply


@compiled()
def _plan_one_query(slots_L: Ints, group: int) -> Ints:
    """Return the plan of one query, token 0, and the slots of its keys. The number of keys is set by
    `_set_num_keys`."""
    plan = np.zeros(HEADER + TILE_FIELDS + SEGMENT_FIELDS + 3 + len(slots_L), dtype=np.int64)
    plan[NUM_TILES], plan[MAX_QUERIES], plan[GROUP], plan[HEADS] = 1, 1, group, 1
    plan[TILES] = HEADER
    plan[SEGMENTS] = plan[TILES] + TILE_FIELDS
    plan[TOKENS] = plan[SEGMENTS] + SEGMENT_FIELDS
    plan[BEGINS], plan[ENDS] = plan[TOKENS] + 1, plan[TOKENS] + 2
    plan[HEADER + 1] = plan[HEADER + 3] = 1
    segment = plan[plan[SEGMENTS] :]
    segment[1], segment[4], segment[5] = 1, 1, plan[ENDS] + 1
    plan[plan[ENDS] + 1 :] = slots_L
    return plan


@compiled()
def _set_num_keys(plan: Ints, num_keys: int) -> None:
    """Let the query of `_plan_one_query` see the first `num_keys` keys."""
    segment = plan[plan[SEGMENTS] :]
    segment[3], segment[6] = -(-num_keys // BLOCK), num_keys
    plan[plan[ENDS]] = num_keys


@compiled("void(int64[::1], float32[:,:,::1], float32[:,:,::1], float32[:,:,::1], float32, float32[:,:,::1])")
def _attend_rows(plan: Ints, q_THD: Floats, k_SKD: Floats, v_SKD: Floats, scale: float, out_THD: Floats) -> None:
    """Compute all tasks of a plan over a float32 cache without scales."""
    H, D = q_THD.shape[1:]
    kv = np.zeros(DESCRIPTOR, dtype=np.int64)
    kv[KEYS], kv[VALUES] = address_of(k_SKD), address_of(v_SKD)
    kv[STRIDE], kv[KV_HEADS], kv[HEAD_SIZE], kv[DTYPE] = k_SKD.shape[1] * D, k_SKD.shape[1], D, FLOAT32
    q, out = address_of(q_THD), address_of(out_THD)
    attend_tasks(0, num_tasks(plan, kv), 1, plan, kv, q, H * D, out, H * D, FLOAT32, scale, np.float32(0))


@compiled()
def draft_chain(
    ids_W: Ints,
    slots_P: Ints,
    scratch: int,
    temperature: float,
    feature_SE: Floats,
    k_SKD: Floats,
    v_SKD: Floats,
    cos_PD: Floats,
    sin_PD: Floats,
    embedding_VE: Floats,
    fc: Ints,
    hidden_norm_E: Floats,
    input_norm_E: Floats,
    qkv: Ints,
    o: Ints,
    post_norm_E: Floats,
    gate_up: Ints,
    down: Ints,
    norm_E: Floats,
    lm_head: Ints,
    token_ids_V: Ints,
    eps: float,
    scale: float,
    tokens_R: Ints,
    scores_R: Floats,
) -> None:
    """Write the draft tokens `tokens_R` that follow `ids_W`, and `scores_R`, their log-probabilities at
    `temperature`. Each is the likeliest after the one before. `ids_W` stand at the positions P - W + 1 to P.

    `slots_P` are the slots of the positions 0 to P - 1. The slot of position j holds the target's feature of its token,
    and receives the head's key and value of it. The last new token and the draft tokens have no slots of their own;
    their keys and values go to R slots from `scratch` on. An EAGLE-3 head has the norms `hidden_norm_E`, `input_norm_E`
    and `norm_E`; for another head they are empty. `token_ids_V` is empty if the head's vocabulary is the target's.
    """
    W, P, E = len(ids_W), len(slots_P), feature_SE.shape[1]
    K, D = k_SKD.shape[1:]
    N = qkv[1] // D
    H = N - 2 * K
    is_eagle3 = len(hidden_norm_E) > 0
    # Slots by place; a key's place is its position less one.
    places_L = np.empty(P + len(tokens_R) - 1, dtype=np.int64)
    for place in range(len(places_L)):
        places_L[place] = slots_P[place + 1] if place + 1 < P else scratch + place + 1 - P
    plan = _plan_one_query(places_L, H // K)
    out_1HD = np.empty((1, H, D), dtype=np.float32)
    y_1E, normed_1E, feature_1E = (
        np.empty((1, E), np.float32),
        np.empty((1, E), np.float32),
        np.empty((1, E), np.float32),
    )
    gated_1J = np.empty((1, gate_up[1]), dtype=np.float32)
    gated_1I = np.empty((1, gate_up[1] // 2), dtype=np.float32)
    logits_1V = np.empty((1, lm_head[1]), dtype=np.float32)

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
        if is_eagle3:
            residual_TE = before_TE.copy()
            rms_norm(embedded_TE, input_norm_E, eps, embedded_TE)
            rms_norm(before_TE, hidden_norm_E, eps, before_TE)
        joined_TJ[:, :E] = embedded_TE
        joined_TJ[:, E:] = before_TE
        if not is_eagle3:
            residual_TE = np.empty((T, E), dtype=np.float32)
            multiply(fc, joined_TJ, residual_TE)
        qkv_TN = np.empty((T, N * D), dtype=np.float32)
        q_THD = np.empty((T, H, D), dtype=np.float32)
        multiply(qkv, joined_TJ if is_eagle3 else residual_TE, qkv_TN)
        own = slice(first, first + T)
        rope_and_store(qkv_TN.reshape((T, N, D)), cos_PD[own], sin_PD[own], places_L[own], k_SKD, v_SKD, q_THD)
        _set_num_keys(plan, first + T)
        last = slice(T - 1, T)
        _attend_rows(plan, q_THD[last], k_SKD, v_SKD, np.float32(scale), out_1HD)
        multiply(o, out_1HD.reshape((1, H * D)), y_1E)
        add_rms_norm(y_1E, residual_TE[last], post_norm_E, eps, normed_1E, feature_1E)
        multiply(gate_up, normed_1E, gated_1J)
        silu_and_mul(gated_1J, gated_1I)
        multiply(down, gated_1I, y_1E)
        for e in range(E):
            feature_1E[0, e] += y_1E[0, e]
        if is_eagle3:
            rms_norm(feature_1E, norm_E, eps, normed_1E)
        multiply(lm_head, normed_1E if is_eagle3 else feature_1E, logits_1V)

        logits_V = logits_1V[0]
        index = np.argmax(logits_V)
        total = np.float32(0)
        for v in range(len(logits_V)):
            total += exp((logits_V[v] - logits_V[index]) / np.float32(temperature))
        token = token_ids_V[index] if len(token_ids_V) else index
        tokens_R[r], scores_R[r] = token, -np.log(total)
        first, T = first + T, 1
        before_TE = feature_1E.copy()
