"""All decoder layers of a step, and the head, in one compiled call, which several threads run at once.

It computes blocks of RMS or layer norms before a part, after it or both, rotary attention, and an MLP with or without a
gate or a mixture of experts, one after the other; an MLP also in parallel. Weights have any format of `packed_matrix`,
the cache any format but float16, everything between is float32. For few tokens the calls between
operators would cost more than they compute. Threads meet after each phase (`shared_phases`).

Legend: T tokens, O wanted tokens, E hidden size, N heads of queries, keys and values, H of queries, K of keys, D head
size, C = N D, A = H D, I intermediate size, J = 2 I, L layers, F fields of a layer's record, W words of a field,
P ropes, S kinds of layers, R rows of scratch memory, V vocabulary.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types

from ..attention.blocks import HEAD_SIZE, KV_HEADS
from ..attention.inner import FLOAT32
from ..attention.paged import attend_task, num_tasks, scratch_size
from ..attention.plan_array import TILE_ROWS, make_plan
from ..bfloat16 import narrow, widen
from ..compiled import Bytes, Floats, Ints, compiled
from ..layers import GELU_TANH, normalise, normalise_together
from ..pointers import address_of, pointer_to
from ..products.matmul import in_tiles, prepared_row, prepared_size
from .arguments import signature
from .experts import GATES_UPS, OWN_MEMORY, add_mixture
from .experts import NUM_PHASES as MIXTURE_PHASES
from .phases import claim, complete, wait
from .products import multiply, multiply_adapters, multiply_gate_up, multiply_up, num_parts, packs_gated, prepare
from .store import scratch_floats, store_token

# Fields of a layer's record: descriptors of its matrices, and addresses of its other parameters.
# GATE_UP and DOWN of a layer with a mixture are the shared expert's, and EXPERTS the words of `experts`.
QKV, OUTPUT, GATE_UP, DOWN, OTHERS, ROUTER, EXPERTS, NUM_FIELDS = range(8)
# Addresses of norms' weights, float32 [E], and [N - K, D] for queries and keys; 0: no such norm.
INPUT_NORM, POST_NORM, QK_NORM, ATTENTION_OUT_NORM, MLP_OUT_NORM = range(5)
# A layer norm's bias follows its weights.
PER_HEAD, ALL_HEADS, AFTER_ROPE = range(3)  # kinds of QK_NORM
PLAN, ROPE, SLOTS = 5, 6, 7  # 0 or 1: which attention plan, which angles, and which slots
(
    _CAPTURE,
    _NORM_1,
    _QKV,
    _ROTATE,
    _ATTEND,
    _SELECT,
    _PREPARE_O,
    _O,
    _ADD_ATTENTION,
    _NORM_2,
    _GATE_UP,
    _ACTIVATE,
    _PREPARE_DOWN,
    _DOWN,
    _ADD_MLP,
    _INNER_QKV,
    _INNER_O,
    _INNER_GATE_UP,
    _INNER_DOWN,
    _MIXTURE,
) = range(20)
PHASES_PER_LAYER = _MIXTURE + MIXTURE_PHASES
_FINAL_NORM, _HEAD, HEAD_PHASES = range(3)  # behind those of the layers
_FEW = 4  # tokens up to which every thread computes norms by itself: that takes less time than meeting the others

_floats, _halves, _bytes = pointer_to(types.float32), pointer_to(types.uint16), pointer_to(types.uint8)


@compiled(
    "UniTuple(int64[::1], 2)(int64, int64[:,::1], int64[:,::1], int64[:,::1], int64[::1], int64, int64, int64,"
    " float32[:,:,::1], float32[:,:,::1], int64, boolean, int64, float32, int64[:,::1], float32[:,:,::1],"
    " float32[:,:,::1], float32[:,::1])"
)
def decode_inputs(
    threads: int,
    tokens_2T: Ints,
    pages_TP: Ints,
    window_pages_TP: Ints,
    windows_S: Ints,
    page_size: int,
    group: int,
    heads: int,
    cos_table: Floats,
    sin_table: Floats,
    embedding: int,
    is_bfloat16: bool,
    num_embedded: int,
    embedding_scale: float,
    slots_ST: Ints,
    cos_PTD: Floats,
    sin_PTD: Floats,
    x_TE: Floats,
) -> tuple[Ints, Ints]:
    """Write the inputs of `decoder_layers` for rows of one token, and return their plans; empty ones, with nothing
    written, if a token is not embedded.

    `tokens_2T` are the tokens and their positions. A row has its pages in `pages_TP`, which may have more rows, and if
    `slots_ST` has two kinds, those of layers with a window in `window_pages_TP`. `windows_S`, one or two, and `group`,
    `heads` and `threads` are as in `AttentionPlan`. The tables have the angles of each rope's positions. `embedding` is
    the address of float32 or bfloat16 [num_embedded, E]; 0: `x_TE` is not written.
    """
    T, E = x_TE.shape
    positions_T = tokens_2T[1]
    starts_R, num_R, num_nodes_R = np.empty(T + 1, np.int64), np.ones(T, np.int64), np.zeros(T, np.int64)
    longest = total = 0
    for t in range(T):
        if not 0 <= tokens_2T[0, t] < num_embedded:
            return num_R[:0], num_R[:0]
        starts_R[t] = total
        total += positions_T[t] // page_size + 1
        longest = max(longest, positions_T[t] + 1)
    starts_R[T] = total
    pages_P, no_parents = np.empty(total, np.int64), np.empty(0, np.int64)
    plan = window_plan = no_parents
    for kind in range(len(windows_S)):
        own = len(slots_ST) - 1 if windows_S[kind] != 0 else 0
        # A window that no row outgrows shares the plan without one, if the pages are the same.
        window = 0 if abs(windows_S[kind]) >= longest else windows_S[kind]
        if kind > 0 and len(slots_ST) == 1 and window == (0 if abs(windows_S[0]) >= longest else windows_S[0]):
            break
        for t in range(T):
            pages = window_pages_TP[t] if own > 0 else pages_TP[t]
            last = positions_T[t] // page_size
            for page in range(last + 1):
                pages_P[starts_R[t] + page] = pages[page]
            slots_ST[own, t] = pages[last] * page_size + positions_T[t] % page_size
        window_plan = make_plan(
            positions_T, num_R, pages_P, starts_R, no_parents, num_nodes_R, page_size, window, group, heads, threads,
            TILE_ROWS,
        )  # fmt: skip
        if kind == 0:
            plan = window_plan

    for rope in range(len(cos_PTD)):
        for t in range(T):
            cos_D, sin_D = cos_table[rope, positions_T[t]], sin_table[rope, positions_T[t]]
            for d in range(len(cos_D)):
                cos_PTD[rope, t, d], sin_PTD[rope, t, d] = cos_D[d], sin_D[d]
    for t in range(T if embedding != 0 else 0):
        x_E, first = x_TE[t], E * tokens_2T[0, t]
        if not is_bfloat16:
            row_E = carray(_floats(embedding + 4 * first), (E,))
            for e in range(E):
                x_E[e] = row_E[e] * embedding_scale
        else:
            half_E = carray(_halves(embedding + 2 * first), (E,))
            for e in range(E):  # rounded as the model's dtype is
                x_E[e] = widen(narrow(widen(half_E[e]) * embedding_scale, half_E[e]))
    return plan, window_plan


@compiled(
    "void(int64[::1], int64, int64, float32[:,::1], int64, float32, boolean, float32, float32[:,::1], float32[:,::1])"
)
def _add_normed(
    phases: Ints,
    phase: int,
    num_threads: int,
    y_TE: Floats,
    norm: int,
    eps: float,
    is_layer_norm: bool,
    factor: float,
    normed_TE: Floats,
    sum_TE: Floats,
) -> None:
    """Add `factor` times the norm of `y_TE` to `sum_TE`; `norm` is the address of the norm's weights."""
    T, E = y_TE.shape
    parts = num_parts(T, num_threads)
    while True:
        part = claim(phases, phase, parts)
        if part < 0:
            break
        first, end = T * part // parts, T * (part + 1) // parts
        normalise(y_TE[first:end], norm, eps, is_layer_norm, normed_TE[first:end])
        for t in range(first, end):
            for e in range(E):
                sum_TE[t, e] += factor * normed_TE[t, e]
        complete(phases, phase, parts)
    wait(phases, phase, parts)


@compiled(
    "void(float32[:,::1], int64, int64, int64, int64, int64[::1], float32, float32[:,::1], float32[:,::1], int64[::1],"
    " int64[::1])"
)
def _rotate_rows(
    qkv_TC: Floats,
    first: int,
    end: int,
    qk_norm: int,
    norm_kind: int,
    kv: Ints,
    eps: float,
    cos_TD: Floats,
    sin_TD: Floats,
    slots_T: Ints,
    positions_T: Ints,
) -> None:
    """Rotate the queries of the rows [first, end) in place; write rotated keys, and values, to the tokens' slots.

    `qk_norm` is the address of the weights of the norm of each head of queries and keys before the rotation, or with
    ALL_HEADS of all heads of each together; 0: none. With AFTER_ROPE the factors [D] of rotated queries follow them.
    The first half of the sines is negated already.
    """
    K, D = kv[KV_HEADS], kv[HEAD_SIZE]
    N = qkv_TC.shape[1] // D
    H, half = N - 2 * K, D // 2
    scratch = np.empty(scratch_floats(kv), dtype=np.float32)
    for t in range(first, end):
        cos_D, sin_D = cos_TD[t], sin_TD[t]
        if qk_norm != 0 and norm_kind == ALL_HEADS:
            normalise_together(qkv_TC[t, : H * D], qk_norm, eps)
            normalise_together(qkv_TC[t, H * D : (H + K) * D], qk_norm + 4 * H * D, eps)
        for head in range(H + K):
            x_D = qkv_TC[t, head * D : (head + 1) * D]
            if qk_norm != 0 and norm_kind != ALL_HEADS:
                weight_D = carray(_floats(qk_norm + 4 * head * D), (D,))
                total = np.float32(0)
                for d in range(D):
                    total += x_D[d] * x_D[d]
                factor = np.float32(1) / np.sqrt(total / np.float32(D) + eps)
                for d in range(D):
                    x_D[d] = x_D[d] * factor * weight_D[d]
            for d in range(half):
                low, high = x_D[d], x_D[d + half]
                x_D[d] = low * cos_D[d] + high * sin_D[d]
                x_D[d + half] = high * cos_D[d + half] + low * sin_D[d + half]
            if qk_norm != 0 and norm_kind == AFTER_ROPE and head < H:
                factor_D = carray(_floats(qk_norm + 4 * (H + K) * D), (D,))
                for d in range(D):
                    x_D[d] *= factor_D[d]
        keys, values = address_of(qkv_TC[t, H * D :]), address_of(qkv_TC[t, (H + K) * D :])
        store_token(keys, values, kv, positions_T[t], slots_T[t], address_of(scratch))


@compiled("void(float32[:,::1])")
def _round_to_bfloat16(x_TE: Floats) -> None:
    """Round in place. Threads may round the same numbers at once: to round again changes nothing."""
    T, E = x_TE.shape
    for t in range(T):
        for e in range(E):
            x_TE[t, e] = widen(narrow(x_TE[t, e], np.uint16(0)))


@compiled(signature())
def decoder_layers(
    phases: Ints,
    thread: int,
    num_threads: int,
    x_TE: Floats,
    layers_LFW: Ints,
    kv_LX: Ints,
    plan: Ints,
    window_plan: Ints,
    last_plan: Ints,
    eps: float,
    scale: float,
    cap: float,
    residual_scale: float,
    activation: int,
    is_gated: bool,
    is_layer_norm: bool,
    is_parallel: bool,
    qk_norm_kind: int,
    cos_PTD: Floats,
    sin_PTD: Floats,
    slots_ST: Ints,
    wanted_O: Ints,
    select: bool,
    last_OE: Floats,
    qkv_RC: Floats,
    out_RA: Floats,
    normed_RE: Floats,
    y_RE: Floats,
    gate_up_RJ: Floats,
    gated_RI: Floats,
    prepared: Bytes,
    capture_of_L: Ints,
    captured_XTE: Floats,
    adapters_LPAW: Ints,
    tokens_2N: Ints,
    ends_2A: Ints,
    sizes_PS: Ints,
    inner_NR: Floats,
    head_W: Ints,
    final_norm: int,
    rounds_stream: bool,
    logits_OV: Floats,
    mixture: Ints,
    mixture_factors: Floats,
    query_scales_T: Floats,
    positions_T: Ints,
) -> None:
    """Add the attention and the MLP of all layers to `x_TE` in place; store keys and values in the tokens' slots.

    Every thread calls it with the same arguments, but for `thread`, its number. `phases` has PHASES_PER_LAYER * L +
    HEAD_PHASES phases. The others are described in `step_arguments`. Scratch memory has R rows, at least T and O. The P
    products of a layer are QKV, OUTPUT, GATE_UP and DOWN.
    """
    L, T, C, A = len(layers_LFW), x_TE.shape[0], qkv_RC.shape[1], out_RA.shape[1]
    none, alone = np.float32(0), T <= _FEW
    if alone:
        normed_RE, prepared = np.empty_like(normed_RE), np.empty_like(prepared)
    qkv_TC, out_TA, normed_TE, y_TE = qkv_RC[:T], out_RA[:T], normed_RE[:T], y_RE[:T]
    size = max(scratch_size(plan, kv_LX[0]), scratch_size(window_plan, kv_LX[0]))
    if len(last_plan) > 0:
        size = max(size, scratch_size(last_plan, kv_LX[0]))
    scratch = np.empty(size // 2 + 1, dtype=np.int64)
    queries, outputs = address_of(qkv_TC), address_of(out_TA)
    own_inputs = np.empty(mixture[OWN_MEMORY] if alone and len(mixture) > 0 else 0, dtype=np.uint8)
    tokens_N, ends_A = tokens_2N[0], ends_2A[0]
    for layer in range(L):
        qkv_W, o_W, gate_up_W = layers_LFW[layer, QKV], layers_LFW[layer, OUTPUT], layers_LFW[layer, GATE_UP]
        down_W, others_W, experts_W = layers_LFW[layer, DOWN], layers_LFW[layer, OTHERS], layers_LFW[layer, EXPERTS]
        kv, phase = kv_LX[layer], layer * PHASES_PER_LAYER
        if capture_of_L[layer] >= 0:
            if claim(phases, phase + _CAPTURE, 1) == 0:
                captured_XTE[capture_of_L[layer]] = x_TE
                complete(phases, phase + _CAPTURE, 1)
            wait(phases, phase + _CAPTURE, 1)

        norm, own_AW = others_W[INPUT_NORM], adapters_LPAW[layer, QKV]
        prepare(
            phases, phase + _NORM_1, num_threads, alone, qkv_W, x_TE, norm, eps, is_layer_norm, normed_TE, prepared,
            len(own_AW) > 0,
        )  # fmt: skip
        # Without a norm the rows are read where they are.
        source_TE = x_TE if norm == 0 else normed_TE
        multiply_adapters(phases, phase + _INNER_QKV, num_threads, source_TE, own_AW, tokens_N, ends_A, 3, inner_NR)
        multiply(
            phases, phase + _QKV, thread, num_threads, qkv_W, source_TE, prepared, qkv_TC, qkv_TC, none,
            inner_NR, own_AW, tokens_N, ends_A, sizes_PS[QKV],
        )  # fmt: skip
        parts = num_parts(T, num_threads)
        while True:
            part = claim(phases, phase + _ROTATE, parts)
            if part < 0:
                break
            first, end = T * part // parts, T * (part + 1) // parts
            cos_TD, sin_TD = cos_PTD[others_W[ROPE]], sin_PTD[others_W[ROPE]]
            slots_T = slots_ST[others_W[SLOTS]]
            _rotate_rows(
                qkv_TC, first, end, others_W[QK_NORM], qk_norm_kind, kv, eps, cos_TD, sin_TD, slots_T, positions_T
            )
            if others_W[ROPE] != 0 and len(query_scales_T) > 0:
                for t in range(first, end):
                    for c in range(A):
                        qkv_TC[t, c] *= query_scales_T[t]
            complete(phases, phase + _ROTATE, parts)
        wait(phases, phase + _ROTATE, parts)

        last = select and layer + 1 == L
        if last and len(wanted_O) == 0:
            return
        own_plan = plan if others_W[PLAN] == 0 else window_plan
        if layer + 1 == L and len(last_plan) > 0:
            own_plan = last_plan
        tasks = num_tasks(own_plan, kv)
        while True:
            task = claim(phases, phase + _ATTEND, tasks)
            if task < 0:
                break
            attend_task(task, own_plan, kv, queries, C, outputs, A, FLOAT32, scale, cap, address_of(scratch))
            complete(phases, phase + _ATTEND, tasks)
        wait(phases, phase + _ATTEND, tasks)

        if last:
            # Nothing reads `qkv_TC` any more: the wanted tokens' attention goes there.
            T = len(wanted_O)
            selected_OA = qkv_RC.reshape(-1)[: T * A].reshape((T, A))
            if claim(phases, phase + _SELECT, 1) == 0:
                for o in range(T):
                    selected_OA[o] = out_TA[wanted_O[o]]
                    last_OE[o] = x_TE[wanted_O[o]]
                complete(phases, phase + _SELECT, 1)
            wait(phases, phase + _SELECT, 1)
            x_TE, out_TA, normed_TE, y_TE = last_OE, selected_OA, normed_RE[:T], y_RE[:T]
            tokens_N, ends_A = tokens_2N[1], ends_2A[1]

        gate_up_TJ = gate_up_RJ.reshape(-1)[: T * gate_up_W[1]].reshape((T, gate_up_W[1]))
        gated_TI = gated_RI.reshape(-1)[: T * down_W[2]].reshape((T, down_W[2]))
        num_adapters, packed_bytes = len(adapters_LPAW[layer, GATE_UP]) + len(adapters_LPAW[layer, DOWN]), 0
        if is_gated and packs_gated(gate_up_W, down_W, T, gated_TI.shape[1], num_adapters):
            packed_bytes = prepared_row(down_W, in_tiles(down_W, T))
        for turn in range(2):
            if (turn == 0) != is_parallel:  # attention's output first, unless the MLP reads the stream without it
                prepare(
                    phases, phase + _PREPARE_O, num_threads, alone, o_W, out_TA, 0, none, False, out_TA, prepared, True
                )  # fmt: skip
                norm = others_W[ATTENTION_OUT_NORM]
                factor = residual_scale if norm == 0 else none
                own_AW = adapters_LPAW[layer, OUTPUT]
                multiply_adapters(phases, phase + _INNER_O, num_threads, out_TA, own_AW, tokens_N, ends_A, 1, inner_NR)
                multiply(
                    phases, phase + _O, thread, num_threads, o_W, out_TA, prepared, y_TE, x_TE, factor,
                    inner_NR, own_AW, tokens_N, ends_A, sizes_PS[OUTPUT],
                )  # fmt: skip
                if norm != 0:
                    _add_normed(
                        phases, phase + _ADD_ATTENTION, num_threads, y_TE, norm, eps, is_layer_norm, residual_scale,
                        normed_TE, x_TE,
                    )  # fmt: skip
                continue
            norm = others_W[POST_NORM]
            if experts_W[GATES_UPS] != 0:
                add_mixture(
                    phases, phase + _MIXTURE, num_threads, alone, address_of(own_inputs), layers_LFW[layer, ROUTER],
                    experts_W, gate_up_W, down_W, mixture, mixture_factors, x_TE, norm, eps, is_layer_norm,
                    residual_scale, normed_TE, y_TE, gate_up_TJ, gated_TI, prepared,
                )  # fmt: skip
                continue
            own_AW, sections = adapters_LPAW[layer, GATE_UP], 2 if is_gated else 1
            prepare(
                phases, phase + _NORM_2, num_threads, alone, gate_up_W, x_TE, norm, eps, is_layer_norm, normed_TE,
                prepared, len(own_AW) > 0,
            )  # fmt: skip
            source_TE = x_TE if norm == 0 else normed_TE
            multiply_adapters(
                phases, phase + _INNER_GATE_UP, num_threads, source_TE, own_AW, tokens_N, ends_A, sections, inner_NR
            )
            if is_gated:
                multiply_gate_up(
                    phases, phase + _GATE_UP, phase + _ACTIVATE, thread, num_threads, gate_up_W, source_TE, prepared,
                    gate_up_TJ, gated_TI, activation == GELU_TANH,
                    inner_NR, own_AW, tokens_N, ends_A, sizes_PS[GATE_UP], packed_bytes,
                )  # fmt: skip
            else:
                multiply_up(
                    phases, phase + _GATE_UP, thread, num_threads, gate_up_W, source_TE, prepared, gated_TI, activation,
                    inner_NR, own_AW, tokens_N, ends_A, sizes_PS[GATE_UP],
                )  # fmt: skip
        if experts_W[GATES_UPS] != 0:
            continue
        down_prepared = prepared
        if packed_bytes == 0:
            prepare(
                phases, phase + _PREPARE_DOWN, num_threads, alone, down_W, gated_TI, 0, none, False, gated_TI, prepared,
                True,
            )  # fmt: skip
        else:
            packed_size = prepared_size(down_W, T, in_tiles(down_W, T))
            down_prepared = carray(_bytes(address_of(gated_TI)), (packed_size,))
        norm = others_W[MLP_OUT_NORM]
        factor = residual_scale if norm == 0 else none
        own_AW = adapters_LPAW[layer, DOWN]
        multiply_adapters(phases, phase + _INNER_DOWN, num_threads, gated_TI, own_AW, tokens_N, ends_A, 1, inner_NR)
        multiply(
            phases, phase + _DOWN, thread, num_threads, down_W, gated_TI, down_prepared, y_TE, x_TE, factor,
            inner_NR, own_AW, tokens_N, ends_A, sizes_PS[DOWN],
        )  # fmt: skip
        if norm != 0:
            _add_normed(
                phases, phase + _ADD_MLP, num_threads, y_TE, norm, eps, is_layer_norm, residual_scale, normed_TE, x_TE
            )

    if len(head_W) == 0:
        return
    phase = L * PHASES_PER_LAYER
    if rounds_stream:
        _round_to_bfloat16(x_TE)
    prepare(
        phases, phase + _FINAL_NORM, num_threads, alone, head_W, x_TE, final_norm, eps, False, normed_TE, prepared,
        False,
    )  # fmt: skip
    own_AW = adapters_LPAW[0, DOWN, :0]
    multiply(
        phases, phase + _HEAD, thread, num_threads, head_W, normed_TE, prepared, logits_OV, logits_OV, none,
        inner_NR, own_AW, tokens_N, ends_A, sizes_PS[DOWN],
    )  # fmt: skip
