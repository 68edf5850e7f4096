"""Types that msgspec knows: JSON Schemas whose every text msgspec's parser accepts, and the parser.

msgspec's own schemas have no formats of keys, and none of times that may lack a zone.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from . import texts
from .unions import close_unions

_LARGEST = sys.float_info.max
_EXACT = 10**15  # multiples beyond it may be rounded to other numbers
_ZONES: dict[bool | None, texts.Zone] = {True: "required", False: "none", None: None}
_CLASSES = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType, inspect.EnumType)


Reader = tuple[dict[str, Any], Callable[[str], Any], Callable[[Any], str]]  # the schema, the parser, the writer


def msgspec_reader(kind: Any) -> Reader:
    """Return the JSON Schema of a type, its parser and its writer. Raises TypeError for a type without a schema."""
    try:
        decoder = msgspec.json.Decoder(kind)
        described = inspect.type_info(kind)
    except (TypeError, ValueError, RuntimeError, NameError) as error:
        raise TypeError(str(error)) from None
    writer = _SchemaWriter()
    schema = writer.schema(described)
    if writer.definitions:
        schema = schema | {"$defs": {name: body for name, body in writer.definitions.items() if body}}
    close_unions(schema)

    def parse(text: str) -> Any:
        try:
            return decoder.decode(text)
        except msgspec.DecodeError as error:  # ends with the path: "... - at `$.items[0].price`"
            message, _, path = str(error).partition(" - at `")
            path = path.removeprefix("$").lstrip(".").rstrip("`")
            raise ValueError(f"{path}: {message}" if path else message) from error

    return schema, parse, lambda value: msgspec.json.encode(value).decode()


class _SchemaWriter:
    """Writes schemas; classes become definitions, so that they may be recursive."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._names: dict[Any, str] = {}

    def schema(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type. Raises TypeError if it has none."""
        match kind:
            case inspect.Metadata(type=inner, extra_json_schema=extra):
                return self.schema(inner) | (extra or {})
            case inspect.AnyType():
                return {}
            case inspect.NoneType():
                return {"type": "null"}
            case inspect.BoolType():
                return {"type": "boolean"}
            case inspect.IntType():
                return {"type": "integer", **_bounds(kind)}
            case inspect.FloatType():
                return _float(kind)
            case inspect.StrType():
                return {"type": "string", **_lengths(kind), **({"pattern": kind.pattern} if kind.pattern else {})}
            case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
                return _base64(kind)
            case inspect.DateTimeType() | inspect.TimeType():
                return _moment(kind)
            case inspect.DateType():
                return {"type": "string", "format": "date"}
            case inspect.TimeDeltaType():
                return {"type": "string", "pattern": texts.duration_pattern(years=False)}
            case inspect.UUIDType():
                return {"type": "string", "format": "uuid"}
            case inspect.DecimalType():
                number = {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST}
                return {"anyOf": [number, {"type": "string", "pattern": texts.DECIMAL}]}
            case inspect.LiteralType(values=values):
                return {"enum": list(values)}
            case inspect.UnionType(types=types):
                return {"anyOf": [self.schema(one) for one in types]}
            case inspect.TupleType(item_types=items):
                return _array([self.schema(item) for item in items], len(items))
            case inspect.SetType() | inspect.FrozenSetType():
                return {
                    "type": "array",
                    "items": self._hashable(kind.item_type),
                    **_lengths(kind, "Items"),
                    "uniqueItems": True,
                }
            case inspect.CollectionType():
                return {"type": "array", "items": self.schema(kind.item_type), **_lengths(kind, "Items")}
            case inspect.DictType(key_type=keys, value_type=values):
                names = self._names_of(keys)
                named = {} if names in ({}, {"type": "string"}) else {"propertyNames": names}
                return {
                    "type": "object",
                    **named,
                    "additionalProperties": self.schema(values) or True,
                    **_lengths(kind, "Properties"),
                }
        if isinstance(kind, _CLASSES):
            return self._reference(kind)
        raise TypeError(f"{getattr(kind, 'cls', type(kind).__name__)} has no JSON Schema")

    def _reference(self, kind: Any) -> dict[str, Any]:
        """Return a reference to the definition of a class."""
        name = self._names.get(kind.cls)
        if name is None:
            name, number = _name(kind), 2
            while name in self.definitions:
                name, number = f"{_name(kind)}_{number}", number + 1
            self._names[kind.cls] = name
            self.definitions[name] = {}  # so that the class may refer to itself
            self.definitions[name].update(self._class(kind))
        return {"$ref": f"#/$defs/{name}"}

    def _class(self, kind: Any) -> dict[str, Any]:
        titled = {"title": _name(kind)}
        if isinstance(kind, inspect.EnumType):
            return titled | {"enum": [member.value for member in kind.cls]}
        documented = (getattr(kind.cls, "__doc__", None) or "").strip()
        if documented and not documented.startswith(f"{_name(kind)}("):  # a dataclass writes its signature there
            titled["description"] = documented
        if isinstance(kind, inspect.NamedTupleType) or getattr(kind, "array_like", False):
            tag = [{"const": kind.tag}] if getattr(kind, "tag", None) is not None else []
            items = [*tag, *(self.schema(field.type) for field in kind.fields)]
            return titled | _array(items, len(tag) + sum(field.required for field in kind.fields))
        properties, required = {}, []
        if (tag_field := getattr(kind, "tag_field", None)) is not None:
            properties[tag_field] = {"const": kind.tag}
            required.append(tag_field)
        for field in kind.fields:
            properties[field.encode_name] = self._member(field)
            if field.required:
                required.append(field.encode_name)
        closed = {"additionalProperties": False} if getattr(kind, "forbid_unknown_fields", False) else {}
        return titled | {"type": "object", "properties": properties, "required": required} | closed

    def _member(self, field: Any) -> dict[str, Any]:
        schema = self.schema(field.type)
        if field.default is msgspec.NODEFAULT:
            return schema
        try:
            return schema | {"default": msgspec.to_builtins(field.default, str_keys=True)}
        except (TypeError, ValueError):  # the default has no JSON form; it is used all the same
            return schema

    def _hashable(self, items: Any) -> dict[str, Any]:
        inner = items.type if isinstance(items, inspect.Metadata) else items
        if isinstance(inner, inspect.AnyType):
            return {"type": ["string", "integer", "boolean", "null"]}
        frozen = isinstance(inner, inspect.StructType) and inner.cls.__struct_config__.frozen
        unhashable = (inspect.ListType, inspect.SetType, inspect.DictType, inspect.TypedDictType, inspect.StructType)
        if isinstance(inner, (*unhashable, inspect.DataclassType)) and not frozen:
            raise TypeError("a set has items that cannot be in one")
        return self.schema(items)

    def _names_of(self, keys: Any) -> dict[str, Any]:
        """Return the schema of a dict's names, which are strings whatever the type of the keys."""
        match keys:
            case inspect.Metadata(type=inner):
                return self._names_of(inner)
            case inspect.AnyType():
                return {}
            case inspect.IntType(multiple_of=None):
                low = keys.ge if keys.gt is None else keys.gt + 1
                high = keys.le if keys.lt is None else keys.lt - 1
                return {"type": "string", "pattern": texts.integer_pattern(low, high)}
            case inspect.FloatType(gt=None, ge=None, lt=None, le=None, multiple_of=None):
                return {"type": "string", "pattern": texts.FLOAT}
            case inspect.DecimalType():
                return {"type": "string", "pattern": texts.DECIMAL}
            case inspect.EnumType(cls=cls):
                return {"enum": [_as_name(member.value) for member in cls]}
            case inspect.LiteralType(values=values):
                return {"enum": [_as_name(value) for value in values]}
            case inspect.UnionType(types=types):
                return {"anyOf": [self._names_of(one) for one in types]}
        schema = self.schema(keys)
        if schema.get("type") != "string":
            raise TypeError(f"a dict has keys of the type {type(keys).__name__.removesuffix('Type').lower()}")
        return schema


def _name(kind: Any) -> str:
    return str(kind.cls.__name__)


def _as_name(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _array(items: Sequence[dict[str, Any]], least: int) -> dict[str, Any]:
    prefix = {"prefixItems": list(items)} if items else {}
    return {"type": "array", **prefix, "minItems": least, "maxItems": len(items), **({"items": False} if items else {})}


def _lengths(kind: Any, what: str = "Length") -> dict[str, int]:
    given = {f"min{what}": kind.min_length, f"max{what}": kind.max_length}
    return {name: value for name, value in given.items() if value is not None}


def _bounds(kind: Any) -> dict[str, Any]:
    given = {"exclusiveMinimum": kind.gt, "minimum": kind.ge, "exclusiveMaximum": kind.lt, "maximum": kind.le}
    given["multipleOf"] = kind.multiple_of
    return {name: value for name, value in given.items() if value is not None}


def _float(kind: Any) -> dict[str, Any]:
    bounds = _bounds(kind)
    step = bounds.get("multipleOf")
    if step is not None and step.as_integer_ratio()[1] > 1024:
        raise TypeError(f"msgspec compares multiples of {step} by binary fractions; write Decimal or int")
    limit = _LARGEST if step is None else float(_EXACT)
    # A text just below an exclusive bound is rounded to the bound itself.
    lows = [-limit, bounds.get("minimum", -limit)]
    highs = [limit, bounds.get("maximum", limit)]
    if kind.gt is not None:
        lows.append(math.nextafter(kind.gt, math.inf))
    if kind.lt is not None:
        highs.append(math.nextafter(kind.lt, -math.inf))
    return {"type": "number", **bounds, "minimum": max(lows), "maximum": min(highs)}


def _base64(kind: Any) -> dict[str, Any]:
    lengths = {}
    if kind.min_length is not None:
        lengths["minLength"] = -(-kind.min_length // 3) * 4
    if kind.max_length is not None:
        lengths["maxLength"] = kind.max_length // 3 * 4
    return {"type": "string", "contentEncoding": "base64", "pattern": texts.BASE64, **lengths}


def _moment(kind: Any) -> dict[str, Any]:
    of_day = isinstance(kind, inspect.TimeType)
    if kind.tz:
        return {"type": "string", "format": "time" if of_day else "date-time"}
    pattern = texts.time_pattern if of_day else texts.datetime_pattern
    return {"type": "string", "pattern": pattern(_ZONES[kind.tz])}
