"""Tools that are defined by JSON Schemas: OpenAI's form of definitions, and MCP's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ...runtime.protocol.errors import RequestError
from .signature import ToolInterface

MAX_DEFINITION = 1 << 20  # characters of a definition as JSON


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
