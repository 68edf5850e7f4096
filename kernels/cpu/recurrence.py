"""Compiled recurrent layers: causal convolution, linear recurrence, gated norm.

`models.recurrent.layer` computes the same in plain torch. A token's numbers, bit for bit, do not depend on the step's
other rows, nor on how its row is cut: tokens are computed one after the other, each in the same order. A head's state
stays in the second cache while all tokens of a row pass.

Legend: T tokens of the step, R rows, S slots, J numbers of the input projection, C channels of the convolution, W its
width, H heads, G key heads, K key size, V value size, I = H * V, N numbers of a norm's weight.

A row of `rows_R5` is its first token, its end, the slot with the state before it (-1: zeros), and its first and end
among `saves_M2`: the state after so many tokens of the row goes to this slot, ascending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from .bfloat16 import FloatArray, as_float_array, for_float32_and_bfloat16, narrow, widen
from .compiled import Floats, Ints, compiled, exp
from .thread_pool import num_threads, run_tasks

_MIN_SHARED_WORK = 1 << 22  # multiplications of a step's recurrence from which on waking a second thread pays
_LANES = 64  # numbers that a vectorised loop computes at once; those behind the last whole ones differ in their bits
_L2_EPS = np.float32(1e-6)  # of the lengths of queries and keys of gated delta nets


@compiled("float32(float32)")
def silu(x: np.float32) -> np.float32:
    small = exp(-abs(x))
    sigmoid = (np.float32(1) if x >= 0 else small) / (np.float32(1) + small)
    return x * sigmoid


@compiled(
    *for_float32_and_bfloat16(
        "void(int64, int64, int64[:,::1], int64[:,::1], {}[:,::1], {}[:,::1], {}[::1], boolean, {}[:,:,::1],"
        " float32[:,::1])"
    )
)
def convolve(
    first: int,
    end: int,
    rows_R5: Ints,
    saves_M2: Ints,
    x_TJ: FloatArray,
    weight_WC: FloatArray,
    bias_C: FloatArray,
    gated: bool,
    conv_SWC: FloatArray,
    out_TC: Floats,
) -> None:
    """Write silu of the causal convolution of the channels [first, end), and keep its last inputs.

    If `gated`, a token has two gates, before the convolution and behind it in place of silu, and then its channels.
    """
    (W, C), size = weight_WC.shape, end - first
    before = W - 1
    for r in range(len(rows_R5)):
        start, stop, source = rows_R5[r, 0], rows_R5[r, 1], rows_R5[r, 2]
        for t in range(start, stop):
            out_C = out_TC[t, first:end]
            if len(bias_C) > 0:
                own_C = bias_C[first:end]
                for c in range(size):
                    out_C[c] = widen(own_C[c])
            else:
                for c in range(size):
                    out_C[c] = np.float32(0)
            for w in range(W):
                at = t - before + w
                if at < start and source < 0:
                    continue
                x_C = x_TJ[at, first:end] if at >= start else conv_SWC[source, at - start + before, first:end]
                weight_C = weight_WC[w, first:end]
                if gated and at >= start:
                    own_C = x_TJ[at, 2 * C + first : 2 * C + end]
                    for c in range(size):
                        out_C[c] += widen(narrow(widen(x_C[c]) * widen(own_C[c]), x_C[c])) * widen(weight_C[c])
                else:
                    for c in range(size):
                        out_C[c] += widen(x_C[c]) * widen(weight_C[c])
            if gated:
                gate_C = x_TJ[t, C + first : C + end]
                for c in range(size):
                    out_C[c] *= widen(gate_C[c])
            else:
                for c in range(size):
                    out_C[c] = silu(out_C[c])
        for save in range(rows_R5[r, 3], rows_R5[r, 4]):
            count, slot = saves_M2[save, 0], saves_M2[save, 1]
            for w in range(before):  # ascending: `slot` may be `source`
                at = start + count - before + w
                kept_C = conv_SWC[slot, w, first:end]
                if at < start and source < 0:
                    for c in range(size):
                        kept_C[c] = 0
                    continue
                x_C = x_TJ[at, first:end] if at >= start else conv_SWC[source, at - start + before, first:end]
                own_C = x_TJ[max(at, start), 2 * C + first : 2 * C + end]
                for c in range(size):
                    is_new = gated and at >= start
                    kept_C[c] = narrow(widen(x_C[c]) * widen(own_C[c]), x_C[c]) if is_new else x_C[c]


@compiled("void(float32[:,::1], float32[::1], float32[::1], float32, float32, float32[::1], float32[::1])")
def _add_value(
    state_KV: Floats, k_K: Floats, q_K: Floats, decay: np.float32, scale: np.float32, d_V: Floats, out_V: Floats
) -> None:
    """Advance a head's state, S' = decay S + k d^T, and write the output scale * S'^T q."""
    K, V = state_KV.shape
    for v in range(V):
        out_V[v] = np.float32(0)
    for pair in range(0, K - 1, 2):
        k0, k1, q0, q1 = k_K[pair], k_K[pair + 1], q_K[pair] * scale, q_K[pair + 1] * scale
        s0_V, s1_V = state_KV[pair], state_KV[pair + 1]
        for v in range(V):
            s0 = s0_V[v] * decay + k0 * d_V[v]
            s1 = s1_V[v] * decay + k1 * d_V[v]
            s0_V[v] = s0
            s1_V[v] = s1
            out_V[v] += s0 * q0 + s1 * q1
    if K % 2:
        k0, q0, s0_V = k_K[K - 1], q_K[K - 1] * scale, state_KV[K - 1]
        for v in range(V):
            s0 = s0_V[v] * decay + k0 * d_V[v]
            s0_V[v] = s0
            out_V[v] += s0 * q0


@compiled("void(float32[:,::1], float32[::1], float32[::1])")
def _read_key(state_KV: Floats, k_K: Floats, out_V: Floats) -> None:
    """Write what a head's state holds at a key, S^T k."""
    K, V = state_KV.shape
    whole = K - K % 4
    for v in range(V):
        out_V[v] = np.float32(0)
    for k in range(0, whole, 4):
        k0, k1, k2, k3 = k_K[k], k_K[k + 1], k_K[k + 2], k_K[k + 3]
        s0_V, s1_V, s2_V, s3_V = state_KV[k], state_KV[k + 1], state_KV[k + 2], state_KV[k + 3]
        for v in range(V):
            out_V[v] += (s0_V[v] * k0 + s1_V[v] * k1) + (s2_V[v] * k2 + s3_V[v] * k3)
    for k in range(whole, K):
        k0, s0_V = k_K[k], state_KV[k]
        for v in range(V):
            out_V[v] += s0_V[v] * k0


@compiled("float32(float32[::1])")
def _inverse_length(x_K: Floats) -> np.float32:
    total = np.float32(0)
    for k in range(len(x_K)):
        total += x_K[k] * x_K[k]
    return np.float32(1) / np.sqrt(total + _L2_EPS)


@compiled("float32(float32)")
def _softplus(x: np.float32) -> np.float32:
    """Return log(1 + e^x): of a number in (0, 1] log(1 + y) is twice the area tangent of y / (2 + y), by its series."""
    small = exp(-abs(x))
    s = small / (np.float32(2) + small)
    square = s * s
    series = square * np.float32(1 / 13) + np.float32(1 / 11)
    series = series * square + np.float32(1 / 9)
    series = series * square + np.float32(1 / 7)
    series = series * square + np.float32(1 / 5)
    series = series * square + np.float32(1 / 3)
    return max(x, np.float32(0)) + np.float32(2) * s * (series * square + np.float32(1))


@compiled(
    "void(int64, int64, int64[:,::1], int64[:,::1], float32[:,::1], float32[:,::1], int64, boolean, float32[::1],"
    " float32[::1], float32[::1], float32, float32, float32[:,:,:,::1], float32[:,:,::1])"
)
def advance(
    first: int,
    end: int,
    rows_R5: Ints,
    saves_M2: Ints,
    mixed_TC: Floats,
    scalars_TX: Floats,
    G: int,
    is_delta: bool,
    log_decay_H: Floats,
    step_bias_H: Floats,
    skip_H: Floats,
    low_step: float,
    high_step: float,
    state_SHKV: Floats,
    out_THV: Floats,
) -> None:
    """Advance the states of the heads [first, end) by all tokens, and write the outputs of the recurrence.

    `mixed_TC` are queries, keys and values of a gated delta net, or Mamba2's x, B, C; `scalars_TX` are each head's beta
    and then its decay, or its time step.
    """
    H, K, V = state_SHKV.shape[1:]
    q_start = 0 if is_delta else H * V + G * K
    k_start = G * K if is_delta else H * V
    v_start = 2 * G * K if is_delta else 0
    own_KV, k_K = np.empty((K, V), np.float32), np.empty(K, np.float32)
    d_V, held_V = np.empty(V, np.float32), np.empty(V, np.float32)
    key_scale = np.float32(1) / np.sqrt(np.float32(K))
    for r in range(len(rows_R5)):
        start, stop, source = rows_R5[r, 0], rows_R5[r, 1], rows_R5[r, 2]
        first_save, end_save = rows_R5[r, 3], rows_R5[r, 4]
        # Where one slot is read and written, and nothing comes after, the state is advanced in its place.
        in_place = (
            source >= 0
            and end_save == first_save + 1
            and saves_M2[first_save, 1] == source
            and saves_M2[first_save, 0] == stop - start
        )
        for h in range(first, end):
            group, rate, save = h // (H // G), -np.exp(log_decay_H[h]), first_save
            state_KV = own_KV
            if in_place:
                state_KV = state_SHKV[source, h]
            else:
                for k in range(K):
                    for v in range(V):
                        own_KV[k, v] = state_SHKV[source, h, k, v] if source >= 0 else np.float32(0)
            for t in range(start, stop + 1):
                while not in_place and save < end_save and saves_M2[save, 0] == t - start:
                    kept_KV = state_SHKV[saves_M2[save, 1], h]
                    for k in range(K):
                        for v in range(V):
                            kept_KV[k, v] = state_KV[k, v]
                    save += 1
                if t == stop:
                    break
                key_K = mixed_TC[t, k_start + group * K : k_start + (group + 1) * K]
                q_K = mixed_TC[t, q_start + group * K : q_start + (group + 1) * K]
                v_V, out_V = mixed_TC[t, v_start + h * V : v_start + (h + 1) * V], out_THV[t, h]
                if is_delta:
                    k_length, q_length = _inverse_length(key_K), _inverse_length(q_K)
                    for k in range(K):
                        k_K[k] = key_K[k] * k_length
                    beta = np.float32(1) / (np.float32(1) + np.exp(-scalars_TX[t, h]))
                    decay = np.exp(rate * _softplus(scalars_TX[t, H + h] + step_bias_H[h]))
                    _read_key(state_KV, k_K, held_V)
                    for v in range(V):
                        d_V[v] = beta * (v_V[v] - decay * held_V[v])
                    _add_value(state_KV, k_K, q_K, decay, q_length * key_scale, d_V, out_V)
                else:
                    step = np.float32(min(max(_softplus(scalars_TX[t, h] + step_bias_H[h]), low_step), high_step))
                    for v in range(V):
                        d_V[v] = v_V[v] * step
                    _add_value(state_KV, key_K, q_K, np.exp(rate * step), np.float32(1), d_V, out_V)
                    for v in range(V):
                        out_V[v] += skip_H[h] * v_V[v]


@compiled(
    *for_float32_and_bfloat16(
        "void(int64, int64, int64[:,::1], int64[:,::1], {}[:,::1], float32[:,::1], float32[:,::1], float32[:,::1],"
        " float32[:,::1], float32[::1], float32[::1], float32[:,:,:,::1], {}[:,::1])"
    )
)
def select_and_advance(
    first: int,
    end: int,
    rows_R5: Ints,
    saves_M2: Ints,
    projected_TJ: FloatArray,
    x_TV: Floats,
    step_TV: Floats,
    selected_TJ: Floats,
    log_decay_KV: Floats,
    step_bias_V: Floats,
    skip_V: Floats,
    state_SHKV: Floats,
    out_TV: FloatArray,
) -> None:
    """Advance the channels [first, end) of Mamba1's states by all tokens, and write the gated outputs.

    The gate's inputs are those of `projected_TJ` behind the channels; `selected_TJ` ends in keys, then queries.
    """
    K, V, J, size = len(log_decay_KV), x_TV.shape[1], selected_TJ.shape[1], end - first
    own_KV, rate_KV = np.empty((K, size), np.float32), np.empty((K, size), np.float32)
    step_V, d_V, sum_V = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    own_bias_V, own_skip_V = step_bias_V[first:end], skip_V[first:end]
    for k in range(K):
        for v in range(size):
            rate_KV[k, v] = -np.exp(log_decay_KV[k, first + v])
    for r in range(len(rows_R5)):
        start, stop, source = rows_R5[r, 0], rows_R5[r, 1], rows_R5[r, 2]
        save, end_save = rows_R5[r, 3], rows_R5[r, 4]
        in_place = (
            source >= 0 and end_save == save + 1 and saves_M2[save, 1] == source and saves_M2[save, 0] == stop - start
        )
        if not in_place:
            for k in range(K):
                for v in range(size):
                    own_KV[k, v] = state_SHKV[source, 0, k, first + v] if source >= 0 else np.float32(0)
        for t in range(start, stop + 1):
            while not in_place and save < end_save and saves_M2[save, 0] == t - start:
                for k in range(K):
                    kept_V = state_SHKV[saves_M2[save, 1], 0, k, first:end]
                    for v in range(size):
                        kept_V[v] = own_KV[k, v]
                save += 1
            if t == stop:
                break
            x_V, gate_V, out_V = x_TV[t, first:end], projected_TJ[t, V + first : V + end], out_TV[t, first:end]
            low_V = step_TV[t, first:end]
            for v in range(size):
                step = _softplus(low_V[v] + own_bias_V[v])
                step_V[v] = step
                d_V[v] = step * x_V[v]
                sum_V[v] = own_skip_V[v] * x_V[v]
            for k in range(K):
                state_V = state_SHKV[source, 0, k, first:end] if in_place else own_KV[k]
                key, query, rate_V = selected_TJ[t, J - 2 * K + k], selected_TJ[t, J - K + k], rate_KV[k]
                for v in range(size):
                    state = state_V[v] * exp(step_V[v] * rate_V[v]) + key * d_V[v]
                    state_V[v] = state
                    sum_V[v] += state * query
            for v in range(size):
                out_V[v] = narrow(sum_V[v] * silu(widen(gate_V[v])), gate_V[v])


@compiled(
    *for_float32_and_bfloat16(
        "void(int64, int64, {}[:,::1], int64, int64, boolean, float32, {}[::1], float32[:,::1], {}[:,::1])"
    )
)
def gated_norm(
    first: int,
    end: int,
    projected_TJ: FloatArray,
    gate_start: int,
    size: int,
    gate_last: bool,
    eps: float,
    weight_N: FloatArray,
    x_TI: Floats,
    out_TI: FloatArray,
) -> None:
    """Gate the outputs of the tokens [first, end), then normalise each `size` of them if there are weights; with
    `gate_last` the other way."""
    I = x_TI.shape[1]  # noqa: E741
    for t in range(first, end):
        for low in range(0, I, size):
            x_V, gate_V = x_TI[t, low : low + size], projected_TJ[t, gate_start + low : gate_start + low + size]
            out_V = out_TI[t, low : low + size]
            if not gate_last:
                for v in range(size):
                    x_V[v] *= silu(widen(gate_V[v]))
            if len(weight_N) == 0:
                for v in range(size):
                    out_V[v] = narrow(x_V[v], gate_V[v])
                continue
            weight_V = weight_N[low % len(weight_N) : low % len(weight_N) + size]
            total = np.float32(0)
            for v in range(size):
                total += x_V[v] * x_V[v]
            scale = np.float32(1) / np.sqrt(total / np.float32(size) + eps)
            if not gate_last:
                for v in range(size):
                    out_V[v] = narrow(x_V[v] * scale * widen(weight_V[v]), weight_V[v])
            else:
                for v in range(size):
                    value = x_V[v] * scale * widen(weight_V[v]) * silu(widen(gate_V[v]))
                    out_V[v] = narrow(value, weight_V[v])


class RecurrentWeights(NamedTuple):
    """Parameters of a recurrent layer between its projections."""

    num_key_heads: int
    step_limit: tuple[float, float]  # of Mamba2's time steps
    gate_last: bool  # behind the norm of the output
    norm_eps: float
    conv_WC: torch.Tensor
    conv_bias_C: torch.Tensor | None
    log_decay_H: torch.Tensor  # float32, as are the next two
    step_bias_H: torch.Tensor
    skip_H: torch.Tensor | None  # Mamba2's; None: a gated delta net
    norm_weight: torch.Tensor  # of a head, or Mamba2's of all; empty: the output is gated alone


def suits_loops(projected_TJ: torch.Tensor) -> bool:
    """Return True if the loops compute a layer of this input projection."""
    return projected_TJ.dtype in (torch.float32, torch.bfloat16) and projected_TJ.is_contiguous()


def causal_convolution(
    x_TJ: torch.Tensor,
    table: tuple[Ints, Ints],
    conv: tuple[torch.Tensor, torch.Tensor | None],
    conv_SWC: torch.Tensor,
    *,
    gated: bool = False,
    shares: bool = False,
) -> torch.Tensor:
    """Return `convolve` of `x_TJ` by weights [W, C] and a bias, float32 [T, C]."""
    weight_WC, bias_C = conv
    bias_C = weight_WC.new_empty(0) if bias_C is None else bias_C
    C = weight_WC.shape[1]
    out_TC = np.empty((len(x_TJ), C), np.float32)
    x, weight, bias, kept = map(as_float_array, (x_TJ, weight_WC, bias_C, conv_SWC))
    _share(shares, C, lambda first, end: convolve(first, end, *table, x, weight, bias, gated, kept, out_TC))
    return torch.from_numpy(out_TC)


def recurrent_layer(
    projected_TJ: torch.Tensor,
    table: tuple[Ints, Ints],
    weights: RecurrentWeights,
    conv_SWC: torch.Tensor,
    state_SHKV: torch.Tensor,
) -> torch.Tensor:
    """Return a layer's output [T, I] before its output projection, and write the states that `table` keeps.

    `table` has the rows [R, 5] and the kept states [M, 2].
    """
    T, C = len(projected_TJ), weights.conv_WC.shape[1]
    H, K, V = state_SHKV.shape[1:]
    is_delta = weights.skip_H is None
    shares = T * H * K * V >= _MIN_SHARED_WORK
    conv = weights.conv_WC, weights.conv_bias_C
    mixed = causal_convolution(projected_TJ, table, conv, conv_SWC, shares=shares).numpy()
    scalars = projected_TJ[:, C + H * V :].float().contiguous().numpy()
    skip_H = torch.empty(0) if weights.skip_H is None else weights.skip_H
    per_head = [x.numpy() for x in (weights.log_decay_H, weights.step_bias_H, skip_H)]
    sizes, limits = (weights.num_key_heads, is_delta), weights.step_limit
    x_THV, states = np.empty((T, H, V), np.float32), state_SHKV.numpy()
    _share(
        shares,
        H,
        lambda first, end: advance(first, end, *table, mixed, scalars, *sizes, *per_head, *limits, states, x_THV),
    )
    output_TI = torch.empty((T, H * V), dtype=weights.norm_weight.dtype)
    size = V if is_delta else H * V // weights.num_key_heads
    projected, weight, out = map(as_float_array, (projected_TJ, weights.norm_weight, output_TI))
    x_TI, settings = x_THV.reshape(T, -1), (C, size, weights.gate_last, weights.norm_eps)
    _share(shares, T, lambda first, end: gated_norm(first, end, projected, *settings, weight, x_TI, out))
    return output_TI


def selective_scan(
    projected_TJ: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    table: tuple[Ints, Ints],
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    state_SHKV: torch.Tensor,
) -> torch.Tensor:
    """Return the output [T, V] of Mamba1's layer before its output projection, and write the states that `table` keeps.

    `inputs` are the convolution's outputs and the time steps without their bias [T, V], and a tensor [T, J] that ends
    in keys, then queries. `weights` are the logarithms of decays [K, V], the bias of time steps and the skip's factors
    [V]. All are float32.
    """
    out_TV = torch.empty(inputs[0].shape, dtype=projected_TJ.dtype)
    T, V = out_TV.shape
    floats = [x.contiguous().numpy() for x in (*inputs, *weights)]
    projected, out, states = as_float_array(projected_TJ), as_float_array(out_TV), state_SHKV.numpy()
    _share(
        T * V * state_SHKV.shape[2] >= _MIN_SHARED_WORK,
        V,
        lambda first, end: select_and_advance(first, end, *table, projected, *floats, states, out),
        multiple=_LANES,
    )
    return out_TV


@compiled("void(float32[:,::1], int64[::1], float32[::1], float32)")
def _normalise_parts(x_TJ: Floats, ends_P: Ints, weight_J: Floats, eps: float) -> None:
    for t in range(len(x_TJ)):
        start = 0
        for end in ends_P:
            total = np.float32(0)
            for j in range(start, end):
                total += x_TJ[t, j] * x_TJ[t, j]
            scale = np.float32(1) / np.sqrt(total / np.float32(end - start) + eps)
            for j in range(start, end):
                x_TJ[t, j] *= scale * weight_J[j]
            start = end


def normalised_parts(x_TJ: torch.Tensor, sizes: Sequence[int], weight_J: torch.Tensor, eps: float) -> torch.Tensor:
    """Return float32 rows whose parts of `sizes` are each normalised to a root mean square of one, times weights."""
    normed_TJ = x_TJ.to(torch.float32, copy=True)
    _normalise_parts(normed_TJ.numpy(), np.cumsum(sizes), weight_J.float().numpy(), eps)
    return normed_TJ


def _share(shares: bool, size: int, compute: Callable[[int, int], object], multiple: int = 1) -> None:
    """Call `compute` for all of [0, size), in parts that threads share if there is enough work, cut at multiples."""
    count = min(num_threads(), -(-size // multiple)) if shares else 1
    ends = [size * part // count // multiple * multiple for part in range(count)] + [size]
    run_tasks([partial(compute, first, end) for first, end in pairwise(ends)])
