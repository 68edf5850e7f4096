"""Norms and activations between the products of a compiled step (`decoder_step`), row by row in float32.

Legend: T tokens, E hidden size, C numbers of one token, I intermediate size, J = 2 I.
"""

from __future__ import annotations

from math import erf

import numpy as np
from numba import carray, types

from .attention_inner import pointer_to
from .compiled import Floats, compiled, exp
from .layers import rms_norm

# Activations. A gated MLP has one of the first two.
SILU, GELU_TANH, GELU, RELU, RELU2 = range(5)

_floats = pointer_to(types.float32)


@compiled("void(float32[:,::1], int64, float32, boolean, float32[:,::1])")
def normalise(x_TE: Floats, norm: int, eps: float, is_layer_norm: bool, out_TE: Floats) -> None:
    """Write the norm of each row; `norm` is the address of its weights, and of a layer norm's bias behind them."""
    T, E = x_TE.shape
    if not is_layer_norm:
        rms_norm(x_TE, carray(_floats(norm), (E,)), eps, out_TE)
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


@compiled("void(float32[:,::1], float32[:,::1], int64, int64, int64, int64, boolean)")
def activate_gated(
    gate_up_TJ: Floats, gated_TI: Floats, first: int, end: int, begin: int, stop: int, is_gelu: bool
) -> None:
    """Write act(gate) * up of the tokens [first, end) and the columns [begin, stop).

    act(g) is g * sigmoid(g), or of gelu's approximation by tanh g * sigmoid(2 sqrt(2 / pi) (g + 0.044715 g^3)).
    """
    linear = np.float32(1.5957691216057308) if is_gelu else np.float32(1)
    cubic = np.float32(0.07135481282553594) if is_gelu else np.float32(0)
    size = gated_TI.shape[1]
    for t in range(first, end):
        # Rows of their own: with both indices the compiler does not compute in vectors.
        gate_I, up_I = gate_up_TJ[t, begin:stop], gate_up_TJ[t, size + begin : size + stop]
        gated_I = gated_TI[t, begin:stop]
        for i in range(stop - begin):
            gate = gate_I[i]
            inner = gate * (linear + cubic * gate * gate)
            small = exp(-abs(inner))
            sigmoid = (np.float32(1) if inner >= 0 else small) / (np.float32(1) + small)
            gated_I[i] = gate * sigmoid * up_I[i]
