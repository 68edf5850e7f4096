"""Storage format of keys and values: the dtype that a setting asks for, and the origin of the scales of eight-bit ones.

See docs/decisions/0010-scales-before-the-first-token.md.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from ...kernels import QUANTISED_MAX
from ..models.decoder import Decoder
from ..models.kv_scales import KvScales, read_kv_scales
from ..models.parallel.group import SINGLE_RANK, Group
from ..protocol.config import CoreConfig, KvDtypeName
from ..protocol.errors import RequestError
from .kv_ranges import measure, random_texts, ranges_file, read_ranges

logger = logging.getLogger("ramiform.engine")

KV_DTYPES: dict[KvDtypeName, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
_E4M3_CAPABILITY = (8, 9)  # CUDA devices convert e4m3 from this capability on


def choose_kv_dtype(name: KvDtypeName, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype that a setting names; `auto` is the model's `dtype`. Raises RequestError when the device lacks
    it."""
    chosen = KV_DTYPES.get(name, dtype)
    if name == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < _E4M3_CAPABILITY:
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        raise RequestError(
            f"kv_dtype 'fp8' needs a device of compute capability 8.9, {device} has {capability}: use int8",
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
    if dtype not in QUANTISED_MAX:
        if config.kv_scales is not None:
            raise RequestError(f"kv_scales are for kv_dtype fp8 and int8, not {config.kv_dtype!r}", param="kv_scales")
        return ChosenScales(None, "none")
    file = ranges_file(path) if config.kv_scales is None else Path(config.kv_scales)
    if config.kv_scales is not None or file.is_file():
        whole = read_ranges(file, model.whole_config).scales(dtype)
        return ChosenScales(_own(whole, model), str(file), _digest(whole))
    if (stored := read_kv_scales(path, model.whole_config, dtype)) is not None:
        return ChosenScales(_own(stored, model), "checkpoint", _digest(stored))
    ranges = measure(model, random_texts(model.config), group)
    logger.warning(
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
    for scales_LK in (scales.k_LK, scales.v_LK):
        digest.update(scales_LK.float().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _own(scales: KvScales, model: Decoder) -> KvScales:
    """Return the scales of the layers and heads that the rank computes."""
    return scales.layers(model.layers).heads(model.kv_heads)
