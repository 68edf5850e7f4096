"""Arguments of the compiled decoder step: names, order and numba types, which the loop and its callers derive from.

`decoder_layers` takes its phases and threads, then the fields of `StepInputs`, then those of `StepSettings`. To add an
argument, add a field here and the parameter of that name there.

Legend: T tokens, O wanted tokens, E hidden size, C = numbers of a token's queries, keys and values, A of its attention,
I intermediate size, J = 2 I, L layers, F fields of a layer's record, W words of a field, X numbers of a cache's
descriptor, P ropes or products, S kinds of layers, N tokens with an adapter, A adapters, R rows of scratch memory,
D head size, V vocabulary.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, get_args, get_type_hints

from ..compiled import Bytes, Floats, Ints

_Ints1 = Annotated[Ints, "int64[::1]"]
_Ints2 = Annotated[Ints, "int64[:,::1]"]
_Ints3 = Annotated[Ints, "int64[:,:,::1]"]
_Ints4 = Annotated[Ints, "int64[:,:,:,::1]"]
_Floats1 = Annotated[Floats, "float32[::1]"]
_Floats2 = Annotated[Floats, "float32[:,::1]"]
_Floats3 = Annotated[Floats, "float32[:,:,::1]"]
_Bytes1 = Annotated[Bytes, "uint8[::1]"]
_Int = Annotated[int, "int64"]
_Float = Annotated[float, "float32"]
_Bool = Annotated[bool, "boolean"]


class StepInputs(NamedTuple):
    """Arrays that differ from step to step."""

    x_TE: _Floats2  # the embedded tokens; becomes the residual stream
    layers_LFW: _Ints3  # the layers' records
    kv_LX: _Ints2  # their caches, as of `kv_descriptor`
    plan: _Ints1  # arrays of `AttentionPlan`, of the first kind of window and of the last
    window_plan: _Ints1
    last_plan: _Ints1  # by which the last layer attends; empty: by that of its window


class StepSettings(NamedTuple):
    """Numbers of the model, memory of the step, and what else a step has."""

    eps: _Float
    scale: _Float  # of attention scores
    cap: _Float  # of attention scores; 0: none
    residual_scale: _Float  # multiplies what a part adds
    activation: _Int
    is_gated: _Bool
    is_layer_norm: _Bool
    is_parallel: _Bool  # the MLP reads what attention reads
    qk_norm_kind: _Int
    cos_PTD: _Floats3  # angles of each rope
    sin_PTD: _Floats3
    slots_ST: _Ints2
    wanted_O: _Ints1
    select: _Bool  # after its attention, the last layer computes the tokens `wanted_O` only, into `last_OE`
    last_OE: _Floats2
    qkv_RC: _Floats2  # scratch memory that the threads share, to `prepared`
    out_RA: _Floats2
    normed_RE: _Floats2
    y_RE: _Floats2
    gate_up_RJ: _Floats2
    gated_RI: _Floats2
    prepared: _Bytes1  # the bytes of the largest prepared input of any matrix
    capture_of_L: _Ints1  # place of a layer's input in `captured_XTE`; -1: it is not captured
    captured_XTE: _Floats3
    adapters_LPAW: _Ints4  # the products' adapters, as of `lora`
    tokens_2N: _Ints2  # tokens of each adapter, among all tokens and among the wanted ones
    ends_2A: _Ints2
    sizes_PS: _Ints2  # outputs of the products' sections, 0 for none
    inner_NR: _Floats2  # scratch memory: a row for each token with an adapter
    head_W: _Ints1  # descriptor of the head; empty: none
    final_norm: _Int  # address of the weights of the RMS norm before the head
    rounds_stream: _Bool  # to bfloat16, before that norm
    logits_OV: _Floats2  # of the wanted tokens with `select`, else of all
    mixture: _Ints1  # numbers of `experts`
    mixture_factors: _Floats1
    query_scales_T: _Floats1  # factors of queries in layers with the second rope; empty: none
    positions_T: _Ints1


PARAMETERS: tuple[str, ...] = ("phases", "thread", "num_threads", *StepInputs._fields, *StepSettings._fields)


def signature() -> str:
    """Return the type string of `decoder_layers`."""
    hints = [*get_type_hints(StepInputs, include_extras=True).values()]
    hints += get_type_hints(StepSettings, include_extras=True).values()
    return f"void({', '.join(['int64[::1]', 'int64', 'int64', *(get_args(hint)[1] for hint in hints)])})"
