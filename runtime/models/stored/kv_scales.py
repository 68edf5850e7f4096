"""Scales of quantised keys and values, or the statistics that keys are stored relative to, by layer and head, and
reading scales from a checkpoint.

Legend: L layers, K key/value heads, D head size.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ....kernels import QUANTISED_MAX, KeyBasis, KvCache
from ..config import ModelConfig
from ..errors import CheckpointError
from ..gguf.file import is_gguf
from .layout import parse_kv_scale_name, renaming
from .weights import weight_files


@dataclass(frozen=True)
class KvScales:
    """Scales in float32, positive: a stored code times its head's scale is the value. They never change."""

    k_LK: torch.Tensor
    v_LK: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.k_LK, self.v_LK

    def of(self, layers: Sequence[int]) -> KvScales:
        """Return the scales of the layers at these places."""
        return KvScales(*(own[list(layers)] for own in self.tensors))

    def heads(self, part: slice) -> KvScales:
        """Return the scales of some heads."""
        return KvScales(*(own[:, part] for own in self.tensors))

    def to(self, device: torch.device) -> KvScales:
        return KvScales(*(own.to(device) for own in self.tensors))

    def with_numbers(self, numbers: torch.Tensor) -> KvScales:
        """Return scales of other numbers, [2, L, K]."""
        return KvScales(*numbers)

    def caches(self, k_LSKD: torch.Tensor, v_LSKD: torch.Tensor) -> tuple[KvCache, ...]:
        """Return the KV cache of each layer. Values that are a part of the keys have their scales."""
        return tuple(map(KvCache, k_LSKD.unbind(), v_LSKD.unbind(), *(own.to(k_LSKD.device) for own in self.tensors)))


@dataclass(frozen=True)
class KvStatistics:
    """Statistics that stored keys are relative to, float32, as `KeyBasis` has them for a layer."""

    frequencies: torch.Tensor  # [L, D / 2]
    mean_LKD: torch.Tensor
    first_LKD: torch.Tensor
    factor_LKD: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.mean_LKD, self.first_LKD, self.factor_LKD

    def of(self, layers: Sequence[int]) -> KvStatistics:
        """Return the statistics of the layers at these places."""
        own = list(layers)
        return KvStatistics(self.frequencies[own], *(part[own] for part in self.tensors))

    def heads(self, part: slice) -> KvStatistics:
        """Return the statistics of some heads."""
        return KvStatistics(self.frequencies, *(own[:, part].contiguous() for own in self.tensors))

    def to(self, device: torch.device) -> KvStatistics:
        return KvStatistics(self.frequencies.to(device), *(own.to(device) for own in self.tensors))

    def with_numbers(self, numbers: torch.Tensor) -> KvStatistics:
        """Return statistics of other numbers, [3, L, K, D]."""
        return KvStatistics(self.frequencies, *numbers)

    def caches(self, k_LSKD: torch.Tensor, v_LSKD: torch.Tensor) -> tuple[KvCache, ...]:
        """Return the KV cache of each layer."""
        own = self.to(k_LSKD.device)
        bases = map(KeyBasis, *(part.unbind() for part in own.tensors), own.frequencies.unbind())
        return tuple(KvCache(k, v, basis=basis) for k, v, basis in zip(k_LSKD, v_LSKD, bases, strict=True))


_NUM_SCALES = 2  # tensors of `KvScales`
KvConstants = KvScales | KvStatistics  # what a quantised cache needs besides its codes


def numbers_of(constants: KvConstants) -> torch.Tensor:
    """Return scales or statistics as one tensor, float32 [N, L, K, ...], on the CPU."""
    return torch.stack([own.float().cpu() for own in constants.tensors])


def numbers_from(data: bytes, shape: Sequence[int]) -> torch.Tensor | None:
    """Return what `numbers_of` returned, of its bytes; None if they are not finite numbers of this shape, or if a
    divisor is not positive."""
    if len(data) != 4 * math.prod(shape):
        return None
    numbers = torch.frombuffer(bytearray(data), dtype=torch.float32).view(*shape)
    divisors = numbers if len(numbers) == _NUM_SCALES else numbers[-1]
    return numbers if numbers.isfinite().all() and (divisors > 0).all() else None


def constants_digest(numbers: torch.Tensor) -> str:
    """Return the digest of a model's scales or statistics, given as `numbers_of` returns them."""
    kind = KvScales if len(numbers) == _NUM_SCALES else KvStatistics
    digest = hashlib.sha256(kind.__name__.encode())
    digest.update(numbers.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def adopted(cache: KvCache, other: KvCache) -> KvCache:
    """Return a layer's cache with the scales or statistics of another one, which are written where its own were:
    captured graphs read them there. It is another value, so that loops read them anew."""
    own, others = ((kv.k_scale_K, kv.v_scale_K, *_numbers_of_basis(kv.basis)) for kv in (cache, other))
    for to, source in zip(own, others, strict=True):
        if to is not None and source is not None:
            to.copy_(source)
    return replace(cache, basis=None if cache.basis is None else replace(cache.basis))


def _numbers_of_basis(basis: KeyBasis | None) -> tuple[torch.Tensor, ...]:
    return () if basis is None else (basis.mean_KD, basis.first_KD, basis.factor_KD)


def read_kv_scales(path: Path, config: ModelConfig, dtype: torch.dtype) -> KvScales | None:
    """Read the KV scales of the checkpoint at `path` for codes of `dtype`; None when it has none, as GGUF files never
    do.

    Stored scales are for e4m3; for int8 they are stretched to the same range of values. Raises CheckpointError when
    only some layers have scales, or a scale has another size, is not finite or not positive.
    """
    if is_gguf(path):
        return None
    found: dict[tuple[str, int], torch.Tensor] = {}
    rename = renaming(config.stored)
    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
                    if (known := parse_kv_scale_name(rename(name))) is not None:
                        scale_K = _scale(file, name, tensors.get_tensor(name), config.num_kv_heads)
                        found |= {(which, known[1]): scale_K for which in known[0]}
        except (SafetensorError, OSError) as error:
            raise CheckpointError(file, f"corrupt or truncated: {error}") from None
    if not found:
        return None
    stretched = QUANTISED_MAX[torch.float8_e4m3fn] / QUANTISED_MAX[dtype]
    k_LK, v_LK = (_stack_layers(path, found, which, config.num_layers) for which in "kv")
    return KvScales(k_LK * stretched, v_LK * stretched)


def _scale(file: Path, name: str, tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Check a stored scale and expand it to [K]."""
    if tensor.numel() not in (1, num_heads):
        raise CheckpointError(
            file, f"the tensor {name} has shape {tuple(tensor.shape)}: a scale is one number, or one for each KV head"
        )
    scale = tensor.float().flatten()
    if not (scale.isfinite() & (scale > 0)).all():
        raise CheckpointError(file, f"the tensor {name} holds an invalid scale: {scale.tolist()}")
    return scale.expand(num_heads)


def _stack_layers(path: Path, found: dict[tuple[str, int], torch.Tensor], which: str, num_layers: int) -> torch.Tensor:
    missing = [layer for layer in range(num_layers) if (which, layer) not in found]
    if missing:
        raise CheckpointError(path, f"has scales for quantised KV, but not {which}_scale of layer {missing[0]}")
    return torch.stack([found[which, layer] for layer in range(num_layers)])
