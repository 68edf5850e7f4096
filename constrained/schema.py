"""JSON Schema to an expression. Everything that is accepted is enforced; everything else is refused with its pointer.

What is generated is steered, within what is valid: properties come in the schema's order; an object with `properties`
has no others, whatever `additionalProperties` allows; integers have no fraction and numbers with bounds no exponent;
values that a schema leaves open nest at most MAX_ANY_DEPTH deep.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from .budget import Budget
from .determinise import determinise
from .dfa import intersect
from .encodings import json_string
from .errors import GrammarError
from .expression import NOTHING, Expression, Machine, Members, choice, sequence
from .json_text import BOOLEAN, NULL, JsonText, string
from .nfa import build_nfa
from .schema_arrays import items_expression
from .schema_disjoint import disjoint
from .schema_keywords import ASSERTIONS, check_keywords, child, count, type_of, types_of
from .schema_numbers import Bound, integers, numbers, read_bounds
from .schema_strings import string_expression

MAX_SCHEMA = 1 << 20  # characters
MAX_DEPTH = 50  # of schemas inside schemas, $refs followed


def schema_expression(schema: Mapping[str, Any] | bool | str, whitespace: str, budget: Budget) -> Expression:
    """All JSON texts of one value that is valid under the schema. Raises GrammarError."""
    root = _parse(schema if isinstance(schema, str) else _text(schema))
    return _Schema(root, JsonText(whitespace), budget).expression(root, "")


def _text(schema: Mapping[str, Any] | bool) -> str:
    # Whatever Python object it is, from here on it is JSON.
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is no JSON: {error}", pointer="") from None


def _parse(text: str) -> Any:
    if len(text) > MAX_SCHEMA:
        raise GrammarError(f"the schema is longer than {MAX_SCHEMA} characters")

    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise GrammarError("the schema is nested too deep", pointer="") from None
    except ValueError as error:
        raise GrammarError(f"the schema is no JSON: {error}", pointer="") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


class _Schema:
    def __init__(self, root: Any, text: JsonText, budget: Budget) -> None:
        self._root = root
        self._text = text
        self._budget = budget
        self._by_ref: dict[str, Expression] = {}
        self._open_refs: list[str] = []
        self._depth = 0
        self._num_schemas = 0

    def expression(self, schema: Any, pointer: str) -> Expression:
        """All texts of the values that are valid under one schema."""
        self._num_schemas += 1
        self._budget.check(self._num_schemas)
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"schemas nested deeper than {MAX_DEPTH}", pointer=pointer)
        self._depth += 1
        try:
            match schema:
                case True:
                    return self._text.any_value()
                case False:
                    return NOTHING
                case Mapping():
                    check_keywords(schema, pointer)
                    return self._combined(schema, pointer)
                case _:
                    raise GrammarError(f"a schema is an object or a boolean, not {schema!r}", pointer=pointer)
        finally:
            self._depth -= 1

    def _combined(self, schema: Mapping[str, Any], pointer: str) -> Expression:
        if "$ref" in schema:
            return self._reference(schema["$ref"], child(pointer, "$ref"))
        if "enum" in schema or "const" in schema:
            return self._given_values(schema, pointer)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return self._union(name, schema[name], child(pointer, name))
        if not ASSERTIONS & schema.keys():
            return self._text.any_value()
        types = types_of(schema, pointer)
        return choice(
            self._typed(name, schema, pointer) for name in types if not (name == "integer" and "number" in types)
        )

    def _typed(self, name: str, schema: Mapping[str, Any], pointer: str) -> Expression:
        match name:
            case "object":
                return self._object(schema, pointer)
            case "array":
                return self._array(schema, pointer)
            case "string":
                return string_expression(schema, pointer, self._budget)
            case "integer":
                return integers(*read_bounds(schema, pointer))
            case "number":
                return self._number(*read_bounds(schema, pointer))
            case "boolean":
                return BOOLEAN
            case _:
                return NULL

    def _number(self, lower: Bound | None, upper: Bound | None) -> Expression:
        at_least, at_most = numbers(lower, upper)
        if at_least is at_most:
            return at_least
        above, below = (
            determinise(build_nfa(side, json_string, self._budget), self._budget) for side in (at_least, at_most)
        )
        dfa = intersect(above, below, self._budget)
        return NOTHING if dfa.is_empty else Machine(dfa)

    def _object(self, schema: Mapping[str, Any], pointer: str) -> Expression:
        properties, additional = schema.get("properties"), schema.get("additionalProperties", True)
        required = schema.get("required", [])
        if not isinstance(properties, Mapping | None):
            raise GrammarError("'properties' must be an object", pointer=child(pointer, "properties"))
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise GrammarError("'required' must be an array of strings", pointer=child(pointer, "required"))
        at_additional = child(pointer, "additionalProperties")
        if properties is None and not required:
            other = self.expression(additional, at_additional)
            return self._text.map_of(other) if other != NOTHING else self._text.object(sequence())
        named = {
            name: self.expression(inner, child(pointer, "properties", name))
            for name, inner in (properties or {}).items()
        }
        for name in required:
            if name not in named:
                named[name] = self.expression(additional, at_additional)
        members = []
        for name, value in named.items():
            if value != NOTHING:
                members.append((self._text.member(string(name), value), name in required))
            elif name in required:
                return NOTHING
        return self._text.object(Members(tuple(members), self._text.comma) if members else sequence())

    def _array(self, schema: Mapping[str, Any], pointer: str) -> Expression:
        least, most = count(schema, "minItems", pointer) or 0, count(schema, "maxItems", pointer)
        first, items = schema.get("prefixItems", []), schema.get("items", True)
        if not isinstance(first, list):
            raise GrammarError("'prefixItems' must be an array", pointer=child(pointer, "prefixItems"))
        if isinstance(items, list):
            raise GrammarError(
                "an array of 'items' is not supported: use 'prefixItems'", pointer=child(pointer, "items")
            )
        given = [self.expression(inner, child(pointer, "prefixItems", n)) for n, inner in enumerate(first)][:most]
        item = NOTHING if len(given) == most else self.expression(items, child(pointer, "items"))
        if NOTHING in given:  # nothing can come from there on
            given, item = given[: given.index(NOTHING)], NOTHING
        items_text = items_expression(given, item, least, most, self._text.comma)
        return NOTHING if items_text == NOTHING else self._text.array(items_text)

    def _given_values(self, schema: Mapping[str, Any], pointer: str) -> Expression:
        if "const" in schema:
            values: Any = [schema["const"]]
        else:
            values = schema["enum"]
            if not isinstance(values, list):
                raise GrammarError("'enum' must be an array", pointer=child(pointer, "enum"))
        types = types_of(schema, pointer)
        kept: list[Any] = []
        by_text: set[str] = set()
        for value in values:
            narrowest = type_of(value)
            if narrowest in types or (narrowest == "integer" and "number" in types):
                key = json.dumps(value)
                if key not in by_text:
                    by_text.add(key)
                    kept.append(value)
        return choice(self._text.value(value) for value in kept)

    def _union(self, name: str, schemas: Any, pointer: str) -> Expression:
        if not isinstance(schemas, list) or not schemas:
            raise GrammarError(f"{name!r} must be an array that is not empty", pointer=pointer)
        if name == "allOf" and len(schemas) > 1:
            raise GrammarError("'allOf' of more than one schema is not supported", pointer=pointer)
        parts = [self.expression(inner, child(pointer, n)) for n, inner in enumerate(schemas)]
        if name == "oneOf":
            for n, inner in enumerate(schemas):
                for m in range(n):
                    self._budget.check(0)
                    if not disjoint(schemas[m], child(pointer, m), inner, child(pointer, n), self._resolved):
                        raise GrammarError(
                            f"'oneOf' needs schemas of which no value can match two; {m} and {n} may overlap",
                            pointer=child(pointer, n),
                        )
        return choice(parts)

    def _reference(self, ref: Any, pointer: str) -> Expression:
        if ref in self._open_refs:
            raise GrammarError(f"the recursive reference {ref!r} is not supported", pointer=pointer)
        target = self._target(ref, pointer)
        if ref not in self._by_ref:
            self._open_refs.append(ref)
            self._by_ref[ref] = self.expression(target, unquote(ref[1:]))
            self._open_refs.pop()
        return self._by_ref[ref]

    def _resolved(self, schema: Any, pointer: str) -> tuple[Any, str]:
        """Behind references, which are known to end because they have been followed before."""
        while isinstance(schema, Mapping) and "$ref" in schema:
            schema, pointer = self._target(schema["$ref"], pointer), unquote(schema["$ref"][1:])
        return schema, pointer

    def _target(self, ref: Any, pointer: str) -> Any:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise GrammarError(f"only references inside the schema (#/...) are supported, not {ref!r}", pointer=pointer)
        target = self._root
        for name in unquote(ref).split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise GrammarError(f"{ref!r} points to nothing", pointer=pointer)
        return target
