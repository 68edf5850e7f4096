"""Values of a text that still grows: items of an array as each is whole, objects as far as they are written."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

from .adapter import adapter_of

_ARRAYS = (list, set, frozenset, collections.deque, collections.abc.Sequence, collections.abc.Iterable)
_MARK = re.compile(r'["\[\]{},]')
_STRING_MARK = re.compile(r'["\\]')
_NUMBER_END = re.compile(r"[-+.\deE]+\Z")
_MISSING: Any = object()


class ValueStream:
    """Turns the pieces of a text into values. This one yields nothing before the end, and then the value."""

    def feed(self, piece: str) -> Iterator[Any]:
        """Take more of the text; yield what is known now."""
        return iter(())

    def end(self, value: Any) -> Iterator[Any]:
        """Yield what is left, once the text is whole and `value` is its value."""
        yield value


class TextStream(ValueStream):
    """The text so far."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, piece: str) -> Iterator[str]:
        self._text += piece
        yield self._text

    def end(self, value: Any) -> Iterator[Any]:
        if value != self._text:
            yield value


class ItemStream(ValueStream):
    """The items of a JSON array, each validated once it is whole. Takes time linear in the text."""

    def __init__(self, kind: Any) -> None:
        self._parse = adapter_of(kind).parse
        self._text = ""  # from the begin of the item
        self._at = 0  # up to where it is scanned
        self._depth = 0
        self._in_string = False

    def feed(self, piece: str) -> Iterator[Any]:
        self._text += piece
        while (match := (_STRING_MARK if self._in_string else _MARK).search(self._text, self._at)) is not None:
            mark = match[0]
            self._at = match.end()
            if mark == "\\":
                if self._at == len(self._text):
                    self._at -= 1
                    return  # what it escapes is still to come
                self._at += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif self._depth == 1 and mark in ",]":
                item, self._text, self._at = self._text[: match.start()], self._text[self._at :], 0
                self._depth -= mark == "]"
                if item.strip():
                    yield self._parse(item)
            elif mark in "[{":
                self._depth += 1
                if self._depth == 1:
                    self._text, self._at = self._text[self._at :], 0
            elif mark in "]}":
                self._depth -= 1
        if not self._in_string:
            self._at = len(self._text)

    def end(self, value: Any) -> Iterator[Any]:
        return iter(())


class PartialStream(ValueStream):
    """A value as far as it is written, each time that more of it is: an object of its class, without validation.

    Members that are whole are values of their types; a string that is still written is there as far as it goes, what
    else is not whole is None, or missing in a dict.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._text = ""
        self._last: Any = _MISSING

    def feed(self, piece: str) -> Iterator[Any]:
        self._text += piece
        data = _partial_json(self._text)
        if data is _MISSING or data == self._last:
            return
        self._last = data
        if (value := partial_value(self._kind, data)) is not _MISSING:
            yield value


def value_stream(kind: Any) -> ValueStream:
    """Return the stream of a type: of items for an array, else of partial values."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    origin, parts = get_origin(kind), get_args(kind)
    if origin in _ARRAYS and len(parts) == 1:
        return ItemStream(parts[0])
    if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        return ItemStream(parts[0])
    return PartialStream(kind)


def _partial_json(text: str) -> Any:
    """Return the data of the beginning of a JSON text, without numbers that may go on."""
    from pydantic_core import from_json

    text = text.lstrip()
    number = _NUMBER_END.search(text)
    if number is not None and not _ends_in_string(text):
        text = text[: number.start()]
    if not text:
        return _MISSING
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return _MISSING


def _ends_in_string(text: str) -> bool:
    return re.sub(r'\\.|[^"\\]', "", text).count('"') % 2 == 1


def partial_value(kind: Any, data: Any) -> Any:
    """Return data, the last part of which may not be whole, as a value of a type; `_MISSING` for what must be whole."""
    while get_origin(kind) is Annotated or isinstance(
        kind, typing.NewType | typing.TypeAliasType if hasattr(typing, "TypeAliasType") else typing.NewType
    ):
        kind = (
            get_args(kind)[0]
            if get_origin(kind) is Annotated
            else getattr(kind, "__supertype__", None) or kind.__value__
        )
    origin, parts = get_origin(kind), get_args(kind)
    if kind is None or kind is Any:
        return data
    if origin in (Union, types.UnionType):
        return partial_value(_alternative(parts, data), data)
    if isinstance(data, str):
        return data if kind is str else _MISSING
    if isinstance(data, list):
        return _partial_list(parts[0], data) if origin in (list, collections.abc.Sequence) and parts else _MISSING
    if not isinstance(data, dict):
        return _MISSING
    members = _members_of(origin or kind)
    if members is None:
        value_kind = parts[1] if origin in (dict, collections.abc.Mapping) and len(parts) == 2 else Any
        members = {name: (name, value_kind) for name in data}
        return dict(_partial_members(members, data))
    found = dict(_partial_members(members, data))
    return found if is_typeddict(origin or kind) else _unvalidated(origin or kind, found, members)


def _partial_list(kind: Any, data: list[Any]) -> list[Any]:
    whole = [_whole(kind, one) for one in data[:-1]]
    last = [partial_value(kind, one) for one in data[-1:]]
    return [*whole, *(one for one in last if one is not _MISSING)]


def _partial_members(members: Mapping[str, tuple[str, Any]], data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for index, (name, value) in enumerate(data.items()):
        if name in members:
            own, kind = members[name]
            made = partial_value(kind, value) if index == len(data) - 1 else _whole(kind, value)
            if made is not _MISSING:
                yield own, made


def _whole(kind: Any, data: Any) -> Any:
    return data if kind is Any else adapter_of(kind).parse(json.dumps(data))


def _members_of(kind: Any) -> dict[str, tuple[str, Any]] | None:
    """Return a class's members by their names in JSON: their own names and types; None for what has none."""
    if (fields := getattr(kind, "__pydantic_fields__", None)) is not None:
        return {
            field.validation_alias if isinstance(field.validation_alias, str) else name: (name, _annotated(field))
            for name, field in fields.items()
        }
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        return {field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(kind)}
    if dataclasses.is_dataclass(kind) or is_typeddict(kind):
        return {name: (name, hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    return None


def _annotated(field: Any) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _unvalidated(kind: Any, found: dict[str, Any], members: Mapping[str, tuple[str, Any]]) -> Any:
    """Return an object of a class with the members that are found, and None for the others."""
    values = dict.fromkeys(name for name, _ in members.values()) | found
    if hasattr(kind, "model_construct"):
        made = kind.model_construct(_fields_set=set(found), **found)
        for name in values.keys() - found.keys():
            made.__dict__[name] = None
        return made
    if hasattr(kind, "__struct_fields__"):
        return kind(**values)  # which validates nothing
    made = kind.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _alternative(parts: tuple[Any, ...], data: Any) -> Any:
    """Return the type of a union that data, perhaps not whole, is likely of: the first that has all its members."""
    if isinstance(data, str):
        return str if str in parts else _Unknown
    if isinstance(data, list):
        return next((part for part in parts if get_origin(part) in _ARRAYS), _Unknown)
    for part in parts if isinstance(data, dict) else ():
        members = _members_of(get_origin(part) or part)
        if members is None:
            if get_origin(part) is dict or part is dict:
                return part
        elif data.keys() <= members.keys() and all(
            _may_be(members[name][1], value) for name, value in list(data.items())[:-1]
        ):
            return part
    return _Unknown


class _Unknown:
    """A type that no data is of."""


def _may_be(kind: Any, value: Any) -> bool:
    try:
        _whole(kind, value)
    except ValueError:
        return False
    return True
