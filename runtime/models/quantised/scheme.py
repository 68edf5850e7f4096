"""Quantisation schemes of linear layers, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

WeightKind = Literal["int8", "int4", "fp8", "mxfp4", "nf4", "fp4"]
WeightSource = Literal["dense", "compressed-tensors", "awq", "gptq", "gguf", "fp8", "bitsandbytes", "mxfp4"]

FOUR_BIT_BLOCKS = frozenset({"Q4_0", "Q4_1", "Q4_K"})  # of GGUF, which stay in 4 bits on any device
GGUF_GROUP = 32  # inputs of their scales


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Weight format of a layer: `int8` and `fp8` have a scale per row or stored tensor, `int4` scale and zero point per
    group, `mxfp4` a power of two per 32 inputs, `nf4` and `fp4` 16 numbers and a scale per block."""

    kind: WeightKind
    # Format of the files. dense: rounded while loading; fp8: scales by block of 128 x 128; mxfp4: gpt-oss's experts
    source: WeightSource
    group_size: int | None = None  # int4 only; None: no size divides all rows
    activations: bool = False  # inputs are quantised too, with a scale per token
    static: bool = False  # those inputs have one stored scale instead
    per_tensor: bool = False  # one stored scale for all rows
    block_format: str | None = None  # GGUF only: ggml's name of the stored blocks
    zero_points: bool = False  # stored; int4 of compressed-tensors only, AWQ and GPTQ always store them
    nested: bool = False  # nf4 and fp4: scales are quantised too
    act_order: bool = False  # int4 only: groups have inputs of any place, which a stored index names


@dataclass(frozen=True)
class Quantisation:
    """The scheme of a decoder's linear layers; the modules that `ignored` names stay dense."""

    scheme: Scheme
    # Names of modules. "re:" begins a pattern, "part:" a name that modules below it and names that end in it match too.
    ignored: tuple[str, ...] = ()
    block_formats: Mapping[str, str] = field(default_factory=dict)  # of all quantised modules of a GGUF file

    def scheme_of(self, module: str) -> Scheme | None:
        """Return the scheme of the module with that Hugging Face name; None when it is dense."""
        if self.block_formats:
            name = self.block_formats.get(module)
            return None if name is None else replace(self.scheme, block_format=name)
        return None if _matcher(self.ignored).matches(module) else self.scheme

    @property
    def is_divisible(self) -> bool:
        """True if ranks may read slices of the stored tensors."""
        whole = self.scheme.act_order or (self.scheme.source == "bitsandbytes" and self.scheme.kind != "int8")
        return not whole


class _Matcher(NamedTuple):
    """Names of modules, sorted by kind: models have tens of thousands of modules, and files list hundreds of names."""

    names: frozenset[str]
    ends: tuple[str, ...]
    tops: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    def matches(self, module: str) -> bool:
        if module in self.names or module.endswith(self.ends):
            return True
        if self.tops and any(above in self.tops for above in _above(module)):
            return True
        return any(pattern.match(module) for pattern in self.patterns)


@lru_cache(maxsize=16)
def _matcher(ignored: tuple[str, ...]) -> _Matcher:
    parts = tuple(entry.removeprefix("part:") for entry in ignored if entry.startswith("part:"))
    patterns = tuple(re.compile(entry.removeprefix("re:")) for entry in ignored if entry.startswith("re:"))
    names = frozenset(entry for entry in ignored if not entry.startswith(("re:", "part:")))
    return _Matcher(names, parts, frozenset(parts), patterns)


def _above(module: str) -> Iterator[str]:
    """Yield the names of the modules that the module is in."""
    while module := module.rpartition(".")[0]:
        yield module


def quantise_while_loading(kind: WeightKind, group_size: int | None) -> Quantisation:
    """Return the quantisation of a dense checkpoint whose linear layers are rounded while they are read."""
    return Quantisation(
        Scheme(
            kind=kind,
            source="dense",
            group_size=group_size if kind == "int4" else None,
            activations=kind == "fp8",
        )
    )
