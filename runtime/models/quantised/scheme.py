"""How a layer's weights are quantised, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["int8", "int4", "fp8"]
Source = Literal["dense", "compressed-tensors", "awq", "gptq"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """`int8` and `fp8` have a scale per row, or one per stored tensor; `int4` a scale and a zero point per group."""

    kind: Kind
    source: Source  # what the files hold; dense: rounded while loading
    group_size: int | None = None  # int4: None lets the row's length choose
    activations: bool = False  # inputs are quantised too, with a scale per token
    per_tensor: bool = False  # one stored scale for all rows
    zero_points: bool = False  # stored; int4 of compressed-tensors only, AWQ and GPTQ always store them


@dataclass(frozen=True)
class Quantisation:
    """The scheme of a decoder's linear layers, but for those that `ignored` names: dense ones."""

    scheme: Scheme
    ignored: tuple[str, ...] = ()  # names of modules; "re:" begins a pattern

    def scheme_of(self, module: str) -> Scheme | None:
        """Of the module with that Hugging Face name; None: dense."""
        return None if any(self._names(entry, module) for entry in self.ignored) else self.scheme

    def _names(self, entry: str, module: str) -> bool:
        if entry.startswith("re:"):
            return re.match(entry[3:], module) is not None
        return entry == module


LOAD_TIME = {
    "int8": Quantisation(Scheme(kind="int8", source="dense")),
    "int4": Quantisation(Scheme(kind="int4", source="dense")),
    "fp8": Quantisation(Scheme(kind="fp8", source="dense", activations=True)),
}
