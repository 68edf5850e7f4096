"""Places in a text: lines and columns, carets, and the values of JSON by their pointers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ..schema.keywords import child

_WIDTH = 76  # characters of a line that an excerpt shows
_TOKEN = re.compile(r'[{}\[\],:]|"(?:[^"\\]|\\.)*"?|[^\s{}\[\],:"]+', re.DOTALL)
_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL
)


@dataclass(frozen=True)
class Span:
    """A stretch of a text, from `begin` to before `end`."""

    begin: int
    end: int


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Return the line and the column of a character, both from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def excerpt(text: str, span: Span) -> tuple[str, str]:
    """Return the line where a span begins, cut to `_WIDTH` characters, and a line with carets under the span."""
    first = text.rfind("\n", 0, span.begin) + 1
    last = text.find("\n", span.begin)
    last = len(text) if last < 0 else last
    begin = max(first, min(span.begin - _WIDTH // 2, last - _WIDTH))
    end = min(last, begin + _WIDTH)
    shown = "".join(character if character.isprintable() else " " for character in text[begin:end])
    num_carets = max(1, min(span.end, begin + _WIDTH, last) - span.begin)
    return shown.rstrip(), " " * (span.begin - begin) + "^" * num_carets


class JsonPlaces:
    """Places of the values and the names in a text of JSON, or in the beginning of one.

    `open` is the pointer of the value that is being written at the end of the text; `in_name` is True if that is an
    object in which a name must come or has begun.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._values: dict[str, Span] = {}
        self._names: dict[str, Span] = {}
        # The containers around the place that has been read: whether it is an object, its pointer and its offset.
        around: list[tuple[bool, str, int]] = []
        here, is_name, index = "", False, [0]
        for match in _TOKEN.finditer(text):
            token, begin = match[0], match.start()
            if token == ":":
                is_name = False
            elif token == "," and around:
                is_object, pointer, _ = around[-1]
                index[-1] += 1
                here, is_name = (pointer if is_object else child(pointer, index[-1])), is_object
            elif token in ("{", "["):
                around.append((token == "{", here, begin))
                index.append(0)
                here, is_name = (here, True) if token == "{" else (child(here, 0), False)
            elif token in ("}", "]") and around:
                _, here, begin = around.pop()
                index.pop()
                self._values[here] = Span(begin, match.end())
                is_name = False
            elif is_name and around:
                here = child(around[-1][1], _decoded(token))
                self._names[here] = Span(begin, match.end())
            else:
                self._values[here] = Span(begin, match.end())
        self.in_name = is_name and bool(around)
        self.open = around[-1][1] if self.in_name else here

    def find(self, pointer: str) -> tuple[str, Span]:
        """Return the place of a value, or that of the innermost value around it, with its pointer."""
        while pointer not in self._values and pointer:
            pointer = pointer.rpartition("/")[0]
        return pointer, self._values.get(pointer, Span(0, len(self._text)))

    def name(self, pointer: str) -> Span:
        """Return the place of the name of a member."""
        return self._names[pointer]

    def character(self, span: Span, position: int) -> Span:
        """Return the place of one character of a string, however it is spelled. The end stands for the quote."""
        at = span.begin + 1
        for match in _CHARACTER.finditer(self._text, at, span.end - 1):
            if not position:
                return Span(match.start(), match.end())
            position, at = position - 1, match.end()
        return Span(at, at + 1)


def _decoded(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return token.strip('"')
