"""Storage format of keys and values: the dtype that a setting asks for, and the origin of what quantised ones need.

See docs/inside/decisions/0010-scales-before-the-first-token.md and 0020-four-bit-keys-and-values.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ...kernels import PACKED_INT4, QUANTISED_MAX
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.errors import CheckpointError
from ..models.parallel.group import SINGLE_RANK, Group
from ..models.stored.kv_scales import KvConstants, KvScales, KvStatistics, constants_digest, numbers_of, read_kv_scales
from ..protocol.config import CoreConfig, KvDtypeName
from ..protocol.errors import RequestError
from .kv_ranges import measure, ranges_file, read_constants
from .kv_statistics import divergence, kept_or_measured, start_text

logger = logging.getLogger("ramiform.engine")

KV_DTYPES: dict[KvDtypeName, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "int4": PACKED_INT4,
}
MEASURED = "built-in text"  # origin of what is measured here
_LOSS_BOUND = 0.05  # of the divergence on the built-in text, above which a start warns
_E4M3_CAPABILITY = (8, 9)  # CUDA devices convert e4m3 from this capability on


def choose_kv_dtype(
    name: KvDtypeName, dtype: torch.dtype, device: torch.device, *, head_dim: int = 64, is_latent: bool = False
) -> torch.dtype:
    """Return the dtype that a setting names; `auto` is the model's `dtype`. Raises RequestError when the device lacks
    it, or heads of `head_dim` numbers or latents do."""
    chosen = KV_DTYPES.get(name, dtype)
    if name == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < _E4M3_CAPABILITY:
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        raise RequestError(
            f"kv_dtype 'fp8' needs a device of compute capability 8.9, {device} has {capability}: use int8",
            param="kv_dtype",
        )
    if chosen == PACKED_INT4 and is_latent:
        raise RequestError(
            "kv_dtype 'int4' is not for latent attention, whose values are a part of the keys: use fp8 or int8",
            param="kv_dtype",
        )
    if chosen == PACKED_INT4 and head_dim % 4:
        raise RequestError(
            f"kv_dtype 'int4' needs heads whose size is a multiple of 4, this model's is {head_dim}: use int8",
            param="kv_dtype",
        )
    return chosen


def kv_dtype_name(dtype: torch.dtype) -> KvDtypeName:
    """Return the name of a dtype in settings."""
    return next(name for name, known in KV_DTYPES.items() if known == dtype)


@dataclass(frozen=True)
class ChosenScales:
    """Scales of keys and values, or the statistics that keys are stored relative to, and their origin."""

    constants: KvConstants | None
    origin: str  # a file, "checkpoint", MEASURED, or "none" where none are needed
    digest: str = "none"  # of the whole model's; of what ranks measure, that of the rank's part


def given_scales(config: CoreConfig, path: Path, model: ModelConfig, dtype: torch.dtype) -> ChosenScales | None:
    """Return the whole model's scales or statistics for keys and values of `dtype` that a file has: the one that the
    settings name, else that beside the model, else the checkpoint; None: they are measured, or none are needed.

    Raises CheckpointError when a file is not readable or of another model, RequestError when `kv_scales` is set for a
    dtype without scales.
    """
    if dtype not in QUANTISED_MAX and dtype != PACKED_INT4:
        if config.kv_scales is not None:
            raise RequestError(
                f"kv_scales are for kv_dtype fp8, int8 and int4, not {config.kv_dtype!r}", param="kv_scales"
            )
        return None
    file = ranges_file(path) if config.kv_scales is None else Path(config.kv_scales)
    if config.kv_scales is not None or file.is_file():
        found = read_constants(file, model, dtype)
        if found is not None:
            return ChosenScales(found, str(file), _digest(found))
        if config.kv_scales is not None:
            raise CheckpointError(file, "has no k_channel_absmax, which int4 needs: run `ramiform calibrate-kv` again")
    if dtype != PACKED_INT4 and (stored := read_kv_scales(path, model, dtype)) is not None:
        return ChosenScales(stored, "checkpoint", _digest(stored))
    return None


def is_scaled(dtype: torch.dtype, model: ModelConfig, given: ChosenScales | None) -> bool:
    """Return True if codes have scales of their own, and keys are stored relative to statistics: unless static scales
    are given or attention is latent."""
    if dtype not in QUANTISED_MAX or model.latent is not None:
        return dtype == PACKED_INT4
    return given is None or isinstance(given.constants, KvStatistics)


def choose_scales(
    given: ChosenScales | None,
    config: CoreConfig,
    path: Path,
    model: Decoder,
    dtype: torch.dtype,
    group: Group = SINGLE_RANK,
) -> ChosenScales:
    """Return the scales or statistics of the layers and heads that the rank of `group` computes, for keys and values of
    `dtype` of the model at `path`: `given` ones, else measured on the built-in text. They never change afterwards."""
    if given is not None:
        assert given.constants is not None
        if isinstance(given.constants, KvScales):
            logger.warning("KV in %s with the static scales of %s", kv_dtype_name(dtype), given.origin)
        count = len(given.constants.tensors[0])  # fewer than layers, where some keep states
        own = given.constants.of([layer for layer in model.layers if layer < count]).heads(model.kv_heads)
        warn_of_losses(path, model, dtype, own, group)
        return ChosenScales(own, given.origin, given.digest)
    if dtype not in QUANTISED_MAX and dtype != PACKED_INT4:
        return ChosenScales(None, "none")
    text = start_text(path, model.config)
    if is_scaled(dtype, model.config, None):
        constants: KvConstants = kept_or_measured(path, config.quantize, model, text, group)
    else:
        constants = measure(model, [text], group).scales(dtype)
    warn_of_losses(path, model, dtype, constants, group)
    return ChosenScales(constants, MEASURED, _digest(constants))


def warn_of_losses(
    path: Path,
    model: Decoder,
    dtype: torch.dtype,
    constants: KvConstants,
    group: Group,
    *,
    adapter: int = 0,
    adapter_name: str | None = None,
) -> None:
    """Warn of a format that moves much of what the model predicts, by itself or with a LoRA adapter, whose keys the
    statistics do not know; name a format that does not."""
    if group.shard.size * group.stage.size > 1:
        return  # no rank has all logits
    lost_by = partial(divergence, model, start_text(path, model.config), constants=constants, adapter=adapter)
    lost = lost_by(dtype)
    if lost <= _LOSS_BOUND:
        return
    better = "int8" if dtype == PACKED_INT4 and lost_by(torch.int8) <= _LOSS_BOUND else "bf16"
    logger.warning(
        "kv_dtype %s moves the predictions of %s: a KL divergence of %.1f %% on the built-in text. %s stays below %.0f",
        kv_dtype_name(dtype),
        "this model" if adapter_name is None else f"the LoRA adapter {adapter_name!r}",
        100 * lost,
        better,
        100 * _LOSS_BOUND,
    )


def _digest(constants: KvConstants) -> str:
    return constants_digest(numbers_of(constants))
