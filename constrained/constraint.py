"""What a user may ask for. Values only; `compile_constraint` gives them meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Regex:
    r"""The whole output matches `pattern`, as `re.fullmatch(pattern, output, re.ASCII)` would say, where `$` is the end
    of the output only. Look-around, back-references, `\b`, `\p` and inline flags are refused."""

    pattern: str


@dataclass(frozen=True)
class JsonSchema:
    """The output is one JSON value that is valid under `schema`: an object, a boolean, or the text of either."""

    schema: Mapping[str, Any] | bool | str


@dataclass(frozen=True)
class Choices:
    """The output is one of `values`."""

    values: Sequence[str]


Constraint = Regex | JsonSchema | Choices
