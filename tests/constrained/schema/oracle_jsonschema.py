"""Strategies for schemas with every keyword, values near them, and the oracle `jsonschema` with exact decimals.

The domain is small on purpose (a few names, short strings, small numbers), so that keywords meet.
"""

from __future__ import annotations

import decimal
import json
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import jsonschema
from hypothesis import strategies as st

from ramiform.tests.constrained.strategies import some

NAMES = ["a", "b", "ab", "x1"]
PATTERNS = ["^a", "b$", "^[ab]+$", "^.{2}$", "[0-9]", "^(a|x1)$", "^é?$"]
FORMATS = {"date": "2024-02-29", "ipv4": "127.0.0.1", "uuid": "123e4567-e89b-12d3-a456-426614174000"}
TEXTS = ["", "a", "b", "ab", "ba", "abc", "x1", "é", "🙂b", '"\\/\n', "1", *FORMATS.values()]
NUMBERS: list[Any] = [0, 1, 2, 3, 4, 6, 10, -1, -2, 0.5, 1.5, 2.25, -0.5, 12]
LEAVES: list[Any] = [None, True, False, *NUMBERS, *TEXTS]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]

_count = st.integers(0, 3)
_number = st.sampled_from([-1, 0, 1, 2, 2.5, 3, 10, 0.5])
_names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
VALUES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=3,
)


def schemas(depth: int = 2) -> st.SearchStrategy[Any]:
    """A schema with definitions `d` and `e` that may refer to themselves, to each other and to the root."""
    return st.tuples(_schemas(depth), _schemas(depth - 1), _schemas(depth - 1)).map(_rooted)


def _rooted(parts: tuple[Any, Any, Any]) -> Any:
    root, *definitions = parts
    text = json.dumps(parts)
    used = {name: schema for name, schema in zip("de", definitions, strict=True) if f'"#/$defs/{name}"' in text}
    if isinstance(root, bool) or not used:
        return root
    return {**root, "$defs": used}


def _schemas(depth: int) -> st.SearchStrategy[Any]:
    leaf = st.one_of(
        st.just({}),
        st.sampled_from(TYPES).map(lambda name: {"type": name}),
        st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
        VALUES.map(lambda value: {"const": value}),
        some(_STRINGS, 1, 2).map(lambda schema: {"type": "string", **schema}),
        some(_NUMBERS, 1, 2).map(lambda schema: {"type": "integer", **schema}),
        some(_NUMBERS, 1, 2).map(lambda schema: {"type": "number", **schema}),
        st.booleans(),
    )
    if depth <= 0:
        return leaf
    inner = st.deferred(lambda: _schemas(depth - 1))
    reference = st.sampled_from(["#/$defs/d", "#/$defs/e", "#"]).map(lambda target: {"$ref": target})
    arrays, objects, logic = _arrays(inner | reference), _objects(inner | reference), _logic(inner)
    everything = {**_STRINGS, **_NUMBERS, **arrays, **objects, **logic}
    return st.one_of(
        leaf,
        some(arrays, 1, 3).map(lambda schema: {"type": "array", **schema}),
        some(objects, 1, 3).map(lambda schema: {"type": "object", **schema}),
        some(logic, 1, 2),
        st.tuples(some(objects, 1, 2), some(logic, 1, 1)).map(lambda pair: {**pair[0], **pair[1]}),
        st.tuples(some(arrays, 1, 2), some(logic, 1, 1)).map(lambda pair: {**pair[0], **pair[1]}),
        some(everything, 1, 3),
    )


_STRINGS: dict[str, st.SearchStrategy[Any]] = {
    "minLength": _count,
    "maxLength": _count,
    "pattern": st.sampled_from(PATTERNS),
    "format": st.sampled_from(sorted(FORMATS)),
}
_NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": st.sampled_from([1, 2, 3, 0.5, 1.5]),
}


def _arrays(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=3),
        "minItems": _count,
        "maxItems": _count,
        "uniqueItems": st.booleans(),
        "contains": inner,
        "minContains": _count,
        "maxContains": _count,
        "unevaluatedItems": inner,
    }


def _objects(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    named = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    return {
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, min_size=1, max_size=2),
        "additionalProperties": inner,
        "required": _names,
        "propertyNames": inner,
        "minProperties": _count,
        "maxProperties": _count,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), _names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=2),
        "unevaluatedProperties": inner,
    }


def _logic(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    return {
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "$ref": st.sampled_from(["#/$defs/d", "#/$defs/e"]),
        "type": st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
    }


def has_reference_cycle(schema: Any) -> bool:
    """Return True if `$defs` refer to each other or themselves about the same value: such a schema has no meaning."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}

    def targets(part: Any) -> set[str]:
        if not isinstance(part, dict):
            return set()
        found = {part["$ref"]} if "$ref" in part else set()
        for name in ("allOf", "anyOf", "oneOf"):
            found = found.union(*(targets(inner) for inner in part.get(name, [])))
        for inner in [
            *(part.get(n) for n in ("not", "if", "then", "else")),
            *part.get("dependentSchemas", {}).values(),
        ]:
            found |= targets(inner)
        return found

    nodes = {"#": targets(schema)} | {f"#/$defs/{name}": targets(part) for name, part in definitions.items()}
    reached = dict(nodes)
    for _ in nodes:
        reached = {name: found.union(*(reached.get(n, set()) for n in found)) for name, found in reached.items()}
    return any(name in found for name, found in reached.items())


# Older drafts, whose validators `jsonschema` has too.

Draft = Literal["2020-12", "2019-09", "draft-07", "draft-06", "draft-04"]
_URIS: dict[Draft, str] = {
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft-07": "http://json-schema.org/draft-07/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
    "draft-04": "http://json-schema.org/draft-04/schema#",
}
# In 2019-09 `contains` is left out: `jsonschema` takes what it finds as evaluated, as only 2020-12 does.
_NEW: dict[Draft, set[str]] = {"2020-12": set(), "2019-09": {"contains", "minContains", "maxContains"}}
_NEW["draft-07"] = {"unevaluatedItems", "unevaluatedProperties", "minContains", "maxContains"}
_NEW["draft-06"] = _NEW["draft-07"] | {"if", "then", "else"}
_NEW["draft-04"] = _NEW["draft-06"] | {"const", "contains", "propertyNames"}


def in_draft(schema: Any, draft: Draft) -> Any:
    """Rewrite a schema for an older draft, with its `$schema` and without the keywords that the draft lacks."""
    written = _older(schema, draft)
    return {"$schema": _URIS[draft], **written} if isinstance(written, dict) else written


def _older(schema: Any, draft: Draft) -> Any:
    if isinstance(schema, bool) and draft == "draft-04":
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict) or draft == "2020-12":
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NEW[draft]:
            continue
        if name in ("allOf", "anyOf", "oneOf", "prefixItems"):
            found[name] = [_older(part, draft) for part in value]
        elif name in ("properties", "patternProperties", "dependentSchemas", "$defs"):
            found[name] = {key: _older(part, draft) for key, part in value.items()}
        elif isinstance(value, dict | bool) and name not in ("const", "dependentRequired", "uniqueItems"):
            found[name] = _older(value, draft)
        else:
            found[name] = value
    if "prefixItems" in found:
        found |= {"additionalItems": found.pop("items")} if "items" in found else {}
        found["items"] = found.pop("prefixItems")
    if draft != "2019-09":
        dependencies = {**found.pop("dependentRequired", {}), **found.pop("dependentSchemas", {})}
        found |= {"dependencies": dependencies} if dependencies else {}
        found |= {"definitions": found.pop("$defs")} if "$defs" in found else {}
        if "$ref" in found:
            found["$ref"] = found["$ref"].replace("$defs", "definitions")
    if draft == "draft-04":
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if exclusive in found:
                found |= {bound: found[exclusive], exclusive: True}
        if not found.get("required", True):
            del found["required"]  # where it must not be empty
    return found


# The oracle.


def _is_integer(_: object, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, Decimal) and value == value.to_integral_value())


def _exact(validator: Any) -> Any:
    return jsonschema.validators.extend(validator, type_checker=validator.TYPE_CHECKER.redefine("integer", _is_integer))


_VALIDATORS: dict[Draft, Any] = {
    "2020-12": _exact(jsonschema.Draft202012Validator),
    "2019-09": _exact(jsonschema.Draft201909Validator),
    "draft-07": _exact(jsonschema.Draft7Validator),
    "draft-06": _exact(jsonschema.Draft6Validator),
    "draft-04": jsonschema.Draft4Validator,  # where 1.0 is no integer
}


def judge(schema: Any, draft: Draft = "2020-12") -> jsonschema.protocols.Validator:
    """Return a validator with formats, exact decimals, and the `$` of ECMA-262: the end of the string."""
    exact = json.loads(json.dumps(_ecma(schema)), parse_float=Decimal)
    return _VALIDATORS[draft](exact, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def is_valid(validator: jsonschema.protocols.Validator, text: str) -> bool:
    """Return True if a JSON text holds a valid value."""
    with decimal.localcontext(decimal.Context(prec=5000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)):
        return bool(validator.is_valid(json.loads(text, parse_float=Decimal)))


def _ecma(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_ecma(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for name, value in schema.items():
        if name == "patternProperties" and isinstance(value, dict):
            found[name] = {pattern.replace("$", r"\Z"): _ecma(inner) for pattern, inner in value.items()}
        elif name == "pattern" and isinstance(value, str):
            found[name] = value.replace("$", r"\Z")
        else:
            found[name] = value if name in ("enum", "const") else _ecma(value)
    return found


# Values near a schema.


class Guesser:
    """Draws values that are likely to be valid under a schema, or nearly valid."""

    def __init__(self, schema: Any, rng: random.Random) -> None:
        self._root, self._rng = schema, rng

    def guess(self) -> Any:
        return self._guess(self._root, 4)

    def _guess(self, schema: Any, depth: int) -> Any:
        draw = self._rng
        if not isinstance(schema, dict) or draw.random() < 0.1 or depth <= 0:
            return self._anything(min(depth, 2))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return draw.choice(schema["enum"])
        inner = self._inner(schema)
        if inner and draw.random() < 0.7:
            schema = {**schema, **self._merged(draw.choice(inner), depth)}
            if "const" in schema or "enum" in schema:
                return draw.choice([schema["const"]] if "const" in schema else schema["enum"])
        types = schema.get("type", self._likely(schema))
        kind = types if isinstance(types, str) else draw.choice(types)
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return FORMATS.get(schema.get("format", ""), draw.choice(TEXTS))
            case "integer" | "number":
                return draw.choice(NUMBERS)
            case "boolean":
                return draw.random() < 0.5
            case _:
                return None

    def _inner(self, schema: dict[str, Any]) -> list[Any]:
        inner = [part for name in ("allOf", "anyOf", "oneOf") for part in schema.get(name, [])]
        inner += [schema[name] for name in ("$ref", "if", "then", "else", "not") if name in schema]
        return inner + list(schema.get("dependentSchemas", {}).values())

    def _merged(self, part: Any, depth: int) -> dict[str, Any]:
        if isinstance(part, str):
            part = self._root if part == "#" else self._root.get("$defs", {}).get(part[len("#/$defs/") :], {})
        if isinstance(part, dict) and "$ref" in part and depth:
            part = {**self._merged(part["$ref"], depth - 1), **{k: v for k, v in part.items() if k != "$ref"}}
        return part if isinstance(part, dict) else {}

    def _likely(self, schema: dict[str, Any]) -> list[str]:
        kinds = []
        if any(name in schema for name in _objects(st.nothing())):
            kinds += ["object"] * 4
        if any(name in schema for name in _arrays(st.nothing())):
            kinds += ["array"] * 4
        kinds += ["string"] * 3 if any(name in schema for name in _STRINGS) else []
        kinds += ["number"] * 3 if any(name in schema for name in _NUMBERS) else []
        return kinds or TYPES

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        draw, properties = self._rng, schema.get("properties", {})
        names = [name for name in NAMES if draw.random() < (0.5 if name in properties else 0.25)]
        names += [name for name in schema.get("required", []) if draw.random() < 0.95]
        names = names[: schema.get("maxProperties", 4) + (draw.random() < 0.1)]
        draw.shuffle(names)
        others = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", True)]
        others += [schema[name] for name in ("unevaluatedProperties",) if name in schema]
        return {name: self._guess(properties.get(name, draw.choice(others)), depth - 1) for name in names}

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        draw, first = self._rng, schema.get("prefixItems", [])
        low, high = schema.get("minItems", 0), schema.get("maxItems", 3)
        count = max(0, draw.randint(low, max(low, high)) + draw.choice([0] * 8 + [-1, 1]))
        others = [schema[name] for name in ("items", "contains", "unevaluatedItems") if name in schema] or [True]
        items = [self._guess(first[n] if n < len(first) else draw.choice(others), depth - 1) for n in range(count)]
        return [*items, draw.choice(items)] if items and draw.random() < 0.1 else items

    def _anything(self, depth: int) -> Any:
        draw, kind = self._rng, self._rng.random()
        if depth > 0 and kind < 0.2:
            return [self._anything(depth - 1) for _ in range(draw.randint(0, 2))]
        if depth > 0 and kind < 0.4:
            return {name: self._anything(depth - 1) for name in NAMES if draw.random() < 0.3}
        return draw.choice(LEAVES)


# Spellings of a value.

Whitespace = Literal["compact", "bounded", "any"]


def spelled(value: Any, whitespace: Whitespace, rng: random.Random) -> str:
    """Draw one of the spellings of a value that the engine allows: order, escapes, trailing zeros, whitespace."""

    def gap() -> str:
        return "".join(rng.choice(" \n\t\r") for _ in range(rng.choice([0, 0, 0, 1, 2]))) if whitespace == "any" else ""

    def after() -> str:
        return rng.choice(["", " "]) if whitespace == "bounded" else gap()

    def write(part: Any) -> str:
        match part:
            case None | True | False:
                return json.dumps(part)
            case int():
                return f"{part}{rng.choice(['', '', '', '.0', '.00'])}"
            case float():
                return repr(part) + rng.choice(["", "", "0"])
            case str():
                return _string(part, rng)
            case list():
                return _joined("[]", [write(inner) for inner in part], gap, after)
            case dict():
                items = [*part.items()]
                rng.shuffle(items)
                members = [f"{_string(name, rng)}{gap()}:{after()}{write(inner)}" for name, inner in items]
                return _joined("{}", members, gap, after)
        raise AssertionError(part)

    return write(value)


def _joined(brackets: str, parts: Sequence[str], gap: Any, after: Any) -> str:
    text = "".join(part + (f"{gap()},{after()}" if n + 1 < len(parts) else "") for n, part in enumerate(parts))
    return brackets[0] + gap() + text + (gap() if parts else "") + brackets[1]


def _string(text: str, rng: random.Random) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    parts = []
    for character in text:
        if character in short:
            parts.append(short[character])
        elif not character.isascii() and rng.random() < 0.5:
            escaped = json.dumps(character)[1:-1]
            parts.append(escaped if rng.random() < 0.5 else escaped.upper().replace("\\U", "\\u"))
        else:
            parts.append(character)
    return f'"{"".join(parts)}"'
