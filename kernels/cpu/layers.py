"""Compiled norms, rotary embedding and activations, each in one pass: the ops, then the parts of a compiled step.

For a small step torch's dispatch costs more than the compute; for a large one its operators go through memory several
times. `reference.layers` defines the ops. Their arrays are contiguous, float32 or bfloat16; bfloat16 is computed in
float32 and rounded once. The parts of `decoder_step` are float32.

Legend: T tokens, E hidden size, N heads of queries, keys and values, H of queries, K of keys, D head size, C numbers of
one token, I intermediate size, J = 2 I, S slots of the cache; R, L as in `attention`. Matrices are descriptors of
`packed_matrix`.
"""

from __future__ import annotations

from math import erf

import numpy as np
from numba import carray, types

from .bfloat16 import FloatArray, for_float32_and_bfloat16, narrow, widen
from .compiled import Floats, Ints, compiled, compiled_once, exp
from .pointers import address_of, pointer_to

# Activations. A gated MLP has one of the first two.
SILU, GELU_TANH, GELU, RELU, RELU2 = range(5)

_floats = pointer_to(types.float32)


@compiled_once("void(int64, int64, int64, int64, float32, int64)")
def _normalise_rows(x: int, weight: int, T: int, E: int, eps: float, out: int) -> None:
    """Write the RMS norms of T rows of E floats at address `x`. One machine code serves every loop: where copies of it
    were inlined, each would take the sum in an order of its own, and round differently."""
    weight_E = carray(_floats(weight), (E,))
    for t in range(T):
        x_E, out_E = carray(_floats(x + 4 * E * t), (E,)), carray(_floats(out + 4 * E * t), (E,))
        total = np.float32(0)
        for e in range(E):
            total += x_E[e] * x_E[e]
        scale = np.float32(1) / np.sqrt(total / np.float32(E) + eps)
        for e in range(E):
            out_E[e] = x_E[e] * scale * weight_E[e]


@compiled("void(float32[:,::1], float32[::1], float32, float32[:,::1])")
def rms_norm_float32(x_TE: Floats, weight_E: Floats, eps: float, out_TE: Floats) -> None:
    """Write the RMS norm of each row, as the loop of a whole step computes it."""
    _normalise_rows(address_of(x_TE), address_of(weight_E), *x_TE.shape, eps, address_of(out_TE))


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
        # Rows of their own: with both indices the compiler does not compute in vectors.
        gate_I, up_I, out_I = gate_up_TJ[t, :size], gate_up_TJ[t, size:], out_TI[t]
        for i in range(size):
            gate = widen(gate_I[i])
            small = exp(-abs(gate))
            sigmoid = (np.float32(1) if gate >= 0 else small) / (np.float32(1) + small)
            out_I[i] = narrow(gate * sigmoid * widen(up_I[i]), gate_I[i])


@compiled(*for_float32_and_bfloat16("void({}[::1], {}[::1], float32, float32, {}[::1])"))
def clamped_swiglu_row(gate_I: FloatArray, up_I: FloatArray, alpha: float, limit: float, out_I: FloatArray) -> None:
    for i in range(len(out_I)):
        gate, up = widen(gate_I[i]), widen(up_I[i])
        gate = limit if gate > limit else gate  # NaN stays, which `min` would drop
        up = limit if up > limit else -limit if up < -limit else up
        small = exp(-abs(alpha * gate))
        sigmoid = (np.float32(1) if gate >= 0 else small) / (np.float32(1) + small)
        out_I[i] = narrow((up + np.float32(1)) * gate * sigmoid, gate_I[i])


@compiled(*for_float32_and_bfloat16("void({}[:,::1], float32, float32, {}[:,::1])"))
def clamped_swiglu(gate_up_PJ: FloatArray, alpha: float, limit: float, out_PI: FloatArray) -> None:
    P, size = out_PI.shape
    for p in range(P):
        clamped_swiglu_row(gate_up_PJ[p, :size], gate_up_PJ[p, size:], alpha, limit, out_PI[p])


@compiled(*for_float32_and_bfloat16("void({}[:,:,::1], {}[:,::1], float32, {}[:,:,::1])"))
def normalise_heads(qkv_TND: FloatArray, weight_HD: FloatArray, eps: float, out_TND: FloatArray) -> None:
    """Write the RMS norm of each of the first heads, those that have weights, and copy the others."""
    T, N, D = qkv_TND.shape
    for t in range(T):
        for head in range(N):
            x_D, out_D = qkv_TND[t, head], out_TND[t, head]
            if head >= len(weight_HD):
                for d in range(D):
                    out_D[d] = x_D[d]
                continue
            total, weight_D = np.float32(0), weight_HD[head]
            for d in range(D):
                total += widen(x_D[d]) * widen(x_D[d])
            scale = np.float32(1) / np.sqrt(total / np.float32(D) + eps)
            for d in range(D):
                out_D[d] = narrow(widen(x_D[d]) * scale * widen(weight_D[d]), x_D[d])


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
    *for_float32_and_bfloat16(
        "void({}[:,::1], {}[:,::1], int64, int64, {}[::1], float32, {}[:,::1], {}[:,::1], boolean, int64[::1],"
        " {}[:,::1])"
    )
)
def rotate_and_store_latents(
    q_TY: FloatArray,
    first_TX: FloatArray,
    num_heads: int,
    head_size: int,
    norm_C: FloatArray,
    eps: float,
    cos_TR: FloatArray,
    sin_TR: FloatArray,
    interleaved: bool,
    slots_T: Ints,
    cache_SX: FloatArray,
) -> None:
    """Rotate the last R dimensions of each head of queries in place; write the normalised latents, with the rotated key
    behind, to the tokens' slots.

    The queries of all heads are the first numbers of a row of `q_TY`, the latent and the key the last of one of
    `first_TX`. `interleaved` heads and sines are as in `Ops.store_latent` and `rope_and_store`.
    """
    (T, R), C = cos_TR.shape, len(norm_C)
    half, start = R // 2, first_TX.shape[1] - C - R
    low_r, high_r = np.empty(half, np.float32), np.empty(half, np.float32)
    for t in range(T):
        latent_C, row_X = first_TX[t, start : start + C], cache_SX[slots_T[t]]
        total = np.float32(0)
        for c in range(C):
            value = widen(latent_C[c])
            total += value * value
        scale = np.float32(1) / np.sqrt(total / np.float32(C) + eps)
        for c in range(C):
            row_X[c] = narrow(widen(latent_C[c]) * scale * widen(norm_C[c]), norm_C[c])
        for head in range(num_heads + 1):
            end = (head + 1) * head_size
            x_R = q_TY[t, end - R : end] if head < num_heads else first_TX[t, start + C :]
            to_R = q_TY[t, end - R : end] if head < num_heads else row_X[C:]
            if interleaved:
                for r in range(half):
                    low_r[r], high_r[r] = widen(x_R[2 * r]), widen(x_R[2 * r + 1])
            else:
                for r in range(half):
                    low_r[r], high_r[r] = widen(x_R[r]), widen(x_R[half + r])
            # A loop for each half: the compiler computes one of fewer arrays in vectors.
            cos_r, sin_r, to_r = cos_TR[t, :half], sin_TR[t, :half], to_R[:half]
            for r in range(half):
                to_r[r] = narrow(low_r[r] * widen(cos_r[r]) + high_r[r] * widen(sin_r[r]), norm_C[0])
            cos_r, sin_r, to_r = cos_TR[t, half:], sin_TR[t, half:], to_R[half:]
            for r in range(half):
                to_r[r] = narrow(high_r[r] * widen(cos_r[r]) + low_r[r] * widen(sin_r[r]), norm_C[0])


@compiled("void(float32[:,::1], int64, float32, boolean, float32[:,::1])")
def normalise(x_TE: Floats, norm: int, eps: float, is_layer_norm: bool, out_TE: Floats) -> None:
    """Write the norm of each row; `norm` is the address of its weights, and of a layer norm's bias behind them."""
    T, E = x_TE.shape
    if not is_layer_norm:
        rms_norm_float32(x_TE, carray(_floats(norm), (E,)), eps, out_TE)
        return
    weight_E, bias_E = carray(_floats(norm), (E,)), carray(_floats(norm + 4 * E), (E,))
    for t in range(T):
        mean, total = np.float32(0), np.float32(0)
        for e in range(E):
            mean += x_TE[t, e]
        mean /= np.float32(E)
        for e in range(E):
            total += (x_TE[t, e] - mean) * (x_TE[t, e] - mean)
        factor = np.float32(1) / np.sqrt(total / np.float32(E) + eps)
        for e in range(E):
            out_TE[t, e] = (x_TE[t, e] - mean) * factor * weight_E[e] + bias_E[e]


@compiled("void(float32[::1], int64, float32)")
def normalise_together(x_C: Floats, norm: int, eps: float) -> None:
    """Normalise all numbers together, in place; `norm` is the address of the weights."""
    C = len(x_C)
    weight_C = carray(_floats(norm), (C,))
    total = np.float32(0)
    for c in range(C):
        total += x_C[c] * x_C[c]
    factor = np.float32(1) / np.sqrt(total / np.float32(C) + eps)
    for c in range(C):
        x_C[c] = x_C[c] * factor * weight_C[c]


@compiled("void(float32[:,::1], int64, int64, int64)")
def activate(x_TI: Floats, begin: int, stop: int, activation: int) -> None:
    """Replace the columns [begin, stop) by their activation."""
    linear = np.float32(1) if activation == SILU else np.float32(1.5957691216057308)
    cubic = np.float32(0) if activation == SILU else np.float32(0.07135481282553594)
    for t in range(len(x_TI)):
        x_I = x_TI[t, begin:stop]
        if activation == GELU:
            for i in range(stop - begin):
                x_I[i] = np.float32(0.5) * x_I[i] * (np.float32(1) + np.float32(erf(x_I[i] * np.float32(0.70710678))))
        elif activation == RELU:
            for i in range(stop - begin):
                x_I[i] = max(x_I[i], np.float32(0))
        elif activation == RELU2:
            for i in range(stop - begin):
                x_I[i] = max(x_I[i], np.float32(0)) * max(x_I[i], np.float32(0))
        else:
            for i in range(stop - begin):
                inner = x_I[i] * (linear + cubic * x_I[i] * x_I[i])
                small = exp(-abs(inner))
                sigmoid = (np.float32(1) if inner >= 0 else small) / (np.float32(1) + small)
                x_I[i] = x_I[i] * sigmoid


@compiled("void(float32[::1], float32[::1], float32[::1], boolean)")
def activate_row(gate_I: Floats, up_I: Floats, gated_I: Floats, is_gelu: bool) -> None:
    """Write act(gate) * up of some numbers.

    act(g) is g * sigmoid(g), or of gelu's approximation by tanh g * sigmoid(2 sqrt(2 / pi) (g + 0.044715 g^3)).
    """
    linear = np.float32(1.5957691216057308) if is_gelu else np.float32(1)
    cubic = np.float32(0.07135481282553594) if is_gelu else np.float32(0)
    for i in range(len(gated_I)):
        gate = gate_I[i]
        inner = gate * (linear + cubic * gate * gate)
        small = exp(-abs(inner))
        sigmoid = (np.float32(1) if inner >= 0 else small) / (np.float32(1) + small)
        gated_I[i] = gate * sigmoid * up_I[i]


@compiled("void(float32[:,::1], float32[:,::1], int64, int64, int64, int64, boolean)")
def activate_gated(
    gate_up_TJ: Floats, gated_TI: Floats, first: int, end: int, begin: int, stop: int, is_gelu: bool
) -> None:
    """Write act(gate) * up of the tokens [first, end) and the columns [begin, stop)."""
    size = gated_TI.shape[1]
    for t in range(first, end):
        # Rows of their own: with both indices the compiler does not compute in vectors.
        gate_I, up_I = gate_up_TJ[t, begin:stop], gate_up_TJ[t, size + begin : size + stop]
        activate_row(gate_I, up_I, gated_TI[t, begin:stop], is_gelu)
