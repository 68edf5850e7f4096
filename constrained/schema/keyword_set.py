"""Atoms of formulas: the keywords of one schema, and given values. Both are read as parts, type by type."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from ..budget import work_at
from ..errors import GrammarError
from ..regex.charset import has_surrogates
from ..regex.syntax.length_limits import length_limits
from .document import Location
from .formula import Formula, disj
from .interface import SchemaCompiler
from .keywords import ARRAY_KEYWORDS, NUMBER_KEYWORDS, OBJECT_KEYWORDS, STRING_KEYWORDS, TYPES
from .listed.values import GivenValue, ListedPart, given_value, json_value, listed_part
from .number_parts import NumberPart, number_part
from .strings.string_parts import StringPart
from .structure_parts import ArrayKeywords, ArrayPart, ObjectKeywords, ObjectPart

MAX_COMBINED_VALUES = 90  # given objects or arrays that are combined with other constraints
MAX_CONTAINED = 1000  # of `minContains` and `maxContains`
_NOTHING = frozenset[str]()
_TYPE_OF_KIND = (  # kind of values, its type in JSON Schema, the keywords that say more of such values
    ("null", "null", _NOTHING),
    ("true", "boolean", _NOTHING),
    ("false", "boolean", _NOTHING),
    ("number", "number", NUMBER_KEYWORDS),
    ("string", "string", STRING_KEYWORDS),
    ("object", "object", OBJECT_KEYWORDS),
    ("array", "array", ARRAY_KEYWORDS),
)


class KeywordSet:
    """The keywords of one schema that constrain a value directly, without another schema of the same value.

    `generated`: the value is written by the schema, as are its members and items.
    """

    __slots__ = ("_typed", "compiler", "draft", "generated", "location")

    def __init__(self, compiler: SchemaCompiler, location: Location, draft: int, generated: bool = False) -> None:
        self.compiler, self.location, self.draft, self.generated = compiler, location, draft, generated
        self._typed: dict[str, Formula] = {}

    def typed(self, kind: str) -> Formula:
        """Return the keywords as a part of one of `VALUE_TYPES`, or True or False if they allow all or none of it."""
        found = self._typed.get(kind)
        if found is None:
            if not self._typed:
                self._decide_types()
            if (found := self._typed.get(kind)) is None:
                found = self._typed[kind] = self._part(kind)
        return found

    def _decide_types(self) -> None:
        """Note the types of which all values or none are allowed. Of the others keywords say more."""
        schema = self.location.schema
        types = schema.get("type", TYPES)
        if isinstance(types, str):
            types = (types,)
        for kind, name, keywords in _TYPE_OF_KIND:
            if name in types:
                if keywords.isdisjoint(schema):
                    self._typed[kind] = True
            elif kind != "number" or "integer" not in types:
                self._typed[kind] = kind == "null" and schema.get("nullable") is True and "type" in schema

    def _part(self, kind: str) -> Formula:
        schema, pointer = self.location.schema, self.location.pointer
        work_at(pointer)
        if kind == "number":
            types = schema.get("type", TYPES)
            integer = "number" not in ((types,) if isinstance(types, str) else types)
            digits = self.draft <= 4 or (self.generated and self.compiler.integers_as_digits)
            part = number_part(schema, integer, integer and digits, pointer)
            return self.compiler.join_parts([part], kind)
        if kind == "string":
            return self._string_part()
        return self._object_part() if kind == "object" else self._array_part()

    def _string_part(self) -> Formula:
        schema = self.location.schema
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        mosts = [] if most is None else [int(most)]
        patterns = [length_limits(schema["pattern"])] if "pattern" in schema else []
        part = StringPart(
            max([least, *(limits.least for limits in patterns)]),
            min([*mosts, *(limits.most for limits in patterns if limits.most is not None)], default=None),
            frozenset(limits.pattern for limits in patterns),
            frozenset([schema["format"]] if "format" in schema else []),
        )
        return self.compiler.join_parts([part], "string")

    def _object_part(self) -> Formula:
        schema, compiler = self.location.schema, self.compiler
        requires: dict[str, tuple[str, ...]] = {}
        for keyword in ("dependentRequired", "dependencies"):
            for name, others in schema.get(keyword, {}).items():
                if isinstance(others, list | str):
                    names = (others,) if isinstance(others, str) else tuple(others)
                    requires[name] = (*requires.get(name, ()), *names)
        required = schema.get("required", [])
        if self.draft == 3:
            inner = schema.get("properties", {}).items()
            required = [n for n, v in inner if isinstance(v, dict) and v.get("required") is True]
        most = schema.get("maxProperties")
        keywords = ObjectKeywords(
            compiler.document,
            {n: self._goal(v, "properties", n) for n, v in schema.get("properties", {}).items()},
            {n: self._goal(v, "patternProperties", n) for n, v in schema.get("patternProperties", {}).items()},
            self._goal(schema.get("additionalProperties", True), "additionalProperties"),
            self._condition(schema.get("propertyNames", True), "propertyNames"),
            tuple(required) if isinstance(required, list) else (),
            requires,
            int(schema.get("minProperties", 0)),
            None if most is None else int(most),
            self.generated and compiler.closes_objects and schema.get("additionalProperties") is False,
            self.location.pointer,
        )
        if keywords.allow_everything:
            return True
        # Equal keywords share one part, so that formulas recognise it.
        keywords = compiler.cache.setdefault(("object", *keywords.key), keywords)
        return compiler.join_parts([ObjectPart((keywords,))], "object")

    def _array_part(self) -> Formula:
        schema, compiler = self.location.schema, self.compiler
        items, first_name = schema.get("items", True), "prefixItems"
        first, rest = schema.get("prefixItems", []) if self.draft >= 2020 else [], items
        if isinstance(items, list):
            first, first_name, rest = items, "items", schema.get("additionalItems", True)
        most, contains = schema.get("maxItems"), None
        if "contains" in schema and self.draft >= 6:
            has_limits = self.draft >= 2019
            found_most = schema.get("maxContains") if has_limits else None
            if found_most is not None and found_most >= schema.get("maxItems", math.inf):
                found_most = None  # no array has so many items
            contains = (
                self._condition(schema["contains"], "contains"),  # the items that it finds are written by `items`
                int(schema.get("minContains", 1)) if has_limits else 1,
                None if found_most is None else int(found_most),
            )
        keywords = ArrayKeywords(
            tuple(self._goal(value, first_name, n) for n, value in enumerate(first)),
            self._goal(rest, "items" if rest is items else "additionalItems"),
            int(schema.get("minItems", 0)),
            None if most is None else int(most),
            schema.get("uniqueItems") is True,
            contains,
            self.location.pointer,
        )
        if keywords.allow_everything:
            return True
        keywords = compiler.cache.setdefault(("array", *keywords.key), keywords)
        return compiler.join_parts([ArrayPart((keywords,))], "array")

    def _goal(self, schema: Any, *path: str | int) -> Formula:
        """Return the goal of the subschema of a member or item."""
        if isinstance(schema, bool):
            return schema
        location = self.compiler.document.inside(self.location, schema, *path)
        return self.compiler.goal(location, generated=self.generated)

    def _condition(self, schema: Any, *path: str | int) -> Formula:
        if isinstance(schema, bool):
            return schema
        return self.compiler.goal(self.compiler.document.inside(self.location, schema, *path))


class LiteralValues:
    """A choice of given values."""

    __slots__ = ("_typed",)

    def __init__(self, compiler: SchemaCompiler, values: list[Any], pointer: str, generated: bool) -> None:
        """`generated`: the value is written by the schema, so `SchemaOptions` apply."""
        digits, ordered = generated and compiler.integers_as_digits, generated and compiler.closes_objects
        texts = frozenset(value for value in values if isinstance(value, str) and not has_surrogates(value))
        numbers = frozenset(
            Decimal(repr(value)) for value in values if isinstance(value, int | float) and not isinstance(value, bool)
        )

        def structures(kind: type) -> ListedPart | bool:
            found = [given_value(compiler, value) for value in values if isinstance(value, kind)]
            return listed_part(compiler, found, digits, ordered, pointer)

        self._typed: dict[str, Formula] = {
            "null": any(value is None for value in values),
            "true": any(value is True for value in values),
            "false": any(value is False for value in values),
            "string": StringPart(texts=texts) if texts else False,
            "number": NumberPart(digits=digits, values=numbers) if numbers else False,
            "object": structures(dict),
            "array": structures(list),
        }

    def typed(self, kind: str) -> Formula:
        """Return the values of one of `VALUE_TYPES` as a part, or False if there are none."""
        return self._typed[kind]


def derived_keywords(
    compiler: SchemaCompiler, schema: dict[str, Any], location: Location, *, generated: bool = False, draft: int = 2020
) -> KeywordSet:
    """Return the keywords of a derived schema, with the base and scope of `location`."""
    compiler.keep_alive(schema)
    derived = Location(schema, location.pointer, location.base, location.scope, location.draft)
    return KeywordSet(compiler, derived, draft, generated)


def object_with(compiler: SchemaCompiler, name: str) -> Formula:
    """Return the formula of objects that have a member of this name."""
    key = ("object with", name)
    if key not in compiler.cache:
        schema = {"type": "object", "required": [name]}
        compiler.cache[key] = derived_keywords(compiler, schema, Location(schema, "", ""))
    return compiler.cache[key]


def enum_formula(compiler: SchemaCompiler, values: list[Any], pointer: str = "", *, generated: bool = False) -> Formula:
    """Return the formula of the values of an `enum`. `pointer` is that of the keyword, for error messages."""
    return LiteralValues(compiler, values, pointer, generated) if values else False


def unlisted(compiler: SchemaCompiler, part: ListedPart) -> Formula:
    """Return the formula of given objects or arrays over ordinary parts, to combine them with others.

    Raises GrammarError with the pointer of the keyword if they are too many.
    """
    key = ("unlisted", part)
    if key not in compiler.cache:
        if len(part.values) > MAX_COMBINED_VALUES:
            raise GrammarError(
                f"more than {MAX_COMBINED_VALUES} given objects or arrays are combined with other constraints",
                pointer=part.pointer,
            )
        compiler.cache[key] = disj(_keywords_of(compiler, value, part) for value in part.values)
    return compiler.cache[key]


def _keywords_of(compiler: SchemaCompiler, value: GivenValue, part: ListedPart) -> Formula:
    """Return the part of the objects or arrays that equal a given one."""

    def given(inner: GivenValue) -> Formula:
        key = ("given member", inner)  # equal members have equal goals
        schema = compiler.cache.setdefault(key, {"enum": [json_value(inner)]})
        return compiler.goal(Location(schema, "", ""), generated=part.digits or part.ordered)

    if value.kind == "object":
        members = {name: given(inner) for name, inner in value.content}
        return compiler.join_parts(
            [
                ObjectPart(
                    (
                        ObjectKeywords(
                            compiler.document, members, {}, False, True, tuple(members), {}, 0, None, part.ordered
                        ),
                    )
                )
            ],
            "object",
        )
    items = tuple(given(inner) for inner in value.content)
    return compiler.join_parts([ArrayPart((ArrayKeywords(items, False, len(items), None, False, None),))], "array")
