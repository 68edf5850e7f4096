"""Values that the reader of llguidance's Lark makes: parts of rules and terminals, and the definitions in a grammar.

`at` is a position in the text of the whole input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .parameters import Condition, Function


@dataclass(frozen=True)
class LarkText:
    """A literal. `to` is the last character of a range of characters that begins with it."""

    text: str
    ignores_case: bool
    to: str | None
    at: int = field(compare=False)


@dataclass(frozen=True)
class LarkPattern:
    """A regular expression with flags."""

    pattern: str
    flags: str
    at: int = field(compare=False)


@dataclass(frozen=True)
class LarkSubstring:
    """A run of consecutive texts, perhaps empty."""

    chunks: tuple[str, ...]


@dataclass(frozen=True)
class LarkName:
    """Use of a rule or a terminal. `parameter` computes the rule's from that of the rule around it."""

    name: str
    parameter: Function | None
    at: int

    @property
    def is_terminal(self) -> bool:
        return self.name.lstrip("_")[:1].isupper()


@dataclass(frozen=True)
class TokenRanges:
    """One token: that of a name, or one whose number is in a range of `ranges`, or in none of them if excluded."""

    name: str | None
    ranges: tuple[tuple[int, int], ...]
    is_excluded: bool
    at: int = field(compare=False)


@dataclass(frozen=True, eq=False)
class LarkJson:
    """A JSON value of a schema."""

    schema: Any
    at: int


@dataclass(frozen=True, eq=False)
class LarkNested:
    """A text of another grammar: given here, or by name."""

    grammar: LarkGrammar | str
    at: int


@dataclass(frozen=True)
class LarkSequence:
    """Parts one after another."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class LarkChoice:
    """One of some parts, each under its condition."""

    parts: tuple[tuple[Part, Condition | None], ...]


@dataclass(frozen=True)
class LarkRepeated:
    """A part `least` to `most` times (None: any number of times)."""

    part: Part
    least: int
    most: int | None


@dataclass(frozen=True)
class LarkBoth:
    """Texts that all parts match."""

    parts: tuple[Part, ...]
    at: int


@dataclass(frozen=True)
class LarkNot:
    """Texts that the part does not match."""

    part: Part
    at: int


Part = (
    LarkText
    | LarkPattern
    | LarkSubstring
    | LarkName
    | TokenRanges
    | LarkJson
    | LarkNested
    | LarkSequence
    | LarkChoice
    | LarkRepeated
    | LarkBoth
    | LarkNot
)


@dataclass(frozen=True)
class LarkDefinition:
    """A rule or a terminal. `lazy`: it takes its shortest match, of which `suffix` is the end.

    Its text before the suffix is captured under the name `capture`, the suffix under `suffix_capture`.
    """

    name: str
    body: Part
    at: int
    is_parametric: bool = False
    lazy: bool = False
    suffix: Part | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    capture: str | None = None
    suffix_capture: str | None = None


@dataclass(frozen=True, eq=False)
class LarkGrammar:
    """Definitions by name, what may stand between terminals, and whether it may stand before the first one."""

    definitions: Mapping[str, LarkDefinition]
    ignored: tuple[Part, ...]
    skips_at_start: bool
