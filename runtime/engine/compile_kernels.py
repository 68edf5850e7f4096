"""Compilation of a model's Triton kernels at start: while it serves, a compilation would stop every request for
seconds."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ...kernels import Chunk
from ..models.decoder import Decoder
from .kv_pool import PAGE_SIZE

logger = logging.getLogger("ramiform.engine")


def compile_kernels(model: Decoder, kv_dtype: torch.dtype, *, is_scaled: bool = False) -> int:
    """Compile every kernel that steps of the model may launch; return their number, 0 with other ops than Triton's.

    `is_scaled` is as of the model's `KvMemory`.

    Triton keeps compiled kernels in its cache folder, so a second start takes them from there.
    """
    if model.ops.name != "triton":
        return 0
    from ...kernels.triton.variants import KernelShapes, variants  # here, because it imports triton

    config, start = model.config, time.monotonic()
    experts = config.experts
    recurrent = config.recurrent
    shapes = KernelShapes(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        latent_rank=0 if config.latent is None else config.latent.rank,
        page_size=PAGE_SIZE,
        dtype=model.dtype,
        kv_dtype=kv_dtype,
        scaled_kv=is_scaled,
        windows=tuple(dict.fromkeys(None if isinstance(one, Chunk) else one for one in config.windows)),
        soft_cap=config.attention_cap,
        sinks=config.sinks,
        deterministic=model.ops.deterministic,
        qk_norm=config.qk_norm in ("per head", "per head after rope", "without weights"),
        gated_size=config.intermediate_size if config.gated_mlp and config.activation == "silu" else 0,
        num_experts=0 if experts is None else experts.num_experts,
        num_chosen=0 if experts is None else experts.num_per_token,
        expert_size=0 if experts is None else experts.intermediate_size,
        clamped_experts=experts is not None and experts.swiglu is not None,
        normalised=experts is None or experts.normalised,
        state_size=(
            None
            if recurrent is None or recurrent.is_short or recurrent.is_selective
            else (recurrent.num_heads, recurrent.key_size, recurrent.value_size)
        ),
        delta_rule=recurrent is not None and recurrent.is_delta,
    )
    launches = variants(shapes)
    if config.qk_norm == "without weights":  # layers without positions have no norms
        launches += variants(replace(shapes, qk_norm=False))
    for (weights, group), layers in _quantised_layers(model).items():
        launches += variants(replace(shapes, weights=weights, group=group, linears=tuple(sorted(layers))))
    for launch in launches:
        launch.compile()
    logger.info("%d kernels compiled in %.0f s", len(launches), time.monotonic() - start)
    return len(launches)


def _quantised_layers(model: Decoder) -> dict[tuple[Any, int], set[tuple[int, int, bool]]]:
    """Return outputs, inputs and bias of the layers that Triton multiplies, by their format and size of group; of
    stacked experts the format alone."""
    found: dict[tuple[Any, int], set[tuple[int, int, bool]]] = defaultdict(set)
    for linear in model.parameters.linears():
        for part in _parts(linear):
            stacked = getattr(part, "stacked", None)
            layer, codes = (part, getattr(part, "codes", None)) if stacked is None else (part.linears[0], stacked)
            if codes is None:
                continue
            outputs, inputs = codes.codes.shape[-2:]
            rounds_inputs = getattr(getattr(layer, "scheme", None), "activations", False)
            if codes.codes.dtype == torch.uint8:
                kind, inputs = codes.kind, 2 * inputs
            elif codes.group:
                kind = "fp8-blocks"
            else:
                kind = ("int8" if codes.codes.dtype == torch.int8 else "fp8") + ("-inputs" if rounds_inputs else "")
            layers = found[kind, codes.group]
            if stacked is None:
                layers.add((outputs, inputs, layer.bias_N is not None))
    return found


def _parts(linear: Any) -> Iterator[Any]:
    """Iterate over a layer's slices, of a rank that holds several, without what computes fixed rows of each."""
    linear = getattr(linear, "linear", linear)
    slices = getattr(linear, "slices", None)
    if slices is None:
        yield linear
    else:
        for part in slices:
            yield from _parts(part)
