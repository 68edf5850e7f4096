"""Adapters of types: a Python type becomes a JSON Schema in which every text is read, and a parser that validates.

Pydantic reads types where it is installed. msgspec reads those that are made with it (Struct, Meta), and all others
without Pydantic.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, is_typeddict

import msgspec

from ...runtime.protocol.errors import RequestError
from .members import members, metadata_of, parts, type_name

if TYPE_CHECKING:
    from .msgspec_types import Reader

REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class JsonAdapter:
    """A type's JSON Schema, the parser of its texts and their writer.

    `parse` raises ValueError with the path of the member, `dump` TypeError or ValueError for a value of another type.
    """

    name: str
    schema: dict[str, Any]
    parse: Callable[[str], Any]
    dump: Callable[[Any], str]
    description: str | None = None

    @property
    def schema_text(self) -> str:
        """The schema as JSON text, members in the order in which they were declared."""
        return json.dumps(self.schema)


@dataclass(frozen=True, slots=True)
class NamedField:
    """A named value of `fields_adapter`. Where the text leaves it out, it is the very object `default`."""

    kind: Any
    default: Any = REQUIRED
    description: str | None = None  # stands before the one in Annotated


def adapter_of(kind: Any, param: str = "schema") -> JsonAdapter:
    """Return the adapter of a type. Raises RequestError that names the type and the member without a JSON Schema."""
    try:
        return _cached_adapter(kind, param)
    except TypeError:  # unhashable
        return _adapter(kind, param)


def fields_adapter(name: str, fields: Mapping[str, NamedField], param: str = "tools") -> JsonAdapter:
    """Return the adapter of an object with these members and no others; it makes a dict of all of them.

    Raises RequestError naming the member without a JSON Schema.
    """
    adapters = {}
    for field, given in fields.items():
        try:
            adapters[field] = adapter_of(given.kind, param)
        except RequestError as error:
            raise RequestError(f"the argument {field!r} of {name}: {error}", param=param) from None
    schemas, definitions = nested({field: adapter.schema for field, adapter in adapters.items()})
    for field, given in fields.items():
        shown = schemas[field] = dict(schemas[field])
        if given.description is not None:
            shown["description"] = given.description
        if given.default is not REQUIRED and _is_json(default := given.default):
            shown["default"] = default
    schema: dict[str, Any] = {"type": "object", "properties": schemas}
    if required := [field for field, given in fields.items() if given.default is REQUIRED]:
        schema["required"] = required
    schema["additionalProperties"] = False
    if definitions:
        schema["$defs"] = definitions
    return JsonAdapter(name, schema, partial(_parse_fields, dict(fields), adapters), partial(_dump_fields, adapters))


def nested(schemas: Mapping[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the schemas without their `$defs`, and these together, for the root of one schema that contains all.

    A definition is renamed where another one has its name.
    """
    bodies, merged = {}, dict[str, Any]()
    for name, schema in schemas.items():
        definitions = schema.get("$defs", {})
        clash = any(merged.get(own, body) != body for own, body in definitions.items())
        taken = {**merged, **definitions}
        renamed = {own: _free(own, taken) if clash and own in merged else own for own in definitions}
        merged |= {renamed[own]: _with_references(body, renamed) for own, body in definitions.items()}
        body = {key: value for key, value in schema.items() if key != "$defs"}
        bodies[name] = _with_references(body, renamed)
    return bodies, merged


def json_text(value: Any) -> str:
    """Return a value as JSON text, in the form that its type's adapter reads. Raises TypeError if it has none."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        pass
    try:
        from pydantic_core import PydanticSerializationError, to_json
    except ImportError:
        raise TypeError(f"{value!r} is not JSON") from None
    try:
        return to_json(value).decode()
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from None


def _adapter(kind: Any, param: str) -> JsonAdapter:
    if isinstance(kind, str | partial) or inspect.isroutine(kind):
        raise RequestError(_refusal(kind, param), param=param)
    try:
        schema, parse, dump = _reader(kind)
    except TypeError as error:
        path, culprit, reason = _culprit(kind, error)
        where = f": {type_name(kind)}{path} is {type_name(culprit)}" if path else ""
        raise RequestError(f"{_refusal(kind, param)}{where}: {reason}", param=param) from None
    try:
        json.dumps(schema, allow_nan=False)
    except ValueError as error:
        raise RequestError(f"{_refusal(kind, param)}: its schema is not JSON: {error}", param=param) from None
    target = schema.get("$defs", {}).get(str(schema.get("$ref")).rpartition("/")[2], schema)
    description = schema.get("description", target.get("description"))
    return JsonAdapter(type_name(kind), schema, parse, dump, description)


_cached_adapter = lru_cache(256)(_adapter)


def _refusal(kind: Any, param: str) -> str:
    return (
        f"{param} must be a Pydantic model, dataclass, TypedDict, Literal, Enum or another type with a JSON Schema; "
        f"got {type_name(kind)}"
    )


def _reader(kind: Any) -> Reader:
    """Return the schema, parser and writer of a type by msgspec or Pydantic. Raises TypeError if neither reads it."""
    has_msgspec, has_pydantic, typed_dicts = False, False, []
    for part in parts(kind):
        libraries = {type(one).__module__.partition(".")[0] for one in metadata_of(part)}
        has_msgspec |= "msgspec" in libraries or hasattr(part, "__struct_fields__")
        has_pydantic |= bool(libraries & {"pydantic", "annotated_types"}) or hasattr(part, "__pydantic_fields__")
        if is_typeddict(part):
            typed_dicts.append(part)
    if has_msgspec:
        if has_pydantic:
            raise TypeError(
                "msgspec.Struct and msgspec.Meta cannot be inside one type with Pydantic's models and annotations; "
                "write pydantic.Field for msgspec.Meta"
            )
        from .msgspec_types import msgspec_reader

        return msgspec_reader(kind)
    try:
        from .pydantic_types import accept_typed_dict, pydantic_reader
    except ImportError:
        return _without_pydantic(kind, has_pydantic)
    for typed_dict in typed_dicts:
        accept_typed_dict(typed_dict)
    return pydantic_reader(kind)


def _without_pydantic(kind: Any, needed: bool) -> Reader:
    if needed:
        raise TypeError("its annotations are Pydantic's: install pydantic")
    from .msgspec_types import msgspec_reader

    try:
        return msgspec_reader(kind)
    except TypeError as error:
        raise TypeError(f"{error}; install pydantic, which knows more types") from None


def _culprit(kind: Any, error: TypeError, above: tuple[Any, ...] = ()) -> tuple[str, Any, TypeError]:
    """Return the innermost part without a schema: its path, the part and why."""
    for label, part in members(kind):
        if any(part is one for one in (*above, kind)):  # a recursive type
            continue
        try:
            _reader(part)
        except TypeError as inner:
            path, culprit, reason = _culprit(part, inner, (*above, kind))
            return label + path, culprit, reason
    return "", kind, error


def _parse_fields(fields: dict[str, NamedField], adapters: dict[str, JsonAdapter], text: str) -> dict[str, Any]:
    try:
        given = _members_decoder.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if unknown := sorted(given.keys() - fields.keys()):
        raise ValueError(f"{unknown[0]}: there is no such member")
    values = {}
    for name, field in fields.items():
        if name in given:
            try:
                values[name] = adapters[name].parse(bytes(given[name]).decode())
            except ValueError as error:
                raise ValueError(_below(name, str(error))) from error
        elif field.default is REQUIRED:
            raise ValueError(f"{name}: it is required")
        else:
            values[name] = field.default
    return values


def _dump_fields(adapters: dict[str, JsonAdapter], values: Mapping[str, Any]) -> str:
    members = (f"{json.dumps(name)}:{adapters[name].dump(value)}" for name, value in values.items())
    return f"{{{','.join(members)}}}"


_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _below(name: str, message: str) -> str:
    """Return the message of a member's parser with the member before its path."""
    path, colon, _ = message.partition(": ")
    return (
        f"{name}{'' if path.startswith('[') else '.'}{message}" if colon and " " not in path else f"{name}: {message}"
    )


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _free(name: str, taken: Mapping[str, Any]) -> str:
    new, number = name, 2
    while new in taken:
        new, number = f"{name}_{number}", number + 1
    return new


def _with_references(schema: Any, renamed: Mapping[str, str]) -> Any:
    """Return the schema with references to renamed definitions."""
    if isinstance(schema, list):
        return [_with_references(part, renamed) for part in schema]
    if not isinstance(schema, Mapping) or all(old == new for old, new in renamed.items()):
        return schema
    result = {
        key: value if key in ("const", "enum", "default", "examples") else _with_references(value, renamed)
        for key, value in schema.items()
    }
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return result | {"$ref": f"#/$defs/{renamed[name]}"} if name in renamed else result
