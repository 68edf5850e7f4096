"""Python callables as tools: functions, methods, `functools.partial` objects and objects with `__call__`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from ...runtime.protocol.errors import RequestError
from ..types.adapter import NamedField, fields_adapter

_ARGUMENT = re.compile(r"^\s*(?::param\s+)?(\w+)\s*(?:\([^)]*\))?\s*:\s+(.+)$")


@dataclass(frozen=True, slots=True)
class ToolInterface:
    """Describes a tool to a model, and parses the tool's arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read: Callable[[str], dict[str, Any]]


def signature_of(function: Callable[..., Any], name: str | None = None) -> ToolInterface:
    """Return the interface of a callable. Arguments that a `partial` has bound are not offered.

    Raises RequestError for a callable whose arguments cannot be given by name, have no type hint, or have a type
    without a JSON Schema.
    """
    inner = _unbound(function)
    name = name or str(getattr(inner, "__name__", type(inner).__name__))
    bound = _bound_names(function)
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(_hinted(inner), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise RequestError(f"the signature of the tool {name} cannot be read: {error}", param="tools") from None
    text = _docstring(inner)
    descriptions = _argument_descriptions(text)
    fields: dict[str, NamedField] = {}
    for parameter in signature.parameters.values():
        if parameter.name in bound:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RequestError(f"the tool {name} takes {parameter}; each argument must have a name", param="tools")
        if parameter.name not in hints:
            of_class = "; to offer a method, give it with its object: tools=[thing.method]"
            raise RequestError(
                f"the argument {parameter.name!r} of the tool {name} has no type hint"
                f"{of_class if parameter.name == 'self' else ''}",
                param="tools",
            )
        fields[parameter.name] = NamedField(hints[parameter.name], parameter.default, descriptions.get(parameter.name))
    adapter = fields_adapter(name, fields)
    return ToolInterface(name, text.split("\n\n")[0].replace("\n", " "), adapter.schema, adapter.parse)


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _bound_names(function: Callable[..., Any]) -> set[str]:
    """Return the arguments that partial objects give by keyword; those given by position left the signature."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return names


def _hinted(function: Callable[..., Any]) -> Any:
    """Return the object whose annotations are those of the call."""
    if inspect.isclass(function):
        return function.__init__
    return function if hasattr(function, "__annotations__") and inspect.isroutine(function) else type(function).__call__


def _docstring(function: Callable[..., Any]) -> str:
    own = inspect.getdoc(function) if inspect.isroutine(function) or inspect.isclass(function) else None
    if own is None and not inspect.isroutine(function):
        own = function.__doc__ and inspect.cleandoc(function.__doc__)
        own = own or inspect.getdoc(type(function).__call__)
    return own or ""


def _argument_descriptions(docstring: str) -> dict[str, str]:
    """Return the descriptions of arguments in lines such as `city: where` or `:param city: where`."""
    _, _, rest = docstring.partition("\n")
    matches = filter(None, map(_ARGUMENT.match, rest.splitlines()))
    return {match.group(1): match.group(2).strip() for match in matches}
