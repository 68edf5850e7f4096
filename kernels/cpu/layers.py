"""Compiled norms, rotary embedding and gated activation, each in one pass, and a whole decoder layer of few tokens.

For a small step torch's dispatch costs more than the compute; for a large one its operators go through memory several
times. `reference.layers` defines the ops. Arrays are contiguous, float32 or bfloat16; bfloat16 is computed in float32
and rounded once. The whole layer is float32: calling its parts from Python would cost more than they do.

Legend: T tokens, E hidden size, N heads of queries, keys and values, H of queries, K of keys, D head size,
I intermediate size, S slots of the cache; P, C, W as in `packed_weights`.
"""

from __future__ import annotations

import numpy as np

from .attention import attend_rows
from .bfloat16 import FloatArray, for_float32_and_bfloat16, narrow, widen
from .compiled import Floats, Ints, compiled, exp
from .matmul import multiply
from .packed_weights import PackedWeights, for_both_weight_dtypes


@compiled(*for_float32_and_bfloat16("void({}[:,::1], {}[::1], float32, {}[:,::1])"))
def rms_norm(x_TE: FloatArray, weight_E: FloatArray, eps: float, out_TE: FloatArray) -> None:
    T, E = x_TE.shape
    for t in range(T):
        total = np.float32(0)
        for e in range(E):
            value = widen(x_TE[t, e])
            total += value * value
        scale = np.float32(1) / np.sqrt(total / np.float32(E) + eps)
        for e in range(E):
            out_TE[t, e] = narrow(widen(x_TE[t, e]) * scale * widen(weight_E[e]), weight_E[e])


@compiled(*for_float32_and_bfloat16("void({}[:,::1], {}[:,::1], {}[::1], float32, {}[:,::1], {}[:,::1])"))
def add_rms_norm(
    x_TE: FloatArray,
    residual_TE: FloatArray,
    weight_E: FloatArray,
    eps: float,
    out_TE: FloatArray,
    out_residual_TE: FloatArray,
) -> None:
    T, E = x_TE.shape
    for t in range(T):
        total = np.float32(0)
        for e in range(E):
            number = narrow(widen(x_TE[t, e]) + widen(residual_TE[t, e]), weight_E[e])
            out_residual_TE[t, e] = number
            value = widen(number)
            total += value * value
        scale = np.float32(1) / np.sqrt(total / np.float32(E) + eps)
        for e in range(E):
            out_TE[t, e] = narrow(widen(out_residual_TE[t, e]) * scale * widen(weight_E[e]), weight_E[e])


@compiled(*for_float32_and_bfloat16("void({}[:,::1], {}[:,::1])"))
def silu_and_mul(gate_up_TJ: FloatArray, out_TI: FloatArray) -> None:
    T, size = out_TI.shape
    for t in range(T):
        for i in range(size):
            gate = widen(gate_up_TJ[t, i])
            small = exp(-abs(gate))
            sigmoid = (np.float32(1) if gate >= 0 else small) / (np.float32(1) + small)
            out_TI[t, i] = narrow(gate * sigmoid * widen(gate_up_TJ[t, size + i]), gate_up_TJ[t, i])


@compiled(
    *for_float32_and_bfloat16(
        "void({}[:,:,::1], {}[:,::1], {}[:,::1], int64[::1], {}[:,:,::1], {}[:,:,::1], {}[:,:,::1])"
    )
)
def rope_and_store(
    qkv_TND: FloatArray,
    cos_TD: FloatArray,
    sin_TD: FloatArray,
    slots_T: Ints,
    k_SKD: FloatArray,
    v_SKD: FloatArray,
    out_THD: FloatArray,
) -> None:
    """Write rotated queries to `out_THD`, rotated keys and values to the tokens' slots. The first half of the sines is
    negated already."""
    T, H, D = out_THD.shape
    K, half = k_SKD.shape[1], D // 2
    for t in range(T):
        slot = slots_T[t]
        for head in range(H + K):
            to = out_THD[t, head] if head < H else k_SKD[slot, head - H]
            x = qkv_TND[t, head]
            for d in range(half):
                low, high = widen(x[d]), widen(x[d + half])
                to[d] = narrow(low * widen(cos_TD[t, d]) + high * widen(sin_TD[t, d]), x[d])
                to[d + half] = narrow(high * widen(cos_TD[t, d + half]) + low * widen(sin_TD[t, d + half]), x[d])
        for head in range(K):
            for d in range(D):
                v_SKD[slot, head, d] = qkv_TND[t, H + K + head, d]


@compiled(
    *for_both_weight_dtypes(
        "void(float32[:,::1], float32[::1], {}, float32[::1], {}, float32[::1],"
        " float32[::1], {}, float32[::1], {}, float32[::1], float32,"
        " float32[:,::1], float32[:,::1], int64[::1], float32[:,:,::1], float32[:,:,::1], float32,"
        " int64[::1])"
    )
)
def decoder_layer(
    x_TE: Floats,
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
    eps: float,
    cos_TD: Floats,
    sin_TD: Floats,
    slots_T: Ints,
    k_SKD: Floats,
    v_SKD: Floats,
    scale: float,
    plan: Ints,
) -> None:
    """Add a pre-norm layer's attention and gated MLP to `x_TE` in place; keys and values go to `slots_T`.

    `plan` is the `AttentionPlan.array` of the tokens.
    """
    T, E = x_TE.shape
    K, D = k_SKD.shape[1:]
    N = len(qkv_bias) // D
    normed_TE, y_TE = np.empty_like(x_TE), np.empty_like(x_TE)
    qkv_TN = np.empty((T, N * D), dtype=np.float32)
    q_THD = np.empty((T, N - 2 * K, D), dtype=np.float32)
    out_THD = np.empty_like(q_THD)
    rms_norm(x_TE, input_norm_E, eps, normed_TE)
    multiply(qkv_PCW, qkv_bias, normed_TE, qkv_TN)
    rope_and_store(qkv_TN.reshape((T, N, D)), cos_TD, sin_TD, slots_T, k_SKD, v_SKD, q_THD)
    attend_rows(plan, q_THD, k_SKD, v_SKD, scale, out_THD)
    multiply(o_PCW, o_bias, out_THD.reshape((T, (N - 2 * K) * D)), y_TE)
    add_rms_norm(y_TE, x_TE, post_norm_E, eps, normed_TE, x_TE)
    gated_TJ = np.empty((T, len(gate_up_bias)), dtype=np.float32)
    gated_TI = np.empty((T, len(gate_up_bias) // 2), dtype=np.float32)
    multiply(gate_up_PCW, gate_up_bias, normed_TE, gated_TJ)
    silu_and_mul(gated_TJ, gated_TI)
    multiply(down_PCW, down_bias, gated_TI, y_TE)
    for t in range(T):
        for e in range(E):
            x_TE[t, e] += y_TE[t, e]
