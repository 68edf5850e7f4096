"""`substring`: text that stands in a given text, word by word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...runtime.protocol.errors import RequestError
from .expr import GenExpr, OnCut
from .format_marks import refuse_marks
from .primitives import gen
from .symbols import known, texts_of

_CONSTRAINTS = ("dtype", "choices", "regex", "json_schema", "grammar", "schema", "tools")


def substring(text: str, name: str | None = None, *, on_cut: OnCut = "raise", **options: Any) -> GenExpr:
    """Generate a quote of the text: a part that begins and ends with whole words, letter by letter as it stands there.

    `options` are arguments of `gen`, such as `max_tokens` and `check`. Raises RequestError for a text without words.
    """
    text = texts_of(text)
    refuse_marks("text", text)
    if not isinstance(text, str) or not known(text).strip():
        raise RequestError(f"text must be a string with at least one word, got {text!r}", param="text")
    if on_cut not in ("raise", "keep"):
        raise RequestError(f"on_cut must be 'raise' or 'keep', got {on_cut!r}", param="on_cut")
    if given := [one for one in _CONSTRAINTS if options.get(one) is not None]:
        raise RequestError(f"substring constrains the text, so it takes no {given[0]}", param=given[0])
    made = gen(name, **options)
    assert isinstance(made, GenExpr)
    return replace(made, substring=text, on_cut=on_cut)
