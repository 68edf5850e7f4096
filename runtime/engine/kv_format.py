"""Storage format of keys and values: the dtype that a setting asks for, and the origin of the scales of quantised ones.

See docs/inside/decisions/0010-scales-before-the-first-token.md and 0020-four-bit-keys-and-values.md.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from ...kernels import PACKED_INT4, QUANTISED_MAX
from ..models.decoder import Decoder
from ..models.errors import CheckpointError
from ..models.parallel.group import SINGLE_RANK, Group
from ..models.stored.kv_scales import KvScales, read_kv_scales
from ..protocol.config import CoreConfig, KvDtypeName
from ..protocol.errors import RequestError
from .kv_ranges import measure, random_texts, ranges_file, read_ranges

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
    """Scales of keys and values, and their origin."""

    scales: KvScales | None
    origin: str  # a file, "checkpoint", "random tokens", or "none" where none are needed
    digest: str = "none"  # of the whole model's scales; of scales measured here, also of the ranks that share it


def choose_scales(
    config: CoreConfig, path: Path, model: Decoder, dtype: torch.dtype, group: Group = SINGLE_RANK
) -> ChosenScales:
    """Return the scales for keys and values of `dtype` of the model at `path`.

    They come from the file that the settings name, else the file beside the model, else the checkpoint, else a
    measurement on random tokens. They never change afterwards.

    Raises CheckpointError when a file is not readable or of another model, RequestError when `kv_scales` is set for a
    dtype without scales.
    """
    if dtype not in QUANTISED_MAX and dtype != PACKED_INT4:
        if config.kv_scales is not None:
            raise RequestError(
                f"kv_scales are for kv_dtype fp8, int8 and int4, not {config.kv_dtype!r}", param="kv_scales"
            )
        return ChosenScales(None, "none")
    file = ranges_file(path) if config.kv_scales is None else Path(config.kv_scales)
    if config.kv_scales is not None or file.is_file():
        found = read_ranges(file, model.whole_config)
        if dtype != PACKED_INT4 or found.k_LKD is not None:
            whole = found.scales(dtype)
            return ChosenScales(_own(whole, model), str(file), _digest(whole))
        if config.kv_scales is not None:
            raise CheckpointError(file, "has no k_channel_absmax, which int4 needs: run `ramiform calibrate-kv` again")
    if dtype != PACKED_INT4 and (stored := read_kv_scales(path, model.whole_config, dtype)) is not None:
        return ChosenScales(_own(stored, model), "checkpoint", _digest(stored))
    ranges = measure(model, random_texts(model.config), group)
    # Four-bit keys and values have scales of their own: the channels' only balance them, and clip nothing.
    logger.log(
        logging.INFO if dtype == PACKED_INT4 else logging.WARNING,
        "KV in %s with scales measured on %d RANDOM tokens: neither %s nor the checkpoint has any. "
        "Better ones: ramiform calibrate-kv %s --data TEXTS",
        kv_dtype_name(dtype),
        ranges.num_tokens,
        file,
        path,
    )
    scales = ranges.scales(dtype)
    ranks = f" tp{group.shard.size} pp{group.stage.size}" if group.shard.size * group.stage.size > 1 else ""
    return ChosenScales(scales, "random tokens", _digest(scales) + ranks)


def _digest(scales: KvScales) -> str:
    digest = hashlib.sha256()
    for scales_LK in (scales.k_LK, *(() if scales.v_LK is None else (scales.v_LK,))):
        digest.update(scales_LK.float().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _own(scales: KvScales, model: Decoder) -> KvScales:
    """Return the scales of the layers and heads that the rank computes."""
    return scales.layers(model.layers).heads(model.kv_heads)
