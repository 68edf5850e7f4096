"""Quantisation schemes of linear layers, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

WeightKind = Literal["int8", "int4", "int2", "fp8", "mxfp4", "nvfp4", "nf4", "fp4"]
WeightSource = Literal["dense", "compressed-tensors", "awq", "gptq", "gguf", "fp8", "bitsandbytes", "mxfp4", "modelopt"]
InputKind = Literal["int8", "fp8", "mxfp4", "mxfp8", "nvfp4"]  # by token, those of MX by 32 inputs, nvfp4 by 16

FOUR_BIT_BLOCKS = frozenset({"Q4_0", "Q4_1", "Q4_K"})  # of GGUF, which stay in 4 bits on any device
GGUF_GROUP = 32  # inputs of their scales


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Weight format of a layer: `int8` and `fp8` have a scale per row or stored tensor, `int4` scale and zero point per
    group, `mxfp4` a power of two per 32 inputs, `nf4` and `fp4` 16 numbers and a scale per block.

    Other layouts are `widened`: decoded to the model's dtype while they are read (`widening`).
    """

    kind: WeightKind
    # Format of the files. dense: rounded while loading; fp8: scales by block of 128 x 128; mxfp4: gpt-oss's experts
    source: WeightSource
    group_size: int | None = None  # inputs of a scale; None: all of a row, and of int4 while loading: none divides all
    activations: bool = False  # inputs are quantised too, with a scale per token
    static: bool = False  # those inputs have one stored scale instead
    per_tensor: bool = False  # one stored scale for all rows
    flat_scales: bool = False  # those of rows are a vector, not a column
    block_format: str | None = None  # GGUF only: ggml's name of the stored blocks
    zero_points: bool = False  # stored; of compressed-tensors only, AWQ and GPTQ always store them
    nested: bool = False  # nf4 and fp4: scales are quantised too
    act_order: bool = False  # integers only: groups have inputs of any place, which a stored index names
    widened: bool = False  # no layer computes this layout
    packed: bool = False  # int8 of compressed-tensors, in words of 32 bits
    exponents: bool = False  # scales are powers of two; fp8 of compressed-tensors
    has_index: bool = False  # GPTQ's, of the group of each input
    zeros_less_one: bool = True  # as GPTQ's first version stores zero points
    scale_name: str = "weight_scale_inv"  # of FP8 by block
    rounded_inputs: InputKind | None = None  # before a layer that takes them as they come


@dataclass(frozen=True)
class Quantisation:
    """The scheme of a decoder's linear layers; the modules that `ignored` names stay dense."""

    scheme: Scheme
    # Names of modules. "re:" begins a pattern, "part:" a name that modules below it and names that end in it match too.
    ignored: tuple[str, ...] = ()
    block_formats: Mapping[str, str] = field(default_factory=dict)  # of all quantised modules of a GGUF file
    overrides: tuple[tuple[str, Scheme | None], ...] = ()  # names as in `ignored`; the first that matches holds
    dense: frozenset[str] = frozenset()  # modules that the files store so, whatever the config says

    def scheme_of(self, module: str) -> Scheme | None:
        """Return the scheme of the module with that Hugging Face name; None when it is dense."""
        if self.block_formats:
            name = self.block_formats.get(module)
            return None if name is None else replace(self.scheme, block_format=name)
        if module in self.dense or _matcher(self.ignored).matches(module):
            return None
        others = (scheme for name, scheme in self.overrides if _matcher((name,)).matches(module))
        return next(others, self.scheme)

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """All schemes that modules may have."""
        return self.scheme, *(scheme for _, scheme in self.overrides if scheme is not None)

    @property
    def is_divisible(self) -> bool:
        """True if ranks may read slices of the stored tensors."""
        return not any(
            scheme.act_order or (scheme.source == "bitsandbytes" and scheme.kind != "int8") for scheme in self.schemes
        )


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


@lru_cache(maxsize=64)
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
