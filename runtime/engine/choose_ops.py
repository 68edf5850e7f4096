"""Which device ops an engine computes with, as its settings ask. Refuses, with the reason, what cannot be had."""

from __future__ import annotations

import importlib.util
import logging

import torch

from ...kernels import Ops, for_device
from ..models.config import ModelConfig
from ..protocol.config import CoreConfig
from ..protocol.errors import RequestError

logger = logging.getLogger("ramiform.engine")

MAX_DETERMINISTIC_TREE = 64  # tokens that the kernels' masks have bits for


def choose_ops(config: CoreConfig, model: ModelConfig, device: torch.device) -> Ops | None:
    """None: those that suit model and device. Where a token's numbers depend on how its prompt was cut whatever the
    ops, a warning says so.

    Raises RequestError naming the setting when Triton is not installed or has no such op, or when a tree may be larger
    than deterministic kernels take.
    """
    rotates = model.rope.type == "dynamic"
    if config.kernels == "triton":
        if rotates:
            raise RequestError(
                "kernels 'triton' do not rotate keys when they are read, as dynamic rotary scaling needs it: use auto",
                param="kernels",
            )
        if importlib.util.find_spec("triton") is None:
            raise RequestError("kernels 'triton' need the package triton: install ramiform[gpu]", param="kernels")
    if not config.deterministic:
        return None if config.kernels == "auto" else for_device(device, config.kernels)
    if rotates:
        logger.warning(
            "with dynamic rotary scaling, deterministic does not cover other batches and chunks, only processes"
        )
        return None if config.kernels == "auto" else for_device(device, config.kernels)
    if config.speculative_num_draft_tokens > MAX_DETERMINISTIC_TREE:
        raise RequestError(
            f"deterministic verifies at most {MAX_DETERMINISTIC_TREE} tokens at once, got "
            f"{config.speculative_num_draft_tokens}",
            param="speculative_num_draft_tokens",
        )
    return for_device(device, config.kernels, deterministic=True)
