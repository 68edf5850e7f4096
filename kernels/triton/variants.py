"""Enumeration of every compiled kernel that a model's steps launch, so that none is compiled while serving.

A kernel is compiled anew for other constants, dtypes and missing arguments, never for other numbers of rows, tokens or
keys. The launches are recorded from the functions that make them, on tensors without memory.

    for launch in variants(shapes): launch.compile()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from ..arguments import RecurrenceInputs, RopeAndStoreArgs
from ..attention_groups import LEVELS, PIECE_TOKENS
from ..kv_cache import KvCache
from ..lora import AdapterSegments, LowRank, LowRankProduct
from ..reference.quantise import QUANTISED_MAX
from ..reference.sampling import SAMPLING_DTYPES, SamplingTensors
from ..reference.scaled_codes import KeyBasis, stored_size
from . import experts, layers, logits, lora, recurrence, rotation, sampling, scaled_codes, store
from .attention import latent_attention
from .attention.chunk_attention import QueryTiles, chunk_attention, tokens_of_tile
from .attention.paged_rows import QUERY_CLASSES, PagedRows
from .attention.split_attention import Merge, SharedPass, attend_shared, split_attention
from .attention.splits import fixed_splits, make_splits
from .launch_configs import DETERMINISTIC_SPLIT_KEYS, SPLIT_KEYS, chunk_tile
from .launching import Launch, recorded
from .quantised_matmul import Codes, dequantise, matmul, quantise_rows

_META = torch.device("meta")  # tiles are those of the CUDA device, or of the one assumed without any


@dataclass(frozen=True)
class KernelShapes:
    """Sizes and dtypes that kernels are compiled for: those of one rank's part of a model, and of its KV cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    page_size: int
    latent_rank: int = 0  # first dimensions of a key that are its value; 0: values are stored apart
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16
    scaled_kv: bool = False  # its codes have scales of their own: the cache has a basis
    windows: tuple[int | None, ...] = (None,)
    soft_cap: float | None = None
    sinks: bool = False
    deterministic: bool = False
    qk_norm: bool = False  # each head of queries and keys has a norm, by `Ops.rope_and_store`
    gated_size: int = 0  # of a gated silu MLP, half of what its activation reads; 0: the model has none
    num_experts: int = 0
    num_chosen: int = 0  # experts of a token
    expert_size: int = 0
    clamped_experts: bool = False  # their activation is `clamped_swiglu`
    normalised: bool = True  # the weights of a token's experts are divided by their sum
    weights: Literal["dense", "int4", "mxfp4", "int8", "fp8", "int8-inputs", "fp8-inputs", "fp8-blocks"] = "dense"
    group: int = 0  # inputs of a scale, of int4
    linears: tuple[tuple[int, int, bool], ...] = ()  # quantised layers: outputs, inputs, whether there is a bias
    state_size: tuple[int, int, int] | None = None  # of a recurrent layer: heads, keys, values
    delta_rule: bool = False  # of its recurrence
    adapter_rank: int = 0  # of LoRA adapters of queries, keys and values, and of the MLP; 0: there are none


def variants(shapes: KernelShapes) -> list[Launch]:
    """Return a launch of every kernel that steps with these shapes may need, each compiled form once."""
    found: dict[tuple[object, ...], Launch] = {}
    with torch.device(_META), torch.inference_mode():
        for window in dict.fromkeys(shapes.windows):
            _collect(found, _attention(shapes, window))
        _collect(found, _layers(shapes))
        _collect(found, _sampling(shapes))
        if shapes.num_experts:
            _collect(found, _experts(shapes))
        if shapes.adapter_rank:
            _collect(found, _adapters(shapes))
        if shapes.state_size is not None:
            _collect(found, _states(shapes.state_size, delta_rule=shapes.delta_rule))
        for outputs, inputs, bias in shapes.linears:
            _collect(found, _quantised(shapes, outputs, inputs, bias))
        if shapes.num_experts and shapes.weights != "dense":
            _collect(found, _quantised(shapes, 2 * shapes.expert_size, shapes.hidden_size, experts="gathered"))
            _collect(found, _quantised(shapes, shapes.hidden_size, shapes.expert_size, experts="in order"))
    return list(found.values())


def _collect(found: dict[tuple[object, ...], Launch], calls: Iterator[None]) -> None:
    with recorded() as launches:
        for _ in calls:
            pass
    for launch in launches:
        found.setdefault(launch.key, launch)


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _rows(shapes: KernelShapes, num_rows: int, queries: int, window: int | None) -> PagedRows:
    """Return rows as a step has them: with the bits of trees where a row has several tokens."""
    return PagedRows(
        page_table_RP=_ints(num_rows, 64),
        num_keys_R=_ints(num_rows),
        first_query_R=_ints(num_rows),
        num_queries_R=_ints(num_rows),
        positions_T=_ints(num_rows * queries),
        visible_T=torch.zeros(num_rows * queries, dtype=torch.int64) if queries > 1 else None,
        max_queries=queries,
        page_size=shapes.page_size,
        window=window,
        first_key_R=_ints(num_rows),
    )


def _attention(shapes: KernelShapes, window: int | None) -> Iterator[None]:
    """Attend with rows of each number of tokens, with and without shared keys, and with chunks."""
    H, K, D, fixed = shapes.num_heads, shapes.num_kv_heads, shapes.head_dim, shapes.deterministic
    cap, scale = shapes.soft_cap, 0.1
    kv = _cache(shapes)
    sinks_H = torch.empty(H) if shapes.sinks else None
    scaled = None
    if kv.basis is not None:  # their output, float32, is rotated
        scaled = scaled_codes.scaled_queries(torch.empty(4, H, D, dtype=shapes.dtype), kv.basis, 1)
        rotation.rotate(torch.empty(4, H, D), shapes.dtype)
        yield
    R, options = 4, {"fixed": fixed, "scaled": scaled}

    def splits_of(rows: PagedRows):  # type: ignore[no-untyped-def]
        if fixed:
            return fixed_splits(rows.num_listed, size=DETERMINISTIC_SPLIT_KEYS, max_keys=2048)
        return make_splits(rows.num_listed, num_wanted=8, tile=SPLIT_KEYS)

    pieces = replace(
        _rows(shapes, R, PIECE_TOKENS, window), visible_T=None, tokens_N=_ints(R * PIECE_TOKENS), are_pieces=True
    )
    shared = SharedPass(pieces, splits_of(pieces), _ints(R * max(QUERY_CLASSES), LEVELS))
    for queries in QUERY_CLASSES:
        if window is not None and queries > window:
            continue
        q = torch.empty(R * queries, H, D, dtype=shapes.dtype)
        out = q if scaled is None else q.float()
        rows = _rows(shapes, R, queries, window)
        several = [rows]
        if queries == 1:
            several.append(replace(rows, first_key_R=None))  # captured decode steps
        if fixed:
            several.append(replace(rows, tokens_N=_ints(R * queries), page_size=1))  # paths of trees
        for some in several:
            splits = splits_of(some)
            split_attention(q, kv, some, splits, out, scale, cap, sinks_H=sinks_H, **options)
            if some.first_key_R is not None:
                merge = Merge.empty(shared, splits.num_max * queries, q, kv)
                attend_shared(q, kv, merge, scale, cap, **options)
                split_attention(q, kv, some, splits, out, scale, cap, sinks_H=sinks_H, merge=merge, **options)
            yield
    if not fixed and kv.is_latent:
        q = torch.empty(256, H, D, dtype=shapes.dtype)
        rows = replace(_rows(shapes, 1, 256, window), visible_T=None)
        latent_attention.attend_chunks(q, kv, rows, q, scale)
        yield
    elif not fixed:
        tile = chunk_tile(_META, D, shapes.kv_dtype, scaled=scaled is not None)
        q = torch.empty(256, H, D, dtype=shapes.dtype)
        tiles = QueryTiles(_ints(8), _ints(8), tokens_of_tile(tile, H // K), tile)
        rows = replace(_rows(shapes, 1, 256, window), visible_T=None)
        for parts in (1, 2):
            out = q if scaled is None else q.float()
            chunk_attention(q, kv, rows, tiles, out, scale, cap, sinks_H=sinks_H, parts=parts, scaled=scaled)
        yield


def _cache(shapes: KernelShapes) -> KvCache:
    K, D = shapes.num_kv_heads, shapes.head_dim
    size = stored_size(D, shapes.kv_dtype, is_scaled=shapes.scaled_kv)
    memory = torch.empty(2, 4 * shapes.page_size, K, size, dtype=shapes.kv_dtype)
    if shapes.scaled_kv:
        statistics = torch.ones(3, K, D)
        return KvCache(memory[0], memory[1], basis=KeyBasis(*statistics, torch.ones(D // 2)))
    scale = torch.ones(K) if shapes.kv_dtype in QUANTISED_MAX else None
    if shapes.latent_rank:
        return KvCache(memory[0], memory[0][..., : shapes.latent_rank], scale, scale)
    return KvCache(memory[0], memory[1], scale, scale)


def _layers(shapes: KernelShapes) -> Iterator[None]:
    """Compute what stands between the products of a layer."""
    H, K, D, E, dtype = shapes.num_heads, shapes.num_kv_heads, shapes.head_dim, shapes.hidden_size, shapes.dtype
    x, weight = torch.empty(4, E, dtype=dtype), torch.empty(E, dtype=dtype)
    layers.rms_norm(x, weight, 1e-5)
    layers.add_rms_norm(x, x, weight, 1e-5)
    silu_sizes = {shapes.gated_size, 0 if shapes.clamped_experts else shapes.expert_size}
    for size in silu_sizes - {0}:
        layers.silu_and_mul(torch.empty(4, 2 * size, dtype=dtype))
    if shapes.clamped_experts:
        layers.clamped_swiglu(torch.empty(4, 2 * shapes.expert_size, dtype=dtype), 1.5, 7.0)
    if shapes.latent_rank:
        rope_size = D - shapes.latent_rank
        angles = torch.empty(4, 1, rope_size, dtype=dtype)
        args = RopeAndStoreArgs(angles, angles, torch.zeros(4, dtype=torch.int64), H, eps=1e-6)
        latent, rope = torch.empty(4, shapes.latent_rank, dtype=dtype), torch.empty(4, H + 1, rope_size, dtype=dtype)
        for interleaved in (False, True):
            latent_attention.store_latent(latent, rope, _cache(shapes), args, interleaved)
        yield
        return
    angles = torch.empty(4, 1, D, dtype=dtype)
    slots_T = torch.zeros(4, dtype=torch.int64)
    args = RopeAndStoreArgs(angles, angles, slots_T, H, eps=1e-6, positions_T=slots_T if shapes.scaled_kv else None)
    norm = torch.empty(H + K, D, dtype=dtype) if shapes.qk_norm else None
    store.rope_and_store(torch.empty(4, H + 2 * K, D, dtype=dtype), _cache(shapes), norm, args)
    yield


def _sampling(shapes: KernelShapes) -> Iterator[None]:
    V = shapes.vocab_size
    logits_RV = torch.empty(4, V)
    logits.apply_token_bitmask(logits_RV, _ints(4, -(-V // 32)))
    sampling.log_sums(logits_RV)
    columns = [torch.ones(4, dtype=getattr(torch, dtype.__name__)) for dtype in SAMPLING_DTYPES.values()]
    for max_top_k in (0, 50):
        sampling.sample_tokens(logits_RV, SamplingTensors(*columns, max_top_k=max_top_k))
    yield


def _experts(shapes: KernelShapes) -> Iterator[None]:
    """Multiply with experts of few, some and many rows."""
    N, E, size, dtype = shapes.num_experts, shapes.hidden_size, shapes.expert_size, shapes.dtype
    ends = torch.zeros(N, dtype=torch.int64)
    for mean in experts.MEAN_ROWS:
        num_pairs = mean * N
        rows = torch.zeros(num_pairs, dtype=torch.int64)
        x, y = torch.empty(num_pairs, E, dtype=dtype), torch.empty(num_pairs, size, dtype=dtype)
        gate_up, down = torch.empty(N, 2 * size, E, dtype=dtype), torch.empty(N, E, size, dtype=dtype)
        experts.grouped_matmul(x, gate_up, ends, rows, fixed=shapes.deterministic)
        experts.grouped_matmul(y, down, ends, fixed=shapes.deterministic)
    experts.route(torch.empty(4, N, dtype=dtype), shapes.num_chosen, shapes.normalised)
    pairs = 4 * shapes.num_chosen
    experts.combine_experts(
        torch.empty(pairs, E, dtype=dtype), torch.zeros(pairs, dtype=torch.int64), torch.empty(4, shapes.num_chosen)
    )
    yield


def _states(sizes: tuple[int, int, int], *, delta_rule: bool) -> Iterator[None]:
    """Advance recurrent states by a token."""
    H, K, V = sizes
    shapes: tuple[tuple[int, ...], ...] = (4, H, K), (4, H, K), (4, H, V), (4, H), (4, H)
    q, k, v, g, beta = map(torch.empty, shapes)
    inputs = RecurrenceInputs(q, k, v, g, beta if delta_rule else None)
    recurrence.step_states(torch.empty(4, H, K, V), torch.zeros(4, dtype=torch.int64), inputs)
    yield


def _adapters(shapes: KernelShapes) -> Iterator[None]:
    """Add adapters to the product of queries, keys and values, and to that of gates and ups."""
    E, rank, D = shapes.hidden_size, shapes.adapter_rank, shapes.head_dim
    qkv = (shapes.num_heads * D, shapes.num_kv_heads * D, shapes.num_kv_heads * D)
    for sizes in (qkv, (shapes.gated_size, shapes.gated_size)):
        part = LowRank(
            torch.empty(len(sizes) * rank, E, dtype=shapes.dtype), torch.empty(rank, sum(sizes), dtype=shapes.dtype)
        )
        product = LowRankProduct(sizes, [part], torch.zeros(1, 3, dtype=torch.int64))
        segments = AdapterSegments([0], [4], torch.zeros(4, dtype=torch.int64), _ints(1, 3))
        x, y = torch.empty(4, E, dtype=shapes.dtype), torch.empty(4, sum(sizes), dtype=shapes.dtype)
        lora.add_low_rank(y, x, product, segments)
    yield


def _quantised(
    shapes: KernelShapes, outputs: int, inputs: int, bias: bool = False, experts: str | None = None
) -> Iterator[None]:
    """Multiply by a quantised layer, or one of all experts: few rows of each number of tiles, and its widening."""
    kind, group = shapes.weights, {"int4": shapes.group, "mxfp4": 32, "fp8-blocks": 128}.get(shapes.weights, 0)
    bias_N = torch.empty(outputs, dtype=shapes.dtype) if bias else None
    if kind == "int4":
        scale, base = torch.empty(2, inputs // group, outputs, dtype=shapes.dtype)
        weight = Codes(torch.empty(outputs, inputs // 2, dtype=torch.uint8), scale, base, group)
    elif kind == "mxfp4":
        scale = torch.empty(inputs // group, outputs, dtype=torch.uint8)
        weight = Codes(torch.empty(outputs, inputs // 2, dtype=torch.uint8), scale, group=group)
    else:
        stored = torch.int8 if kind.startswith("int8") else torch.float8_e4m3fn
        scales = (-(-outputs // 128), inputs // 128) if group else (outputs,)
        weight = Codes(torch.empty(outputs, inputs, dtype=stored), torch.empty(scales), group=group)
    if experts is not None:
        N = shapes.num_experts
        weight = weight._replace(
            codes=weight.codes.expand(N, *weight.codes.shape),
            scale=weight.scale.expand(N, *weight.scale.shape),
            base=None if weight.base is None else weight.base.expand(N, *weight.base.shape),
        )
    for num_rows in (1, 17, 65, 129, 193) if experts is None else (1, 17 * shapes.num_experts):
        x, x_scale = torch.empty(num_rows, inputs, dtype=shapes.dtype), None
        if kind.endswith(("-inputs", "-blocks")):
            x, x_scale = quantise_rows(x, weight.codes.dtype, group)
        rows = torch.zeros(num_rows, dtype=torch.int64) if experts == "gathered" else None
        of = None if experts is None else (torch.zeros(shapes.num_experts, dtype=torch.int64), rows)
        matmul(
            x,
            weight,
            bias_N,
            x_scale=x_scale,
            dtype=shapes.dtype,
            experts=of,
            fixed=of is not None and shapes.deterministic,
        )
    if experts is None and not kind.endswith("-inputs"):
        dequantise(weight, shapes.dtype)
    yield
