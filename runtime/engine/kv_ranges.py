"""Ranges of a model's keys and values: measured on texts, kept in a file beside the model, converted to scales.

Ranges belong to the model. A scale follows from a range and the format of the codes, so one file serves all formats.

Legend: L layers, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch

from ...kernels import PACKED_INT4, QUANTISED_MAX
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.errors import CheckpointError
from ..models.parallel.group import SINGLE_RANK, Group
from ..models.stored.kv_scales import KvConstants, KvScales, KvStatistics
from ..protocol.errors import RequestError
from ..scheduler.plan import Row
from .kv_pool import PAGE_SIZE, KvMemory
from .kv_statistics import StatisticsFile, statistics_of
from .paths.stages import hidden_and_features

KV_SCALES_FILE = "kv_scales.json"
TOKENS_AT_ONCE = 512  # tokens computed at once

# Headroom above the largest number seen. It costs e4m3 only its smallest numbers, but int8 resolution.
MARGIN = {torch.float8_e4m3fn: 2.0, torch.int8: 1.1}


@dataclass(frozen=True)
class KvRanges:
    """Largest absolute values seen, by layer and head; float32."""

    k_LK: torch.Tensor
    v_LK: torch.Tensor
    num_tokens: int  # of the texts measured
    k_LKD: torch.Tensor | None = None  # of keys by channel; None in files written before there were any

    def scales(self, dtype: torch.dtype) -> KvScales:
        """Return the scales for codes of `dtype`, int8 or e4m3."""
        factor = MARGIN[dtype] / QUANTISED_MAX[dtype]
        # A head whose values are all zero still needs a divisor.
        return KvScales(*((range_LK * factor).clamp_min(1e-6) for range_LK in (self.k_LK, self.v_LK)))

    def statistics(self) -> KvStatistics | None:
        """Return what four-bit keys are relative to: no mean, and factors by channel; None without ranges by channel.

        A factor is the root of the channel's range against the head's others: queries of real models may be large in
        the same channels.
        """
        if self.k_LKD is None:
            return None
        # A channel of small numbers may have had smaller ones here than it will have.
        ranges_LKD = self.k_LKD.clamp_min(1e-6).maximum(self.k_LKD.amax(-1, keepdim=True) * 1e-3)
        exponent_LKD = ranges_LKD.log2()
        factor_LKD = torch.exp2((exponent_LKD - exponent_LKD.mean(-1, keepdim=True)) / 2)
        zeros_LKD, (L, _, D) = torch.zeros_like(factor_LKD), factor_LKD.shape
        return KvStatistics(torch.zeros(L, D // 2), zeros_LKD, zeros_LKD.clone(), factor_LKD)


@torch.inference_mode()
def measure(model: Decoder, texts: Iterable[Sequence[int]], group: Group = SINGLE_RANK) -> KvRanges:
    """Measure the ranges on texts, given as token ids, for the layers and heads that the rank of `group` computes.

    Each text is computed by itself, with keys and values in the model's dtype. Raises RequestError when some are not
    finite.
    """
    config = model.config
    heads = config.num_kv_layers, config.num_kv_heads
    value_size = config.head_dim if config.latent is None else config.latent.rank
    k_LKD = torch.zeros(*heads, config.head_dim, device=model.device)
    v_LKD = torch.zeros(*heads, value_size, device=model.device)
    num_tokens = 0
    for text in texts:
        pages = list(range(-(-len(text) // PAGE_SIZE)))
        memory = KvMemory(config, len(pages), device=model.device, dtype=model.dtype)
        chunk = TOKENS_AT_ONCE if config.recurrent is None else len(text)  # recurrent states have no slots here
        for start in range(0, len(text), chunk):
            part = list(text[start : start + chunk])
            row = Row(rid="", tokens=part, first_position=start, pages=pages, widened=True)
            hidden_and_features([row], np.array([len(row.tokens) - 1]), model, memory.layers(), group, ())
        for range_LKD, memory_LSKD in ((k_LKD, memory.k_LSKD), (v_LKD, memory.v_LSKD)):
            seen_LKD = memory_LSKD[:, : len(text)].abs().amax(1).float()
            torch.maximum(range_LKD, seen_LKD, out=range_LKD)
        num_tokens += len(text)
    for range_LKD in (k_LKD, v_LKD):
        if not range_LKD.isfinite().all():
            raise RequestError(f"keys or values are not finite in {model.dtype}: they have no range", param="dtype")
    return KvRanges(k_LKD.amax(-1).cpu(), v_LKD.amax(-1).cpu(), num_tokens, k_LKD.cpu())


Range = Annotated[float, msgspec.Meta(ge=0)]


class _RangesFile(msgspec.Struct, forbid_unknown_fields=True, tag_field="format", tag="ramiform KV ranges, 1"):
    """Content of a file of version 1; lists by layer, then head."""

    num_tokens: Annotated[int, msgspec.Meta(ge=1)]
    k_absmax: list[list[Range]]
    v_absmax: list[list[Range]]
    k_channel_absmax: list[list[list[Range]]] | None = None  # by layer, head and channel


def ranges_file(path: Path) -> Path:
    """Return the path of the ranges file: in a checkpoint's directory, or next to a model that is one file."""
    return path / KV_SCALES_FILE if path.is_dir() else path.with_suffix("." + KV_SCALES_FILE)


def write_ranges(ranges: KvRanges, file: Path) -> None:
    """Write ranges as JSON."""
    channels = None if ranges.k_LKD is None else ranges.k_LKD.tolist()
    content = _RangesFile(ranges.num_tokens, ranges.k_LK.tolist(), ranges.v_LK.tolist(), channels)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def read_constants(file: Path, config: ModelConfig, dtype: torch.dtype) -> KvConstants | None:
    """Read a file's statistics, or of version 1 static scales for `dtype`; None: it has none for four bits. Raises
    CheckpointError, naming file and field, when it is not readable or of another model."""
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_RangesFile | StatisticsFile)
    except OSError as error:
        raise CheckpointError(file, f"not readable: {error.strerror}") from None
    except ValueError as error:  # also of bad UTF-8
        raise CheckpointError(file, f"not what `ramiform calibrate-kv` writes: {error}") from None
    if isinstance(content, StatisticsFile):
        return statistics_of(content, file, config)
    ranges = _ranges_of(content, file, config)
    return ranges.statistics() if dtype == PACKED_INT4 else ranges.scales(dtype)


def _ranges_of(content: _RangesFile, file: Path, config: ModelConfig) -> KvRanges:
    for name, rows in (("k_absmax", content.k_absmax), ("v_absmax", content.v_absmax)):
        if len(rows) != config.num_kv_layers or any(len(row) != config.num_kv_heads for row in rows):
            raise CheckpointError(
                file,
                f"{name} must have {config.num_kv_layers} layers of {config.num_kv_heads} KV heads each: "
                "the file is of another model",
            )
    channels = content.k_channel_absmax
    if channels is not None and (
        [len(heads) for heads in channels] != [config.num_kv_heads] * config.num_kv_layers
        or any(len(head) != config.head_dim for heads in channels for head in heads)
    ):
        raise CheckpointError(
            file,
            f"k_channel_absmax must have {config.num_kv_layers} layers of {config.num_kv_heads} KV heads of "
            f"{config.head_dim} channels each: the file is of another model",
        )
    return KvRanges(
        torch.tensor(content.k_absmax),
        torch.tensor(content.v_absmax),
        content.num_tokens,
        None if channels is None else torch.tensor(channels),
    )
