"""A mixture of experts in a compiled step (`decoder_step`): routing, the chosen experts' products, their weighted sum.

Every thread of the call runs `add_mixture`. Pairs of a token and one of its experts are sorted by expert, and an expert
multiplies its rows together. Threads share the products by panels of outputs, each for all experts, so that their work
is alike whichever experts are chosen. A row's bits depend on no other row.

Legend: T tokens, E hidden size, N experts, K experts of a token, P = T * K pairs in the order of experts, G groups of
experts, I intermediate size, J = 2 I, S scores of a token (N, and that of the shared expert's gate if it has one),
F fields of a layer's record, W words of a descriptor.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numpy.typing import NDArray

from ..compiled import Floats, Ints, compiled, exp
from ..layers import activate_gated, clamped_swiglu_row
from ..pointers import pointer_to
from ..products.matmul import in_tiles, most_prepared, multiply_panels, num_panels, prepare_rows, prepared_size
from ..products.packed_matrix import NUM_DESCRIPTOR_WORDS, WIDTH
from .phases import claim, complete, wait
from .products import num_parts, prepare

Bytes = NDArray[np.uint8]

# Words of a layer's record: addresses of the experts' descriptors, int64 [N, W] (0: the layer has no mixture), of the
# bias of their choice, float32 [N] (0: none), and of where the chosen ones are noted, int64 [T, K] (0: nowhere).
GATES_UPS, DOWNS, CHOICE_BIAS, CHOSEN = range(4)
# Numbers of all mixtures of a model. With SIGMOID affinities are sigmoids of scores, else a softmax. With NORMALISED a
# token's weights sum to 1. With SCALES_INPUTS sigmoids of the chosen scores multiply the experts' inputs, and outputs
# have no weights. With CLAMPED the activation is `clamped_swiglu`. With SHARED_GATE the last score is that of the
# shared expert's gate. OWN_MEMORY are the `inputs_bytes` that a thread needs alone; the last two are addresses of
# memory, of `inputs_bytes` and `products_bytes`.
(
    NUM_EXPERTS,
    NUM_CHOSEN,
    SIGMOID,
    NUM_GROUPS,
    KEPT_GROUPS,
    NORMALISED,
    SCALES_INPUTS,
    CLAMPED,
    SHARED_GATE,
    SIZE,
    OWN_MEMORY,
    INPUTS_MEMORY,
    PRODUCTS_MEMORY,
    NUM_SETTINGS,
) = range(14)
SCALE, ALPHA, LIMIT, NUM_FACTORS = range(4)  # of weights; of `clamped_swiglu`
_NORM, _ROUTE, _GATHER, _GATE_UP, _ACTIVATE, _DOWN, NUM_PHASES = range(7)
_LINE = 64  # bytes that arrays are aligned to
_FEW_ROWS = 64  # of a step whose router's weights are read once by each thread

_floats, _ints, _bytes = pointer_to(types.float32), pointer_to(types.int64), pointer_to(types.uint8)


@compiled("int64(int64)")
def _aligned(size: int) -> int:
    return (size + _LINE - 1) // _LINE * _LINE


@compiled("int64(int64[::1], int64[::1], int64, int64)")
def inputs_bytes(settings: Ints, gate_up_W: Ints, T: int, E: int) -> int:
    """Return the bytes of memory for the inputs of T tokens' experts, which `gate_up_W` multiplies."""
    P = T * settings[NUM_CHOSEN]
    return _aligned(4 * P * E) + prepared_size(gate_up_W, P, False) + _LINE  # type: ignore[no-any-return]


@compiled("int64(int64[::1], int64[::1], int64[::1], int64, int64)")
def products_bytes(settings: Ints, down_W: Ints, shared_down_W: Ints, T: int, E: int) -> int:
    """Return the bytes of memory for T tokens' choices and their experts' products, and for the second ones' inputs."""
    P, S, size = T * settings[NUM_CHOSEN], settings[NUM_EXPERTS] + settings[SHARED_GATE], settings[SIZE]
    choices = _aligned(4 * T * S) + _aligned(4 * P) + _aligned(8 * P)
    products = _aligned(8 * P * size) + _aligned(4 * P * size) + _aligned(4 * P * E)
    return choices + products + _aligned(prepared_size(down_W, P, False)) + most_prepared(shared_down_W, T) + _LINE  # type: ignore[no-any-return]


@compiled("float32(float32)")
def _sigmoid(x: float) -> np.float32:
    small = exp(-abs(np.float32(x)))
    return (np.float32(1) if x >= 0 else small) / (np.float32(1) + small)


@compiled("void(float32[::1], int64[::1], float32, int64, float32[::1], int64[::1])")
def choose_experts(
    scores_N: Floats, settings: Ints, scale: float, bias: int, weights_K: Floats, chosen_K: Ints
) -> None:
    """Write a token's experts, the best first, and their weights; `reference.experts.choose_in_groups` defines them.

    `bias` is the address of the choice's bias, or 0. With SCALES_INPUTS the weights are factors of inputs.
    """
    N, G, per_group = len(scores_N), settings[NUM_GROUPS], len(scores_N) // settings[NUM_GROUPS]
    affinity_N, choice_N, open_N = np.empty(N, np.float32), np.empty(N, np.float32), np.ones(N, np.bool_)
    if settings[SIGMOID] or settings[SCALES_INPUTS]:
        for n in range(N):
            affinity_N[n] = _sigmoid(scores_N[n])
    else:
        highest, total = scores_N[0], np.float32(0)
        for n in range(N):
            highest = max(highest, scores_N[n])
        for n in range(N):
            affinity_N[n] = exp(scores_N[n] - highest)
            total += affinity_N[n]
        for n in range(N):
            affinity_N[n] /= total
    for n in range(N):
        choice_N[n] = scores_N[n] if settings[SCALES_INPUTS] else affinity_N[n]  # sigmoids of high scores are all 1
    if bias != 0:
        bias_N = carray(_floats(bias), (N,))
        for n in range(N):
            choice_N[n] += bias_N[n]
    if settings[KEPT_GROUPS] < G:
        best_G = np.empty(G, np.float32)
        open_N[:] = False
        for g in range(G):
            first, second = np.float32(-np.inf), np.float32(-np.inf)
            for n in range(g * per_group, (g + 1) * per_group):
                if choice_N[n] > first:
                    first, second = choice_N[n], first
                elif choice_N[n] > second:
                    second = choice_N[n]
            best_G[g] = first + second if settings[SIGMOID] else first
        for _ in range(settings[KEPT_GROUPS]):
            found = -1
            for g in range(G):
                if not open_N[g * per_group] and (found < 0 or best_G[g] > best_G[found]):
                    found = g
            open_N[found * per_group : (found + 1) * per_group] = True
    sum_of_weights = np.float32(1e-20)
    for k in range(len(chosen_K)):
        found = -1
        for n in range(N):
            if open_N[n] and (found < 0 or choice_N[n] > choice_N[found]):  # NaNs are chosen too
                found = n
        open_N[found] = False
        chosen_K[k], weights_K[k] = found, affinity_N[found]
        sum_of_weights += affinity_N[found]
    factor = scale / sum_of_weights if settings[NORMALISED] and not settings[SCALES_INPUTS] else scale
    for k in range(len(chosen_K)):
        weights_K[k] *= factor


@compiled("void(int64[:,::1], int64[::1], int64[::1], int64[:,::1])")
def _sort_by_expert(chosen_TK: Ints, ends_N: Ints, pairs_P: Ints, places_TK: Ints) -> None:
    """Write the place of each pair t * K + k in the order of experts, the pair of each place, and each expert's end."""
    T, K = chosen_TK.shape
    ends_N[:] = 0
    # A late thread may find other numbers there: the last layer may have fewer tokens, whose arrays lie elsewhere in
    # the memory. The thread finds no task then, but must not write behind its own arrays.
    own_TK = np.empty((T, K), np.int64)
    for t in range(T):
        for k in range(K):
            own_TK[t, k] = min(max(chosen_TK[t, k], 0), len(ends_N) - 1)
    for t in range(T):
        for k in range(K):
            ends_N[own_TK[t, k]] += 1
    start = 0
    for n in range(len(ends_N)):
        start, ends_N[n] = start + ends_N[n], start
    for t in range(T):
        for k in range(K):
            place = ends_N[own_TK[t, k]]
            ends_N[own_TK[t, k]] += 1
            places_TK[t, k] = place
            pairs_P[place] = t * K + k


@compiled("void(float32[:,::1], float32[:,::1], int64, int64, int64, int64, int64[::1], float32[::1])")
def _activate(
    gate_up_PJ: Floats,
    gated_PI: Floats,
    first: int,
    end: int,
    begin: int,
    stop: int,
    settings: Ints,
    factors: Floats,
) -> None:
    """Write the activation of the rows [first, end) and the columns [begin, stop)."""
    if not settings[CLAMPED]:
        activate_gated(gate_up_PJ, gated_PI, first, end, begin, stop, False)
        return
    size = gated_PI.shape[1]
    for p in range(first, end):
        gate_I, up_I = gate_up_PJ[p, begin:stop], gate_up_PJ[p, size + begin : size + stop]
        clamped_swiglu_row(gate_I, up_I, factors[ALPHA], factors[LIMIT], gated_PI[p, begin:stop])


@compiled(
    "void(int64[:,::1], int64[::1], int64, int64, boolean, float32[:,::1], uint8[::1], float32[:,::1], float32[:,::1],"
    " int64[::1], float32[::1])"
)
def _multiply_gates_ups(
    matrices_NW: Ints,
    ends_N: Ints,
    first: int,
    end: int,
    is_one: bool,
    x_PE: Floats,
    prepared: Bytes,
    gate_up_PJ: Floats,
    gated_PI: Floats,
    settings: Ints,
    factors: Floats,
) -> None:
    """Multiply by the panels [first, end) of all experts that have rows; with `is_one` all have the same one.

    A panel of gates and one of ups are activated while they are in the cache, unless panels straddle the two.
    """
    begin, size, row_bytes = 0, gated_PI.shape[1], prepared_size(matrices_NW[0], 1, False)
    for n in range(len(ends_N)):
        stop = ends_N[n]
        if stop > begin:
            low, high = (0, 1) if is_one else (begin, stop)
            own, rows, y = x_PE[low:high], prepared[low * row_bytes : high * row_bytes], gate_up_PJ[begin:stop]
            multiply_panels(matrices_NW[n], own, rows, y, first, end, False)
            if size % WIDTH == 0:
                ups = size // WIDTH
                multiply_panels(matrices_NW[n], own, rows, y, ups + first, ups + end, False)
                _activate(gate_up_PJ, gated_PI, begin, stop, first * WIDTH, end * WIDTH, settings, factors)
        begin = stop


@compiled(
    "void(int64, int64, float32[:,::1], int64[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], int64[::1],"
    " float32, float32[:,::1])"
)
def _add_weighted(
    low: int,
    high: int,
    y_PE: Floats,
    places_TK: Ints,
    weights_TK: Floats,
    shared_TE: Floats,
    scores_TS: Floats,
    settings: Ints,
    residual_scale: float,
    x_TE: Floats,
) -> None:
    """Add `residual_scale` times the tokens' weighted sums to the columns [low, high). There is a shared expert if
    `shared_TE` has rows. `y_PE` is overwritten."""
    T, K = places_TK.shape
    for t in range(T):
        sum_E, x_E = y_PE[places_TK[t, 0], low:high], x_TE[t, low:high]
        weight = np.float32(1) if settings[SCALES_INPUTS] else weights_TK[t, 0]
        for e in range(high - low):
            sum_E[e] *= weight
        for k in range(1, K):
            y_E = y_PE[places_TK[t, k], low:high]
            weight = np.float32(1) if settings[SCALES_INPUTS] else weights_TK[t, k]
            for e in range(high - low):
                sum_E[e] += weight * y_E[e]
        if len(shared_TE) > 0:
            y_E, share = shared_TE[t, low:high], np.float32(1)
            if settings[SHARED_GATE]:
                share = _sigmoid(scores_TS[t, settings[NUM_EXPERTS]])
            for e in range(high - low):
                sum_E[e] += share * y_E[e]
        for e in range(high - low):
            x_E[e] += residual_scale * sum_E[e]


@compiled(
    "void(int64[::1], int64, int64, boolean, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " float32[::1], float32[:,::1], int64, float32, boolean, float32, float32[:,::1], float32[:,::1], float32[:,::1],"
    " float32[:,::1], uint8[::1])"
)
def add_mixture(
    phases: Ints,
    phase: int,
    num_threads: int,
    alone: bool,
    own_memory: int,
    router_W: Ints,
    experts_W: Ints,
    shared_gate_up_W: Ints,
    shared_down_W: Ints,
    settings: Ints,
    factors: Floats,
    x_TE: Floats,
    norm: int,
    eps: float,
    is_layer_norm: bool,
    residual_scale: float,
    normed_TE: Floats,
    y_TE: Floats,
    gate_up_TJ: Floats,
    gated_TI: Floats,
    prepared: Bytes,
) -> None:
    """Add `residual_scale` times the mixture's output for the normalised rows of `x_TE` to `x_TE`, in place.

    `phase` is the first of NUM_PHASES. If `alone`, each thread prepares all rows by itself: `own_memory`, the address
    of `inputs_bytes`, `normed_TE` and `prepared` are its own. The shared expert's descriptors have no outputs where
    there is none; `y_TE`, `gate_up_TJ` and `gated_TI` are scratch memory for it.
    """
    T, E = x_TE.shape
    N, K, size = settings[NUM_EXPERTS], settings[NUM_CHOSEN], settings[SIZE]
    P, S, num_shared = T * K, N + settings[SHARED_GATE], T if shared_down_W[1] > 0 else 0
    # Rows of experts are sorted by expert, and not packed in tiles.
    packs_gate_up, packs_down = in_tiles(shared_gate_up_W, T), in_tiles(shared_down_W, T)
    gates_ups_NW = carray(_ints(experts_W[GATES_UPS]), (N, NUM_DESCRIPTOR_WORDS))
    downs_NW = carray(_ints(experts_W[DOWNS]), (N, NUM_DESCRIPTOR_WORDS))
    input_bytes, inner_bytes = prepared_size(gates_ups_NW[0], 1, False), prepared_size(downs_NW[0], 1, False)

    memory = _aligned(own_memory if alone else settings[INPUTS_MEMORY])
    inputs_PE = carray(_floats(memory), (P, E))
    inputs = carray(_bytes(memory + _aligned(4 * P * E)), (P * input_bytes,))
    memory = _aligned(settings[PRODUCTS_MEMORY])
    scores_TS = carray(_floats(memory), (T, S))
    memory += _aligned(4 * T * S)
    weights_TK = carray(_floats(memory), (T, K))
    memory += _aligned(4 * P)
    chosen_TK = carray(_ints(memory), (T, K))
    memory += _aligned(8 * P)
    gate_up_PJ = carray(_floats(memory), (P, 2 * size))
    memory += _aligned(8 * P * size)
    gated_PI = carray(_floats(memory), (P, size))
    memory += _aligned(4 * P * size)
    y_PE = carray(_floats(memory), (P, E))
    memory += _aligned(4 * P * E)
    inner = carray(_bytes(memory), (P * inner_bytes,))
    shared_inner = carray(_bytes(memory + _aligned(P * inner_bytes)), (prepared_size(shared_down_W, T, packs_down),))

    prepare(
        phases, phase + _NORM, num_threads, alone, shared_gate_up_W, x_TE, norm, eps, is_layer_norm, normed_TE,
        prepared, True,
    )  # fmt: skip
    parts = min(T, num_threads) if T <= _FEW_ROWS else num_parts(T, num_threads)
    while True:
        part = claim(phases, phase + _ROUTE, parts)
        if part < 0:
            break
        first, end = T * part // parts, T * (part + 1) // parts
        multiply_panels(router_W, normed_TE[first:end], inputs, scores_TS[first:end], 0, num_panels(router_W), False)
        for t in range(first, end):
            choose_experts(
                scores_TS[t, :N], settings, factors[SCALE], experts_W[CHOICE_BIAS], weights_TK[t], chosen_TK[t]
            )
        if experts_W[CHOSEN] != 0:
            noted_TK = carray(_ints(experts_W[CHOSEN]), (T, K))
            for t in range(first, end):
                for k in range(K):
                    noted_TK[t, k] = chosen_TK[t, k]
        complete(phases, phase + _ROUTE, parts)
    wait(phases, phase + _ROUTE, parts)

    # Every thread sorts the pairs by itself, which takes less time than waiting for another.
    ends_N, pairs_P, places_TK = np.empty(N, np.int64), np.empty(P, np.int64), np.empty((T, K), np.int64)
    _sort_by_expert(chosen_TK, ends_N, pairs_P, places_TK)
    is_one = T == 1 and not settings[SCALES_INPUTS]  # all experts multiply the same row
    if is_one:
        inputs_PE = normed_TE
    rows = 1 if is_one else P
    parts = 1 if alone else num_parts(rows, num_threads)
    while True:
        part = 0 if alone else claim(phases, phase + _GATHER, parts)
        if part < 0:
            break
        first, end = rows * part // parts, rows * (part + 1) // parts
        for p in range(first, 0 if is_one else end):
            token, k = pairs_P[p] // K, pairs_P[p] % K
            factor = weights_TK[token, k] if settings[SCALES_INPUTS] else np.float32(1)
            row_E, input_E = normed_TE[token], inputs_PE[p]
            for e in range(E):
                input_E[e] = row_E[e] * factor
        prepare_rows(gates_ups_NW[0], inputs_PE[first:end], first, inputs, False)
        if alone:
            break
        complete(phases, phase + _GATHER, parts)
    if not alone:
        wait(phases, phase + _GATHER, parts)

    shared_size = gated_TI.shape[1]
    is_whole, is_shared_whole = size % WIDTH == 0, shared_size % WIDTH == 0
    panels = (size if is_whole else 2 * size + WIDTH - 1) // WIDTH
    shared_panels = (shared_size if is_shared_whole else 2 * shared_size + WIDTH - 1) // WIDTH
    parts, shared_parts = num_parts(panels, num_threads), num_parts(shared_panels, num_threads)
    tasks = parts + (shared_parts if num_shared > 0 else 0)
    while True:
        task = claim(phases, phase + _GATE_UP, tasks)
        if task < 0:
            break
        if task < parts:
            first, end = panels * task // parts, panels * (task + 1) // parts
            _multiply_gates_ups(
                gates_ups_NW, ends_N, first, end, is_one, inputs_PE, inputs, gate_up_PJ, gated_PI, settings, factors
            )
        else:
            first = shared_panels * (task - parts) // shared_parts
            end = shared_panels * (task - parts + 1) // shared_parts
            multiply_panels(shared_gate_up_W, normed_TE, prepared, gate_up_TJ, first, end, packs_gate_up)
            if is_shared_whole:
                ups = shared_panels
                multiply_panels(
                    shared_gate_up_W, normed_TE, prepared, gate_up_TJ, ups + first, ups + end, packs_gate_up
                )
                activate_gated(gate_up_TJ, gated_TI, 0, T, first * WIDTH, end * WIDTH, False)
        complete(phases, phase + _GATE_UP, tasks)
    wait(phases, phase + _GATE_UP, tasks)

    if inner_bytes + len(shared_inner) > 0 or not is_whole or not (is_shared_whole or num_shared == 0):
        parts = num_parts(P, num_threads)
        while True:
            part = claim(phases, phase + _ACTIVATE, parts)
            if part < 0:
                break
            first, end = P * part // parts, P * (part + 1) // parts
            if not is_whole:
                _activate(gate_up_PJ, gated_PI, first, end, 0, size, settings, factors)
            prepare_rows(downs_NW[0], gated_PI[first:end], first, inner, False)
            first, end = num_shared * part // parts, num_shared * (part + 1) // parts
            if not is_shared_whole:
                activate_gated(gate_up_TJ, gated_TI, first, end, 0, shared_size, False)
            prepare_rows(shared_down_W, gated_TI[first:end], first, shared_inner, packs_down)
            complete(phases, phase + _ACTIVATE, parts)
        wait(phases, phase + _ACTIVATE, parts)

    panels = (E + WIDTH - 1) // WIDTH
    parts = num_parts(panels, num_threads)
    while True:
        part = claim(phases, phase + _DOWN, parts)
        if part < 0:
            break
        first, end = panels * part // parts, panels * (part + 1) // parts
        begin = 0
        for n in range(N):
            stop = ends_N[n]
            if stop > begin:
                rows_of_n = inner[begin * inner_bytes : stop * inner_bytes]
                multiply_panels(downs_NW[n], gated_PI[begin:stop], rows_of_n, y_PE[begin:stop], first, end, False)
            begin = stop
        if num_shared > 0:
            multiply_panels(shared_down_W, gated_TI, shared_inner, y_TE, first, end, packs_down)
        _add_weighted(
            first * WIDTH, min(end * WIDTH, E), y_PE, places_TK, weights_TK, y_TE[:num_shared], scores_TS, settings,
            residual_scale, x_TE,
        )  # fmt: skip
        complete(phases, phase + _DOWN, parts)
    wait(phases, phase + _DOWN, parts)
