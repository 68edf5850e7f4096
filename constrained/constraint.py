"""What a user may ask for. Values only; `compile_constraint` gives them meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Regex:
    r"""The whole output matches `pattern`, as `re.fullmatch(pattern, output, re.ASCII)` would say, where `$` is the end
    of the output only and `\B` is also in an empty one. Look-around, `\b`, `\p{...}` and `(?imsxu)` are supported;
    back-references, possessive repeats and atomic groups are refused."""

    pattern: str


@dataclass(frozen=True)
class SchemaOptions:
    """How a schema is read where JSON Schema allows more than people mean. The defaults are JSON Schema's own reading.

    `additional_properties`: "closed" ends objects that list `properties` or `patternProperties` and say nothing of
    other members, as `unevaluatedProperties: false` would, and writes members in the schema's order. `integers`:
    "digits" writes integers as `-?(0|[1-9][0-9]*)`, "schema" as `12.0` and `1e+22` too. Both hold for the text that is
    written; conditions (`not`, `if`, "exactly one" of `oneOf`, `contains`) keep JSON Schema's meaning, so that whatever
    is written is valid under the schema in either reading.
    """

    additional_properties: Literal["schema", "closed"] = "schema"
    integers: Literal["schema", "digits"] = "schema"


@dataclass(frozen=True)
class JsonSchema:
    """The output is one JSON value that is valid under `schema`: an object, a boolean, or the text of either."""

    schema: Mapping[str, Any] | bool | str
    options: SchemaOptions = SchemaOptions()


@dataclass(frozen=True)
class JsonObject:
    """The output is a JSON object, any."""


@dataclass(frozen=True)
class Choices:
    """The output is one of `values`."""

    values: Sequence[str]


@dataclass(frozen=True)
class Grammar:
    """The whole output is a text of a context-free grammar, from its rule `start` (Lark: "start", others: "root").

    "lark": a Lark file, read as Lark's Earley parser with its dynamic lexer reads it. "gbnf", or "ebnf": as llama.cpp
    writes grammars.
    """

    text: str
    syntax: Literal["lark", "gbnf", "ebnf"] = "lark"
    start: str | None = None


@dataclass(frozen=True)
class StructuralTag:
    """Free text in which triggers begin tags, and tags hold what a schema, pattern or grammar describes: xgrammar's and
    SGLang's JSON, `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}` or `{"format": {...}}`.

    Free text is any bytes without a trigger. At a trigger the text goes on as one of the tags that begin with it. A tag
    ends where its end string first completes a content. With `at_least_one` the text may not end before a tag has.
    """

    spec: Mapping[str, Any] | str
    options: SchemaOptions = SchemaOptions()  # of the schemas in it


Constraint = Regex | JsonSchema | JsonObject | Choices | Grammar | StructuralTag
