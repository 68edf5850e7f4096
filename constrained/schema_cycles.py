"""Schemas that apply to a value only what they themselves are: these mean nothing, and are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .errors import GrammarError
from .schema.document import Document, Location
from .schema.keywords import child

MAX_SAME_VALUE = 100  # schemas inside each other that apply to one value


def check_cycles(document: Document) -> None:
    """Raises GrammarError with the pointer of a reference that closes a circle, or of a schema that is too deep."""
    done: set[int] = set()
    for start in document.all:
        if isinstance(start.schema, dict) and "$ref" in start.schema and id(start.schema) not in done:
            path: dict[int, None] = {id(start.schema): None}
            todo = [(start, _same_value(document, start))]
            while todo:
                location, inner = todo[-1]
                found = next(inner, None)
                if found is None:
                    todo.pop()
                    path.pop(id(location.schema))
                    done.add(id(location.schema))
                    continue
                pointer, target = found
                if id(target.schema) in path:
                    raise GrammarError("the schema refers to itself without an end", pointer=pointer)
                if len(todo) > MAX_SAME_VALUE:
                    raise GrammarError("schemas of one value nested deeper than is supported", pointer=pointer)
                if isinstance(target.schema, dict) and id(target.schema) not in done:
                    path[id(target.schema)] = None
                    todo.append((target, _same_value(document, target)))


def _same_value(document: Document, location: Location) -> Iterator[tuple[str, Location]]:
    """What a schema applies to the very value that it is applied to, and where it says so."""
    schema: dict[str, Any] = location.schema
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            yield child(location.pointer, keyword), document.resolve(schema[keyword], location, keyword)
    if "$ref" in schema and document.ref_is_alone:
        return
    for keyword in ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"):
        value = schema.get(keyword)
        parts: list[tuple[str | int, Any]] = []
        if isinstance(value, list):
            parts = list(enumerate(value))
        elif keyword.startswith("dependen") and isinstance(value, dict):
            parts = list(value.items())
        elif isinstance(value, dict):
            yield child(location.pointer, keyword), document.inside(location, value, keyword)
        for name, inner in parts:
            if isinstance(inner, dict):
                yield child(location.pointer, keyword, name), document.inside(location, inner, keyword, name)
