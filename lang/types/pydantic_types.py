"""Types that Pydantic knows: JSON Schemas whose every text Pydantic's parser accepts, and the parser.

Pydantic's own schemas are looser than its parser: formats of times, decimals, keys of dicts, tags of unions. Imported
where a schema is first asked for, because loading Pydantic takes a tenth of a second.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NotRequired, Required, get_origin, get_type_hints

import pydantic
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticOmit, SchemaError, SchemaValidator

from . import texts
from .members import unwrapped
from .msgspec_types import Reader
from .unions import close_unions

MAX_ERRORS = 3  # of a text that are reported
_LARGEST = sys.float_info.max
_MOST_DIGITS = 15  # of a decimal written as a number, which passes through a double
_MOST_STEPS = 10**6  # of a fraction that a float is a multiple of
_FORMATS: dict[str, dict[str, Any]] = {
    "base64": {"pattern": texts.BASE64},
    "base64url": {"pattern": texts.BASE64URL},
    **{
        f"{version}{what}": {"pattern": texts.network_pattern(version, what)}
        for version in ("ipv4", "ipv6", "ipvany")
        for what in ("network", "interface", "address")
    },
}
_UNHASHABLE = ("list", "set", "dict", "typed-dict", "model", "dataclass", "deque")
_SCALARS = {"type": ["string", "integer", "boolean", "null"]}
_CAN_FORBID = "extra" in inspect.signature(pydantic.TypeAdapter.validate_json).parameters  # from version 2.12


def pydantic_reader(kind: Any) -> Reader:
    """Return the JSON Schema of a type, its parser and its writer. Raises TypeError for a type without a schema."""
    try:
        adapter = pydantic.TypeAdapter(kind)
        schema = adapter.json_schema(schema_generator=_TightSchema)
    except (PydanticUserError, SchemaError, PydanticOmit, LookupError, NameError, TypeError, ValueError) as error:
        raise TypeError(str(error).partition("\n\nFor further")[0]) from None
    # Pydantic chooses an alternative by the members that it knows, and drops the others. So it first looks for one that
    # knows all. Classes that allow further members are found without.
    closed: dict[str, Any] = {"extra": "forbid"} if close_unions(schema) and _CAN_FORBID else {}

    def parse(text: str) -> Any:
        with suppress(pydantic.ValidationError):
            if closed:
                return adapter.validate_json(text, **closed)
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise ValueError(_message(error)) from error

    def dump(value: Any) -> str:
        return adapter.dump_json(value, by_alias=True, warnings="error").decode()

    return schema, parse, dump


def accept_typed_dict(kind: type) -> None:
    """Let Pydantic read a `typing.TypedDict`, which it refuses before Python 3.12 in favour of typing_extensions'."""
    if sys.version_info >= (3, 12) or "__get_pydantic_core_schema__" in vars(kind):
        return
    import typing_extensions

    def core_schema(source: Any, handler: Any) -> Any:
        return handler.generate_schema(substitute)

    kind.__get_pydantic_core_schema__ = core_schema  # type: ignore[attr-defined]
    required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]
    hints = get_type_hints(kind, include_extras=True)
    fields = {}
    for name, hint in hints.items():
        # A hint in quotes is no NotRequired to the class itself.
        origin = get_origin(hint)
        left_out = origin is NotRequired or (name not in required and origin is not Required)
        fields[name] = typing_extensions.NotRequired[unwrapped(hint)] if left_out else unwrapped(hint)
    make: Any = typing_extensions.TypedDict
    substitute = make(kind.__name__, fields)
    substitute.__doc__, substitute.__module__ = kind.__doc__, kind.__module__
    if (config := getattr(kind, "__pydantic_config__", None)) is not None:
        substitute.__pydantic_config__ = config


def _message(error: pydantic.ValidationError) -> str:
    """Return the first errors as `items[2].price: Input should be ...`."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    lines = []
    for one in errors[:MAX_ERRORS]:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in one["loc"]).lstrip(".")
        lines.append(f"{path}: {one['msg']}" if path else one["msg"])
    return "; ".join(lines) + (f"; and {len(errors) - MAX_ERRORS} more" if len(errors) > MAX_ERRORS else "")


class _TightSchema(GenerateJsonSchema):
    """Generator of schemas that admit only what the parser accepts."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - declared so by the base

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # a title that repeats the member's name says nothing

    def int_schema(self, schema: Any) -> dict[str, Any]:
        return _finite(super().int_schema(schema))

    def float_schema(self, schema: Any) -> dict[str, Any]:
        result = _finite(super().float_schema(schema))
        # A text just below an exclusive bound is rounded to the bound itself.
        if (above := result.get("exclusiveMinimum")) is not None:
            result["minimum"] = max(math.nextafter(above, math.inf), result.get("minimum", -math.inf))
        if (below := result.get("exclusiveMaximum")) is not None:
            result["maximum"] = min(math.nextafter(below, -math.inf), result.get("maximum", math.inf))
        if schema.get("allow_inf_nan") is False:
            result.setdefault("minimum", -_LARGEST)
            result.setdefault("maximum", _LARGEST)
        if (step := schema.get("multiple_of")) is not None and step % 1:
            # Pydantic divides doubles: many larger multiples of a fraction are none to it.
            result["minimum"] = max(-_MOST_STEPS * step, result.get("minimum", -math.inf))
            result["maximum"] = min(_MOST_STEPS * step, result.get("maximum", math.inf))
        return result

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        bounds = {name: schema[name] for name in ("gt", "ge", "lt", "le") if schema.get(name) is not None}
        digits, places, step = (schema.get(name) for name in ("max_digits", "decimal_places", "multiple_of"))
        if not bounds and places is None and step is None:
            if digits is not None:
                return {"type": "string", "pattern": texts.decimal_digits_pattern(digits)}
            number = {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST}
            return {"anyOf": [number, {"type": "string", "pattern": texts.DECIMAL}]}
        return _bounded_decimal(bounds, digits, places, step)

    def str_schema(self, schema: Any) -> dict[str, Any]:
        result = super().str_schema(schema)
        if schema.get("strip_whitespace") and schema.get("min_length"):
            result.setdefault("pattern", texts.NOT_PADDED)
        return result

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        result: dict[str, Any] = {"type": "string"}
        match self._config.val_json_bytes:
            case "base64":
                return result | {"pattern": texts.BASE64URL, **_counted(schema, 3, 4)}
            case "hex":
                return result | {"pattern": texts.HEX, **_counted(schema, 1, 2)}
        if schema.get("max_length") is not None:
            result["pattern"] = texts.ASCII  # where a character is a byte
        return result | _counted(schema, 1, 1)

    def date_schema(self, schema: Any) -> dict[str, Any]:
        lows = [schema.get("ge"), _shifted(schema.get("gt"), timedelta(days=1))]
        highs = [schema.get("le"), _shifted(schema.get("lt"), timedelta(days=-1))]
        low, high = _tightest(lows, highs)
        result: dict[str, Any] = {"type": "string", "format": "date"}
        return result if low is None and high is None else result | {"pattern": _checked(texts.date_pattern, low, high)}

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        low, high = texts.whole_seconds(*(schema.get(name) for name in ("ge", "le", "gt", "lt")))
        zone = _zone_of(schema)
        if zone == "required" and low is None and high is None:
            return {"type": "string", "format": "date-time"}
        return {"type": "string", "pattern": _checked(texts.datetime_pattern, zone, low, high)}

    def time_schema(self, schema: Any) -> dict[str, Any]:
        low, high = schema.get("ge"), schema.get("le")
        if schema.get("gt") is not None or schema.get("lt") is not None:
            raise PydanticUserError("bounds of times are ge and le, in whole seconds", code=None)
        zone = _zone_of(schema)
        if zone == "required" and low is None and high is None:
            return {"type": "string", "format": "time"}
        return {"type": "string", "pattern": _checked(texts.time_pattern, zone, low, high)}

    def timedelta_schema(self, schema: Any) -> dict[str, Any]:
        second = timedelta(seconds=1)
        lows = [_divided(schema.get("ge"), second, up=True), _next(_divided(schema.get("gt"), second), 1)]
        highs = [_divided(schema.get("le"), second), _next(_divided(schema.get("lt"), second, up=True), -1)]
        return {"type": "string", "pattern": _checked(texts.duration_pattern, *_tightest(lows, highs))}

    def uuid_schema(self, schema: Any) -> dict[str, Any]:
        result: dict[str, Any] = {"type": "string", "format": "uuid"}
        version = schema.get("version")
        return result if version is None else result | {"pattern": texts.uuid_pattern(version)}

    def complex_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": "string", "pattern": texts.COMPLEX}

    def url_schema(self, schema: Any) -> dict[str, Any]:
        schemes = schema.get("allowed_schemes") or ["https", "http"]
        result: dict[str, Any] = {"type": "string", "pattern": texts.url_pattern(schemes, with_host=True)}
        return result | ({"maxLength": schema["max_length"]} if schema.get("max_length") else {})

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        return _parsed_values(super().enum_schema(schema), schema)

    def literal_schema(self, schema: Any) -> dict[str, Any]:
        return _parsed_values(super().literal_schema(schema), schema)

    def set_schema(self, schema: Any) -> dict[str, Any]:
        return self._with_hashable_items(super().set_schema(schema), schema)

    def frozenset_schema(self, schema: Any) -> dict[str, Any]:
        return self._with_hashable_items(super().frozenset_schema(schema), schema)

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        keys, values = schema.get("keys_schema"), schema.get("values_schema")
        names = {} if keys is None else self._names(keys)
        result: dict[str, Any] = {"type": "object"}
        if names not in ({}, {"type": "string"}):
            result["propertyNames"] = names
        result["additionalProperties"] = True if values is None else self.generate_inner(values) or True
        given = {"minProperties": schema.get("min_length"), "maxProperties": schema.get("max_length")}
        return result | {name: value for name, value in given.items() if value is not None}

    def call_schema(self, schema: Any) -> dict[str, Any]:
        return self.handle_invalid_for_json_schema(schema, "a function, which is no type")

    def json_schema(self, schema: Any) -> dict[str, Any]:
        return self.handle_invalid_for_json_schema(schema, "JSON inside a string, which no grammar writes")

    def is_instance_schema(self, schema: Any) -> dict[str, Any]:
        return self.handle_invalid_for_json_schema(schema, f"{schema['cls']} has no JSON form")

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        result = super().generate_inner(schema)
        if (tight := _FORMATS.get(str(result.get("format")))) is not None:
            result |= {key: value for key, value in tight.items() if key not in result}
        return result

    def _with_hashable_items(self, result: dict[str, Any], schema: Any) -> dict[str, Any]:
        items = schema.get("items_schema") or {"type": "any"}
        if items["type"] == "any":
            return result | {"items": _SCALARS}
        if items["type"] in _UNHASHABLE and ("cls" not in items or items["cls"].__hash__ is None):
            self.handle_invalid_for_json_schema(schema, f"a set, whose items cannot be of the type {items['type']}")
        return result

    def _names(self, keys: Any) -> dict[str, Any]:
        """Return the schema of a dict's names, which are strings whatever the type of the keys."""
        match keys["type"]:
            case "any":
                return {}
            case "int":
                bounds = _tightest(
                    [keys.get("ge"), _next(keys.get("gt"), 1)], [keys.get("le"), _next(keys.get("lt"), -1)]
                )
                if keys.get("multiple_of") is None:
                    return {"type": "string", "pattern": _checked(texts.integer_pattern, *bounds)}
            case "float" if set(keys) <= {"type", "metadata", "serialization"}:
                return {"type": "string", "pattern": texts.FLOAT}
            case "bool":
                return {"enum": ["true", "false"]}
            case "enum" | "literal":
                given = keys["members"] if keys["type"] == "enum" else keys["expected"]
                values = [value.value if isinstance(value, Enum) else value for value in given]
                names = [value if isinstance(value, str) else json.dumps(value) for value in values]
                if names := [name for name in names if _parses({"type": "dict", "keys_schema": keys}, {name: 0})]:
                    return {"enum": names}
            case "decimal" if set(keys) <= {"type", "metadata", "serialization"}:
                return {"type": "string", "pattern": texts.DECIMAL}
            case "union":
                return {"anyOf": [self._names(one[0] if isinstance(one, tuple) else one) for one in keys["choices"]]}
            case "definition-ref" | "definitions":
                raise PydanticUserError("keys of a dict of this type", code=None)
            case _:
                result = self.generate_inner(keys)
                if result.get("type") == "string" or "format" in result:
                    return result
        self.handle_invalid_for_json_schema(keys, f"keys of a dict of the type {keys['type']}")
        raise AssertionError


def _finite(result: dict[str, Any]) -> dict[str, Any]:
    """Return a number's schema without infinite bounds, which JSON cannot write."""
    return {key: value for key, value in result.items() if not (isinstance(value, float) and math.isinf(value))}


def _bounded_decimal(bounds: dict[str, Any], digits: int | None, places: int | None, step: Any) -> dict[str, Any]:
    """Return the schema of decimals with bounds or a number of places: numbers with digits that a double keeps."""
    if digits is not None and places is None and step is None:
        largest = max((abs(Decimal(bound)) for bound in bounds.values()), default=Decimal(0))
        places = max(0, digits - len(str(int(largest))))
    unit = Decimal(step) if step is not None else None if places is None else Decimal(1).scaleb(-places)
    result: dict[str, Any] = {"type": "number"}
    names = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
    result |= {names[name]: texts.decimal_bound(bound) for name, bound in bounds.items()}
    if unit is None:
        unit = Decimal("0.000001") if max((abs(Decimal(b)) for b in bounds.values()), default=0) < 10**8 else Decimal(1)
    result["multipleOf"] = texts.decimal_bound(unit)
    exponent = unit.as_tuple().exponent
    fraction = max(0, -exponent) if isinstance(exponent, int) else 0
    whole = min(_MOST_DIGITS, digits or _MOST_DIGITS) - fraction
    limit = max(10**whole, 1)
    if "ge" not in bounds and "gt" not in bounds:
        result["exclusiveMinimum"] = -limit
    if "le" not in bounds and "lt" not in bounds:
        result["exclusiveMaximum"] = limit
    if whole <= 0 and digits is not None:
        result["not"] = {"const": 0}  # it has a digit before the point
    return result


def _counted(schema: Mapping[str, Any], per: int, characters: int) -> dict[str, int]:
    """Return the bounds of a text that stands for bytes, `characters` for each `per` of them."""
    low, high = schema.get("min_length"), schema.get("max_length")
    result = {} if low is None else {"minLength": -(-low // per) * characters}
    return result if high is None else result | {"maxLength": high // per * characters}


def _zone_of(schema: Mapping[str, Any]) -> texts.Zone:
    constraint = schema.get("tz_constraint")
    if isinstance(constraint, int):
        raise PydanticUserError("a fixed offset from UTC", code=None)
    return {"aware": "required", "naive": "none"}.get(constraint or "")  # type: ignore[return-value]


def _parsed_values(result: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return the schema of an Enum or Literal with the values that the parser reads from JSON."""
    values = [result["const"]] if "const" in result else result["enum"]
    read = [value for value in values if _parses(schema, value)]
    if not read:
        raise PydanticUserError(f"none of the values {values!r} can be read from JSON", code=None)
    return result if "const" in result else result | {"enum": read}


def _parses(schema: Any, value: Any) -> bool:
    try:
        SchemaValidator(schema).validate_json(json.dumps(value))
    except (pydantic.ValidationError, TypeError, ValueError):
        return False
    return True


def _tightest(lows: Sequence[Any], highs: Sequence[Any]) -> tuple[Any, Any]:
    """Return the highest of the lower bounds and the lowest of the upper ones; None where there is none."""
    low = max((bound for bound in lows if bound is not None), default=None)
    return low, min((bound for bound in highs if bound is not None), default=None)


def _shifted(bound: Any, by: timedelta) -> Any:
    return None if bound is None else bound + by


def _next(bound: int | None, by: Literal[1, -1]) -> int | None:
    return None if bound is None else bound + by


def _divided(bound: timedelta | None, by: timedelta, *, up: bool = False) -> int | None:
    return None if bound is None else -(-bound // by) if up else bound // by


def _checked(pattern: Callable[..., str], *bounds: Any) -> str:
    try:
        return pattern(*bounds)
    except ValueError as error:
        raise PydanticUserError(str(error), code=None) from None
