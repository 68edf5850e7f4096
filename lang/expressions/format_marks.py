"""Marks that stand for expressions inside strings, since an f-string calls `format` and takes nothing but a string.

A mark is a random number between two private-use characters, so no text from outside can hold one that is known here.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from ...runtime.protocol.errors import RequestError

MAX_MARKS = 1 << 16  # kept; the least recently used are dropped first
MAX_CHARACTERS = 1 << 26  # of the expressions that are kept, each counted with 512 more
_OPEN, _CLOSE = "\U000f5c0a", "\U000f5c0b"
_NUM_DIGITS = 36  # digits have no cases, so `upper` and `title` leave a mark as it is
_MARK = re.compile(f"{_OPEN}([0-9]{{{_NUM_DIGITS}}}){_CLOSE}")
_PART_OF_A_MARK = re.compile(f"{_OPEN}[0-9]|[0-9]{_CLOSE}")
_expressions: OrderedDict[str, tuple[Any, int]] = OrderedDict()
_lock = threading.Lock()
_num_characters = 0


def mark_of(expression: Any, num_characters: int) -> str:
    """Return a new mark of the expression, which holds `num_characters` of text."""
    global _num_characters
    number = str(secrets.randbelow(10**_NUM_DIGITS)).zfill(_NUM_DIGITS)
    with _lock:
        _expressions[number] = expression, num_characters + 512
        _num_characters += num_characters + 512
        while len(_expressions) > MAX_MARKS or (_num_characters > MAX_CHARACTERS and len(_expressions) > 1):
            _num_characters -= _expressions.popitem(last=False)[1][1]
    return f"{_OPEN}{number}{_CLOSE}"


def has_mark(text: str) -> bool:
    """Return True if the text holds a mark, or a part of one."""
    return (_OPEN in text or _CLOSE in text) and _PART_OF_A_MARK.search(text) is not None


def split_at_marks(text: str) -> Iterator[Any]:
    """Yield the texts between marks, and the expressions that the marks stand for; a mark may come any number of times.

    Raises RequestError for a mark that was cut in two, and for one whose expression is no longer known.
    """
    at = 0
    for found in _MARK.finditer(text):
        yield _without_marks(text[at : found.start()])
        with _lock:
            expression, _ = _expressions.get(found[1], (None, 0))
            if expression is not None:
                _expressions.move_to_end(found[1])  # a prompt that is used again and again stays known
        if expression is None:
            raise RequestError(
                "the text holds the mark of an expression in an f-string that is not known here: it was formatted in "
                f"another process, or more than {MAX_MARKS} others were since",
                param="text",
                code="unknown_expression",
            )
        yield expression
        at = found.end()
    yield _without_marks(text[at:])


def refuse_marks(param: str, value: Any, depth: int = 4) -> None:
    """Raise RequestError if a string, or a string in lists and dicts of that depth, holds a mark."""
    if isinstance(value, str):
        value = str.__str__(value)  # a plan's symbol must not be looked into
        if has_mark(value):
            shown = _PART_OF_A_MARK.sub("", _MARK.sub("{...}", value))
            raise RequestError(
                f"{param} = {shown!r} holds an expression, such as gen(...), which can stand only in text that is "
                "appended to a state",
                param=param,
            )
    elif depth and isinstance(value, Mapping):
        for key, inner in value.items():
            refuse_marks(param, key)
            refuse_marks(param, inner, depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            refuse_marks(param, inner, depth - 1)


def _without_marks(text: str) -> str:
    if has_mark(text):
        raise RequestError(
            "a string with an expression in it, such as gen(...), was cut inside the expression: append its parts "
            "with + instead of slicing or wrapping the string",
            param="text",
        )
    return text
