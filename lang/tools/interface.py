"""Describes a tool for a model and reads the arguments of its calls, from a Python callable or from a definition.

Callables are functions, methods, `functools.partial` objects and objects with `__call__`; definitions have JSON
Schemas, in OpenAI's form or MCP's.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from ...runtime.protocol.errors import RequestError
from ..types.adapter import NamedField, fields_adapter

MAX_DEFINITION = 1 << 20  # characters of a definition as JSON
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
    inner, bound = function, set[str]()
    while isinstance(inner, functools.partial):
        bound.update(inner.keywords)  # those given by position left the signature
        inner = inner.func
    name = name or str(getattr(inner, "__name__", type(inner).__name__))
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


def _hinted(function: Callable[..., Any]) -> Any:
    """Return the object whose annotations are those of the call."""
    if inspect.isclass(function):
        return function.__init__
    if hasattr(function, "__wrapped__"):  # of a program
        return inspect.unwrap(function)
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


def read_definition(definition: Mapping[str, Any]) -> ToolInterface:
    """Return the interface of a definition in OpenAI's form (with or without the outer object) or MCP's.

    Raises RequestError naming what is missing or wrong.
    """
    function = definition.get("function", definition)
    if not isinstance(function, Mapping):
        raise RequestError(f"the function of a tool must be a dict, got {function!r}", param="tools")
    name, description = function.get("name"), function.get("description") or ""
    if not (isinstance(name, str) and name):
        raise RequestError(f"a tool's definition needs a name, got {dict(definition)!r}", param="tools")
    if not isinstance(description, str):
        raise RequestError(f"the description of the tool {name} must be a string, got {description!r}", param="tools")
    key = next((key for key in ("parameters", "inputSchema", "input_schema") if key in function), None)
    given = {} if key is None else function[key]
    if not isinstance(given, Mapping) or given.get("type", "object") != "object":
        raise RequestError(f"{key} of the tool {name} must be the schema of an object, got {given!r}", param="tools")
    try:
        text = json.dumps(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{key} of the tool {name} is not JSON: {error}", param="tools") from None
    if len(text) > MAX_DEFINITION:
        raise RequestError(f"{key} of the tool {name} has more than {MAX_DEFINITION} characters", param="tools")
    schema = {"type": "object", "properties": {}} | json.loads(text)
    return ToolInterface(name, description, schema, _reader(name, schema))


def _reader(name: str, schema: Mapping[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Return a reader of arguments that checks them against the schema.

    With the package `jsonschema`, which the extra `mcp` brings, it checks everything, else names and required members;
    the runtime's grammar holds the rest.
    """

    def read(text: str) -> dict[str, Any]:
        try:
            arguments = json.loads(text)
        except RecursionError:
            raise ValueError("the arguments are nested too deep") from None
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments are no object: {text}")
        _check_members(arguments, schema)
        _check_schema(name, arguments, schema)
        return arguments

    return read


def _check_members(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    missing = [member for member in schema.get("required", ()) if member not in arguments]
    if missing:
        raise ValueError(f"Object missing required field `{missing[0]}`")
    is_open = schema.get("additionalProperties", False) is not False or any(
        keyword in schema for keyword in ("patternProperties", "allOf", "anyOf", "oneOf", "$ref")
    )
    unknown = (
        [] if is_open or not schema["properties"] else [one for one in arguments if one not in schema["properties"]]
    )
    if unknown:
        raise ValueError(f"Object contains unknown field `{unknown[0]}`")


def _check_schema(name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    try:
        import jsonschema
        import referencing
    except ImportError:
        return
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    # A registry of its own: references to other addresses are errors, and nothing is fetched.
    validator = kind(schema, registry=referencing.Registry())
    try:
        error = jsonschema.exceptions.best_match(validator.iter_errors(arguments))
    except Exception as broken:  # an invalid schema or reference, which the runtime's grammar refuses too
        raise ValueError(f"the schema of the tool {name} cannot be used: {broken}") from None
    if error is not None:
        raise ValueError(f"{error.message} (at {error.json_path})")
