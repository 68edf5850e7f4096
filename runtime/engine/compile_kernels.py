"""Compilation of a model's Triton kernels at start: while it serves, a compilation would stop every request for
seconds."""

from __future__ import annotations

import logging
import time

import torch

from ..models.decoder import Decoder

logger = logging.getLogger("ramiform.engine")


def compile_kernels(model: Decoder, kv_dtype: torch.dtype) -> int:
    """Compile every kernel that steps of the model may launch; return their number, 0 with other ops than Triton's.

    Triton keeps compiled kernels in its cache folder, so a second start takes them from there.
    """
    if model.ops.name != "triton":
        return 0
    from ...kernels.triton.variants import KernelShapes, variants  # here, because it imports triton

    config, start = model.config, time.monotonic()
    experts = config.experts
    launches = variants(
        KernelShapes(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            dtype=model.dtype,
            kv_dtype=kv_dtype,
            windows=tuple(dict.fromkeys(config.windows)),
            soft_cap=config.attention_cap,
            deterministic=model.ops.deterministic,
            qk_norm=config.qk_norm == "per head",
            gated_size=config.intermediate_size if config.gated_mlp and config.activation == "silu" else 0,
            num_experts=0 if experts is None else experts.num_experts,
            num_chosen=0 if experts is None else experts.num_per_token,
            expert_size=0 if experts is None else experts.intermediate_size,
        )
    )
    for launch in launches:
        launch.compile()
    logger.info("%d kernels compiled in %.0f s", len(launches), time.monotonic() - start)
    return len(launches)
