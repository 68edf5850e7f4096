"""The kinds of constraints, as values that `compile_constraint` compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

WhitespacePolicy = Literal["compact", "bounded", "spaced", "any"]
PropertyOrder = Literal["any", "schema"]


@dataclass(frozen=True)
class Regex:
    r"""The whole output matches `pattern`, as in `re.fullmatch(pattern, output, re.ASCII)`.

    Unlike in `re`, `$` matches at the end of the output only, `\B` also matches in an empty output, and `(?i)` ignores
    the case of letters beyond ASCII too. Look-around, `\b`, `\p{...}` and `(?imsxu)` are supported; back-references,
    possessive repeats and atomic groups are refused.
    """

    pattern: str


@dataclass(frozen=True)
class SchemaOptions:
    """Restrictions of a schema's values beyond JSON Schema. The defaults are JSON Schema's own semantics.

    `additional_properties`: with "closed", an object whose schema lists `properties` or `patternProperties` and does
    not mention other members has no others, as under `unevaluatedProperties: false`; its members come in the schema's
    order. `integers`: with "digits", integers are written as `-?(0|[1-9][0-9]*)`; with "schema", also as `12.0` and
    `1e+22`. Both restrict the text that is generated. Conditions (`not`, `if`, "exactly one" of `oneOf`, `contains`)
    keep JSON Schema's meaning, so every output is valid under the schema as JSON Schema defines it. `number_digits`: a
    number has at most so many digits before the point and as many after it, or as many as a bound, divisor or given
    value of the schema has; None: any number. `whitespace`: that of `compile_constraint` unless None.
    """

    additional_properties: Literal["schema", "closed"] = "schema"
    integers: Literal["schema", "digits"] = "schema"
    number_digits: int | None = None
    whitespace: WhitespacePolicy | None = None


@dataclass(frozen=True)
class JsonSchema:
    """The output is one JSON value that is valid under `schema`: an object, a boolean, or the text of either."""

    schema: Mapping[str, Any] | bool | str
    options: SchemaOptions = SchemaOptions()


@dataclass(frozen=True)
class JsonObject:
    """The output is any JSON object."""


@dataclass(frozen=True)
class Choices:
    """The output is one of `values`."""

    values: Sequence[str]


@dataclass(frozen=True)
class Substring:
    """The output is a part of `text`, from the beginning of a word to the end of one, and not empty.

    Words are runs of letters, digits, marks and `_`; other characters but white space are words by themselves, also
    those of scripts that have no spaces.
    """

    text: str


@dataclass(frozen=True)
class Grammar:
    """The whole output is a text of a context-free grammar.

    `start` is the rule to begin with (default: "start" in Lark, else "root"). `syntax`: "lark" is a Lark file, parsed
    as by Lark's Earley parser with its lexer `dynamic` (not `dynamic_complete`): a terminal takes its preferred match,
    and all readings by these count. "gbnf" or "ebnf" is the syntax of llama.cpp and xgrammar, in which every match
    counts.
    """

    text: str
    syntax: Literal["lark", "gbnf", "ebnf"] = "lark"
    start: str | None = None


@dataclass(frozen=True)
class StructuralTag:
    """Text of a grammar of constant strings, free text, patterns, JSON values and tags.

    `spec` is the JSON of xgrammar and SGLang: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}` or
    `{"format": {...}}`. Free text is any text without a trigger. A trigger must continue as one of the tags that begin
    with it. Every reading of a text counts. docs/use/constrained.md lists the formats.
    """

    spec: Mapping[str, Any] | str
    options: SchemaOptions = SchemaOptions()  # for the schemas in `spec`


@dataclass(frozen=True)
class JsonString:
    """The output is `before`, the content of a JSON string whose value is a text of `content`, and `after`.

    The quotes of the string belong to `before` and `after`. A grammar is in Lark's syntax.
    """

    content: Regex | Grammar
    before: str = '"'
    after: str = '"'


@dataclass(frozen=True)
class Prefixed:
    """The output is `text`, which no token need end with, and then a text of `rest`."""

    text: str
    rest: GrammarSource


GrammarSource = Regex | JsonSchema | JsonObject | Choices | Substring | Grammar | StructuralTag | JsonString | Prefixed
