"""Symbols: the strings that stand for arguments while a program is planned.

A symbol may be put into texts, by an f-string, `+` or `join`. Looking into it raises `ArgumentNeeded`, since the plan
would otherwise follow what the symbol looks like instead of the argument.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar

from ..operations.execution import ValueNeeded
from ..operations.source_location import program_location
from .expr import Expr

T = TypeVar("T")
_SYMBOL = re.compile("\ue000([^\ue000\ue001]*)\ue001")  # private-use characters, which texts do not contain


_LANGUAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


class ArgumentNeeded(ValueNeeded):
    """The program looks into the argument `name` at this `file:line` while it is only recorded."""

    def __init__(self, name: str, location: str) -> None:
        super().__init__(location)
        self.name = name


class ArgumentSymbol(str):
    """A text that holds the symbols of arguments. Its own length, letters and value are unknown."""

    __slots__ = ()

    def needed(self) -> NoReturn:
        """Raise ArgumentNeeded: the program needs the argument's value here."""
        found = _SYMBOL.search(str.__str__(self))
        raise ArgumentNeeded(found[1].partition(",\n")[0].strip() if found else "", _user_location())

    def __str__(self) -> str:
        return str.__str__(self)

    def __format__(self, spec: str) -> str:
        return self.needed() if spec else str.__str__(self)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, str):
            return ArgumentSymbol(str.__str__(self) + str.__str__(other))
        if isinstance(other, Expr):
            return NotImplemented
        self.needed()

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, str):
            return ArgumentSymbol(str.__str__(other) + str.__str__(self))
        self.needed()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.needed()


def _user_location() -> str:
    """Return `file:line` of the innermost frame outside the language and the standard library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        is_standard = file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file
        if not is_standard and not file.startswith(("<", _LANGUAGE)):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return program_location()


def _looking(name: str) -> Callable[..., NoReturn]:
    def method(self: ArgumentSymbol, *args: Any, **kwargs: Any) -> NoReturn:
        self.needed()

    method.__name__ = name
    return method


_OPERATORS = (
    "repr bool len iter next getitem setitem delitem contains reversed hash eq ne lt le gt ge int float complex index "
    "round trunc floor ceil neg pos abs invert call enter exit await aiter anext "
    "mul rmul mod sub rsub truediv rtruediv floordiv rfloordiv divmod rdivmod pow rpow and rand or ror xor rxor "
    "lshift rlshift rshift rrshift matmul rmatmul"
)
for _name in (*(name for name in dir(str) if not name.startswith("_") and name != "join"),
              *(f"__{name}__" for name in _OPERATORS.split())):  # fmt: skip
    setattr(ArgumentSymbol, _name, _looking(_name))


def symbol(name: str) -> ArgumentSymbol:
    """Return the string that stands for an argument in a recorded call."""
    return ArgumentSymbol(f"\ue000{name}\ue001")


def odd_symbol(name: str) -> ArgumentSymbol:
    """Return another string for the argument, of another length and form, to tell what looks into texts with it."""
    return ArgumentSymbol(f" \ue000 {name},\nb 1.\ue001\n")


def as_symbol(text: str, name: str) -> str:
    """Return the text with the usual symbol of an argument in the places of its odd one."""
    odd, usual = str.__str__(odd_symbol(name)), str.__str__(symbol(name))
    return text.replace(odd, usual).replace(odd.replace("\n", r"\x0a"), usual)  # the second as grammars quote it


def known(value: T) -> T:
    """Return the value. Raises ArgumentNeeded for a symbol."""
    if isinstance(value, ArgumentSymbol):
        value.needed()
    return value


def texts_of(value: Any) -> Any:
    """Return a string, or a list or tuple of some, with the plain texts of symbols; anything else as it is."""
    if isinstance(value, ArgumentSymbol):
        return str.__str__(value)
    if isinstance(value, list | tuple) and any(isinstance(one, ArgumentSymbol) for one in value):
        return type(value)(texts_of(one) for one in value)
    return value


def shown(text: str) -> str:
    """Return the text with `{name}` for each symbol."""
    return _SYMBOL.sub(r"{\1}", text)


def with_values(text: str, values: Any) -> str:
    """Return the text with the values of its symbols where they are known."""
    return _SYMBOL.sub(lambda match: values.get(match.group(1), match.group()), text)
