"""Notes the unknown keywords of a request's schemas that are likely meant to be others, for a header of its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from ....constrained.schema.keywords import KEYWORDS, MAPPING, ONE, SEQUENCE, child, meant_keyword

HEADER = "x-schema-warning"
NOTED: ContextVar[list[str] | None] = ContextVar("NOTED", default=None)  # of the request that is answered
_MAX_SOURCE = 1 << 16  # characters of a schema that is looked through: larger ones would hold up other requests
_MAX_NOTED = 8


def note_misspelled(field: str, text: str) -> None:
    """Note the keywords of a schema, as JSON text, that enforce nothing but are near one that does."""
    noted = NOTED.get()
    if noted is None or len(text) > _MAX_SOURCE:
        return
    with suppress(ValueError, RecursionError):  # which the compilation refuses
        for pointer, keyword, meant in _misspelled(json.loads(text)):
            if len(noted) == _MAX_NOTED:
                return
            # A name may have line breaks, which a header cannot.
            where = f"{field}: {child(pointer, keyword)}".encode("unicode_escape").decode()
            noted.append(f"{where} is no keyword and enforces nothing; did you mean {meant}?")


def _misspelled(schema: Any, pointer: str = "") -> Iterator[tuple[str, str, str]]:
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        if (meant := meant_keyword(name)) is not None:
            yield pointer, name, meant
        places = KEYWORDS[name].places if name in KEYWORDS else 0
        if places & ONE:
            yield from _misspelled(value, child(pointer, name))
        if places & SEQUENCE and isinstance(value, list):
            for index, inner in enumerate(value):
                yield from _misspelled(inner, child(pointer, name, index))
        if places & MAPPING and isinstance(value, dict):
            for inner_name, inner in value.items():
                yield from _misspelled(inner, child(pointer, name, inner_name))
