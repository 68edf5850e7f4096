"""The parts of a type: members of classes, arguments of generics, alternatives of unions, and what is annotated."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

MAX_TYPE_DEPTH = 60  # of types inside one another

_UNIONS = (typing.Union, types.UnionType)


def members(kind: Any) -> list[tuple[str, Any]]:
    """Return the direct parts of a type: `.name` of a class's members, `[]` of items and keys, "" of alternatives."""
    origin = get_origin(kind)
    if origin is Literal:
        return []
    if origin is Annotated:
        return [("", kind.__origin__)]
    if origin in _UNIONS:
        return [("", part) for part in get_args(kind)]
    generic = _class_members(origin) if isinstance(origin, type) else []
    if generic:
        return generic + [("", part) for part in get_args(kind)]
    if origin is not None:
        return [("[]", part) for part in get_args(kind) if part is not ... and not isinstance(part, list)]
    if isinstance(alias := getattr(kind, "__value__", None), type) or get_origin(alias) is not None:
        return [("", alias)]  # type X = ...
    return _class_members(kind) if isinstance(kind, type) else []


def parts(kind: Any) -> Iterator[Any]:
    """Return the type, its parts and theirs, each once; Annotated ones with their annotations."""
    pending, seen = [(kind, 0)], list[Any]()
    while pending:
        part, depth = pending.pop()
        if depth > MAX_TYPE_DEPTH or any(part is other or _same(part, other) for other in seen):
            continue
        seen.append(part)
        yield part
        pending += [(member, depth + 1) for _, member in members(part)]


def metadata_of(kind: Any) -> tuple[Any, ...]:
    """Return what Annotated says of a type, outermost last."""
    return kind.__metadata__ if get_origin(kind) is Annotated else ()


def type_name(kind: Any) -> str:
    """Return a type as people write it."""
    return kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind).replace("typing.", "")


def _class_members(kind: type) -> list[tuple[str, Any]]:
    """Return the members that a class's values have in JSON."""
    has_members = (
        dataclasses.is_dataclass(kind)
        or is_typeddict(kind)
        or hasattr(kind, "__struct_fields__")
        or hasattr(kind, "__pydantic_fields__")
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
    if not has_members:
        return []
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):  # names that only the class's own function knows: the library may still find them
        return []
    private = ("__pydantic", "model_config", "__struct")
    return [
        (f".{name}", unwrapped(hint))
        for name, hint in hints.items()
        if not name.startswith(private) and get_origin(hint) is not typing.ClassVar
    ]


def unwrapped(hint: Any) -> Any:
    """Return a hint without Required, NotRequired, Final, InitVar."""
    wrapped = get_origin(hint) in (typing.Required, typing.NotRequired, typing.Final)
    return get_args(hint)[0] if wrapped else hint


def _same(left: Any, right: Any) -> bool:
    try:
        return type(left) is type(right) and bool(left == right) and metadata_of(left) == metadata_of(right)
    except Exception:  # annotations compare as their authors like
        return False
