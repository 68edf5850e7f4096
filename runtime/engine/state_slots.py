"""Memory of recurrent states: how many slots a model with recurrent layers gets, and the settings it refuses."""

from __future__ import annotations

import logging

import torch

from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.parallel.group import Group
from ..protocol.config import DEFAULT_MAX_RUNNING, CoreConfig
from ..protocol.errors import RequestError
from .kv_size import DEFAULT_FRACTIONS, MAX_RUNNING_ON_CUDA, available_memory

logger = logging.getLogger("ramiform.engine")

_SHARE = 0.25  # of the memory for KV and states together
_SLOTS_OF_A_REQUEST = 8  # no more are of use: its own, and the checkpoints of its prompt and of others'
_CHECKPOINTS_OF_A_REQUEST = 1  # at least, where the number of running requests follows from the slots


def check_recurrent_settings(config: CoreConfig, model: ModelConfig, group: Group, device: torch.device) -> None:
    """Raise RequestError for a setting that models with recurrent layers do not know on `device`."""
    if model.recurrent is None:
        if config.state_slots is not None:
            raise RequestError(f"state_slots: {model.architecture} has no recurrent layers", param="state_slots")
        return
    reasons = {
        "tp": "they are not divided" if group.shard.size > 1 else None,
        "pp": "they are not divided" if group.stage.size > 1 else None,
        "deterministic": _why_not_deterministic(config, device) if config.deterministic else None,
        "overlap": "a step's states follow from the tokens of the one before" if config.overlap == "on" else None,
    }
    for setting in ("transfer_bind", "prefill_workers", "transfer_keys"):
        reasons[setting] = "pages without their states are of no use" if getattr(config, setting) is not None else None
    for setting, reason in reasons.items():
        if reason is not None:
            raise RequestError(
                f"{setting} is not for models with recurrent layers, such as {model.architecture}: {reason}",
                param=setting,
            )


def _why_not_deterministic(config: CoreConfig, device: torch.device) -> str | None:
    """Return the reason why sums would depend on how a prompt is cut; None where compiled loops take token by token."""
    if device.type == "cpu" and config.kernels == "auto" and config.dtype != "float16":
        return None
    where = f"{device}, kernels {config.kernels!r}, dtype {config.dtype!r}"
    return f"only a CPU's compiled loops, in float32 or bfloat16, compute a prompt alike however it is cut, not {where}"


def allocate_states(config: CoreConfig, model: Decoder) -> int:
    """Allocate the states of a model with recurrent layers; return their bytes, 0 without such layers.

    Raises RequestError naming `state_slots` when the device lacks the memory, or requests could not all run.
    """
    recurrent, device = model.config.recurrent, model.device
    if recurrent is None:
        return 0
    each, num_slots = recurrent.state_bytes(model.dtype), config.state_slots
    free = available_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if num_slots is None:
        most = config.max_running or (DEFAULT_MAX_RUNNING if device.type == "cpu" else MAX_RUNNING_ON_CUDA)
        share = _SHARE * (config.mem_fraction or DEFAULT_FRACTIONS[device.type])
        num_slots = max(config.max_running or 1, min(int(share * free) // each, _SLOTS_OF_A_REQUEST * most))
    if config.max_running is not None and num_slots < config.max_running:
        raise RequestError(
            f"state_slots {num_slots} are fewer than max_running {config.max_running}: a running request has one",
            param="state_slots",
        )
    too_many = RequestError(
        f"{num_slots} recurrent states take {num_slots * each / 2**30:,.1f} GiB, more than {device} has "
        f"({free / 2**30:,.1f} GiB are free): lower state_slots",
        param="state_slots",
    )
    if num_slots * each > free:  # a host would give the memory, and kill a process that writes to it
        raise too_many
    try:
        model.allocate_states(num_slots)
    except (RuntimeError, torch.OutOfMemoryError):
        raise too_many from None
    logger.info("%d slots of recurrent states, %.1f MiB each", num_slots, each / 2**20)
    return num_slots * each


def limit_running(config: CoreConfig, model: Decoder, max_running: int) -> int:
    """Return how many requests run at once: each has a slot, and more are left for checkpoints."""
    if model.states is None or config.max_running is not None:
        return max_running
    return max(1, min(max_running, model.states.num_slots // (1 + _CHECKPOINTS_OF_A_REQUEST)))
