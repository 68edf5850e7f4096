"""The ops between a decoder's products for a step of few tokens, each in one pass: torch takes longer to begin them
than they take. Their meaning is `reference.layers`. Float32, lying row by row.

Legend: T tokens, E hidden size, N heads of queries, keys and values, H of queries, K of keys, D head size,
I intermediate size, S slots of the cache.
"""

from __future__ import annotations

import numpy as np

from .compiled import Floats, Ints, compiled, exp


@compiled("void(float32[:,::1], float32[::1], float32, float32[:,::1])")
def rms_norm(x_TE: Floats, weight_E: Floats, eps: float, out_TE: Floats) -> None:
    T, E = x_TE.shape
    for t in range(T):
        total = np.float32(0)
        for e in range(E):
            total += x_TE[t, e] * x_TE[t, e]
        scale = np.float32(1) / np.sqrt(total / np.float32(E) + eps)
        for e in range(E):
            out_TE[t, e] = x_TE[t, e] * scale * weight_E[e]


@compiled("void(float32[:,::1], float32[:,::1], float32[::1], float32, float32[:,::1], float32[:,::1])")
def add_rms_norm(
    x_TE: Floats, residual_TE: Floats, weight_E: Floats, eps: float, out_TE: Floats, out_residual_TE: Floats
) -> None:
    T, E = x_TE.shape
    for t in range(T):
        total = np.float32(0)
        for e in range(E):
            value = x_TE[t, e] + residual_TE[t, e]
            out_residual_TE[t, e] = value
            total += value * value
        scale = np.float32(1) / np.sqrt(total / np.float32(E) + eps)
        for e in range(E):
            out_TE[t, e] = out_residual_TE[t, e] * scale * weight_E[e]


@compiled("void(float32[:,::1], float32[:,::1])")
def silu_and_mul(gate_up_TJ: Floats, out_TI: Floats) -> None:
    T, size = out_TI.shape
    for t in range(T):
        for i in range(size):
            gate = gate_up_TJ[t, i]
            small = exp(-abs(gate))
            sigmoid = (np.float32(1) if gate >= 0 else small) / (np.float32(1) + small)
            out_TI[t, i] = gate * sigmoid * gate_up_TJ[t, size + i]


@compiled(
    "void(float32[:,:,::1], float32[:,::1], float32[:,::1], int64[::1],"
    " float32[:,:,::1], float32[:,:,::1], float32[:,:,::1])"
)
def rope_and_store(
    qkv_TND: Floats, cos_TD: Floats, sin_TD: Floats, slots_T: Ints, k_SKD: Floats, v_SKD: Floats, out_THD: Floats
) -> None:
    """Rotated queries go to `out_THD`, rotated keys and values to the tokens' slots. The first half of the sines is
    negated already."""
    T, H, D = out_THD.shape
    K, half = k_SKD.shape[1], D // 2
    for t in range(T):
        slot = slots_T[t]
        for head in range(H + K):
            to = out_THD[t, head] if head < H else k_SKD[slot, head - H]
            x = qkv_TND[t, head]
            for d in range(half):
                to[d] = x[d] * cos_TD[t, d] + x[d + half] * sin_TD[t, d]
                to[d + half] = x[d + half] * cos_TD[t, d + half] + x[d] * sin_TD[t, d + half]
        for head in range(K):
            for d in range(D):
                v_SKD[slot, head, d] = qkv_TND[t, H + K + head, d]
