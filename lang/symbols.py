"""Arguments as variables: texts that stand for an argument wherever it goes, and are told by their marks.

A symbol is an ordinary string, so that f-strings, joins and templates carry it. What a program does with it beside
carrying it cannot be seen; whoever traces compares with a trace of the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..runtime.protocol.session import Operation

_SYMBOL = re.compile("\ue000([^\ue000\ue001]*)\ue001")  # private use: in nobody's text


def symbol(name: str) -> str:
    return f"\ue000{name}\ue001"


def shown(text: str) -> str:
    """With `{name}` for each symbol."""
    return _SYMBOL.sub(r"{\1}", text)


def substituted(operation: Operation, values: Mapping[str, str]) -> Any:
    """The operation as builtins, with the values of the symbols that are known."""

    def walk(part: Any) -> Any:
        match part:
            case str():
                return _SYMBOL.sub(lambda match: values.get(match.group(1), match.group()), part)
            case dict():
                return {walk(key): walk(value) for key, value in part.items()}
            case list() | tuple():
                return [walk(value) for value in part]
        return part

    return walk(msgspec.to_builtins(operation))
