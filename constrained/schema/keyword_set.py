"""The atoms of formulas: schemas that have not been looked into, the keywords of one schema, and given values.

Knows what keywords ask of each type of values, as parts; nothing of how schemas are combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from .document import Location
from .formula import Formula
from .keywords import TYPES
from .number_parts import NumberPart, number_part
from .quick_checks import NUMBER_KEYWORDS, STRING_KEYWORDS
from .string_parts import StringPart
from .structure_parts import array_part, object_part

if TYPE_CHECKING:
    from .goals import SchemaCompiler

_JSON_TYPE = {"null": "null", "true": "boolean", "false": "boolean"}
_OBJECT_KEYWORDS = frozenset(
    [
        *("properties", "patternProperties", "additionalProperties", "required", "propertyNames", "dependencies"),
        *("minProperties", "maxProperties", "dependentRequired"),
    ]
)
_ARRAY_KEYWORDS = frozenset(
    [*("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains")]
)
LOCAL = frozenset(["type"]) | STRING_KEYWORDS | NUMBER_KEYWORDS | _OBJECT_KEYWORDS | _ARRAY_KEYWORDS


class KeywordSet:
    """The keywords of one schema that need no other schema of the same value. `written`: of a value that is written by
    the schema, and so are its members and items."""

    __slots__ = ("_typed", "draft", "location", "world", "written")

    def __init__(self, world: SchemaCompiler, location: Location, draft: int, written: bool = False) -> None:
        self.world, self.location, self.draft, self.written = world, location, draft, written
        self._typed: dict[str, Formula] = {}

    def typed(self, kind: str) -> Formula:
        found = self._typed.get(kind)
        if found is None:
            found = self._typed[kind] = self._part(kind)
        return found

    def _part(self, kind: str) -> Formula:
        schema, pointer = self.location.schema, self.location.pointer
        types = schema.get("type", TYPES)
        if isinstance(types, str):
            types = (types,)
        if kind == "number":
            if "number" not in types and "integer" not in types:
                return False
            integer = "number" not in types
            if not integer and not NUMBER_KEYWORDS & schema.keys():
                return True
            digits = self.draft <= 4 or (self.written and self.world.writes_digits)
            part = number_part(schema, integer, integer and digits, pointer)
            return self.world.join([part], kind)
        if _JSON_TYPE.get(kind, kind) not in types:
            return kind == "null" and schema.get("nullable") is True and "type" in schema
        if kind == "string":
            return self._string(schema) if STRING_KEYWORDS & schema.keys() else True
        if kind == "object":
            return object_part(self.world, self) if _OBJECT_KEYWORDS & schema.keys() else True
        if kind == "array":
            return array_part(self.world, self) if _ARRAY_KEYWORDS & schema.keys() else True
        return True

    def _string(self, schema: Mapping[str, Any]) -> Formula:
        most = schema.get("maxLength")
        part = StringPart(
            int(schema.get("minLength", 0)),
            None if most is None else int(most),
            frozenset([schema["pattern"]] if "pattern" in schema else []),
            frozenset([schema["format"]] if "format" in schema else []),
        )
        return self.world.join([part], "string")


class LiteralValues:
    """One of some values that are no objects or arrays. `whole`: numbers that are integers are written as digits."""

    __slots__ = ("_typed",)

    def __init__(self, values: Iterable[Any], whole: bool = False) -> None:
        values = list(values)
        # Half a surrogate pair is no character.
        texts = frozenset(v for v in values if isinstance(v, str) and not any(0xD800 <= ord(c) <= 0xDFFF for c in v))
        numbers = frozenset(
            Decimal(repr(value)) for value in values if isinstance(value, int | float) and not isinstance(value, bool)
        )
        self._typed: dict[str, Formula] = {
            "null": None in values,
            "true": any(value is True for value in values),
            "false": any(value is False for value in values),
            "string": StringPart(texts=texts) if texts else False,
            "number": NumberPart(whole=whole, values=numbers) if numbers else False,
        }

    def typed(self, kind: str) -> Formula:
        return self._typed.get(kind, False)
