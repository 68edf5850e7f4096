"""The formats of a structural tag, as values. `spec` reads them; knows nothing of automata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Token:
    """A token of the vocabulary. `shown`: as the specification names it."""

    number: int
    shown: int | str = field(compare=False)


@dataclass(frozen=True)
class ConstStringFormat:
    """A constant string."""

    text: bytes


@dataclass(frozen=True, eq=False)
class SchemaFormat:
    """A JSON value. `pointer` is that of the schema in the specification.

    `order` and `whitespace` are None where the request decides. No text of `excludes` occurs in a string or name.
    """

    schema: Any
    order: Literal["any", "schema"] | None
    whitespace: Literal["compact", "bounded"] | None
    excludes: tuple[str, ...]
    pointer: str
    inside: str = ""  # the pointer of what is at `pointer` of the specification within the schema


@dataclass(frozen=True)
class RawTextFormat:
    """A string that is written as it is, without the text `end` unless that is empty: one of `texts` unless None."""

    pattern: str | None
    format: str | None
    min_length: int
    max_length: int | None
    end: str
    texts: tuple[str, ...] | None


@dataclass(frozen=True)
class AnyTextFormat:
    """Text in which no text of `excludes` occurs, of a number of characters and tokens (None: any)."""

    excludes: tuple[str, ...]
    max_chars: int | None
    max_tokens: int | None


@dataclass(frozen=True)
class RegexFormat:
    """A whole match of a Python pattern."""

    pattern: str
    pointer: str


@dataclass(frozen=True)
class GrammarFormat:
    """A text of a grammar in llama.cpp's notation. `pointer` is None for one that is no part of a tag."""

    text: str
    pointer: str | None
    start: str = "root"


@dataclass(frozen=True)
class WhitespaceFormat:
    """Blanks and newlines between parts, at most so many. None: as many as the request lets JSON have."""

    most: int | None


@dataclass(frozen=True)
class TokensFormat:
    """Tokens one after another: of `tokens`, or of all others that have text. `most` None: any number."""

    tokens: tuple[Token, ...]
    is_excluded: bool
    least: int
    most: int | None


@dataclass(frozen=True)
class TagFormat:
    """A tag: its opening, a content, and one of its ends."""

    begin: bytes | Token
    content: Format
    ends: tuple[bytes, ...] | Token
    pointer: str


@dataclass(frozen=True)
class SequenceFormat:
    """Formats one after another."""

    parts: tuple[Format, ...]


@dataclass(frozen=True)
class OrFormat:
    """Choice of one format."""

    parts: tuple[Format, ...]


@dataclass(frozen=True)
class RepeatFormat:
    """A format `least` to `most` times (None: any number of times)."""

    content: Format
    least: int
    most: int | None


@dataclass(frozen=True)
class DispatchFormat:
    """Free text in which each pattern is followed by a format of its own.

    `excludes` do not occur in the free text. The text ends after one pattern and its format, unless it `loops`. With
    `at_least_one` it begins with a pattern. The ends of the tag around it are excluded too, where it is `ended`.
    """

    rules: tuple[tuple[bytes | Token, Format], ...]
    excludes: tuple[bytes | Token, ...]
    loops: bool
    at_least_one: bool
    is_ended: bool


@dataclass(frozen=True)
class SeparatedTagsFormat:
    """Tags with separators between them, and nothing else."""

    tags: tuple[TagFormat, ...]
    separator: bytes
    at_least_one: bool
    stop_after_first: bool


Format = (
    ConstStringFormat
    | SchemaFormat
    | RawTextFormat
    | AnyTextFormat
    | RegexFormat
    | GrammarFormat
    | TokensFormat
    | WhitespaceFormat
    | TagFormat
    | SequenceFormat
    | OrFormat
    | RepeatFormat
    | DispatchFormat
    | SeparatedTagsFormat
)
