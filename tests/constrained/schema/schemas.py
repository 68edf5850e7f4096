"""Strategies: schemas of the supported kind, and JSON values that are valid under them by construction."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.sampled_from(["a", "b", "name", 'qu"ote', "é", "東京", "sl/ash", "tab\t", ""])
PATTERNS = [
    "^[a-c]+$",
    "b",
    "^x",
    r"\d{2,3}$",
    "^(?:ab|é|\U0001f642)*$",
    r"^[^\"\\]{1,3}$",
    r"\\",
    "a|^b$",
    "^$",
    r"^\S+@\S+$",
]
FORMATS = {
    "date": st.dates().map(lambda d: d.isoformat()),
    "time": st.times().map(lambda t: t.replace(microsecond=0).isoformat() + "Z"),
    "date-time": st.datetimes().map(lambda d: d.replace(microsecond=0).isoformat() + "+01:30"),
    "uuid": st.uuids().map(str),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "email": st.from_regex(r"[a-z]{1,5}(\.[a-z0-9]{1,3})?@[a-z]{1,5}\.[a-z]{2}", fullmatch=True),
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def strings(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    kind = draw(st.sampled_from(["plain", "length", "pattern", "both", "format"]))
    if kind in ("length", "both"):
        low = draw(st.integers(0, 3))
        schema |= {"minLength": low, "maxLength": low + draw(st.integers(0, 4))}
    if kind in ("pattern", "both"):
        schema["pattern"] = draw(st.sampled_from(PATTERNS))
    if kind == "format":
        schema["format"] = draw(st.sampled_from(sorted(FORMATS)))
    return schema


@st.composite
def bounded(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    bound = st.integers(-120, 1200) if kind == "integer" else st.integers(-300, 300).map(lambda n: n / 20)
    low = draw(st.none() | bound)
    high = draw(st.none() | bound)
    if low is not None and high is not None and low > high:
        low, high = high, low
    schema: dict[str, Any] = {"type": kind}
    if low is not None:
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if high is not None:
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = high
    return schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    if draw(st.booleans()):
        properties = draw(st.dictionaries(NAMES, inner, max_size=3))
        required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
        schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        return schema | draw(st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": True}]))
    return {"type": "object", "additionalProperties": draw(inner)}


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    if draw(st.booleans()):
        schema["items"] = draw(inner | st.just(False))
    else:
        schema["items"] = draw(inner)
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxItems"] = schema.get("minItems", 0) + draw(st.integers(0, 2))
    return schema


LEAVES = st.one_of(
    strings(),
    bounded("integer"),
    bounded("number"),
    st.just({"type": "boolean"}),
    st.just({"type": "null", "title": "nothing"}),
    st.just({"type": ["integer", "null"]}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value, "description": "given"}),
    st.just(True),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner),
        arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        inner.map(lambda part: {"$ref": "#/$defs/d~1e%20f", "$defs": {"d/e f": part}} if not _has_ref(part) else part),
    ),
    max_leaves=5,
).filter(lambda schema: not _has_inner_ref(schema))


def _has_ref(schema: Any) -> bool:
    return "$ref" in json.dumps(schema)


def _has_inner_ref(schema: Any) -> bool:
    """Return True if a schema has a reference below its root, which would point elsewhere."""
    return _has_ref({k: v for k, v in schema.items() if k != "$ref"} if isinstance(schema, dict) else schema)


def instances(schema: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for valid values with properties in order and no others."""
    if schema is True:
        return VALUES
    if schema is False:
        return st.nothing()
    match schema:
        case {"$ref": _}:
            return instances(schema["$defs"]["d/e f"])
        case {"enum": values}:
            return st.sampled_from(values)
        case {"const": value}:
            return st.just(value)
        case {"anyOf": parts}:
            return st.one_of([instances(part) for part in parts])
        case {"type": "string"}:
            return _strings(schema)
        case {"type": "integer" | "number" as kind}:
            return _numbers(schema, kind)
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "null"}:
            return st.none()
        case {"type": ["integer", "null"]}:
            return st.none() | st.integers()
        case {"type": "array"}:
            return _arrays(schema)
        case {"type": "object", "properties": properties}:
            required = schema["required"]
            whole = {n: instances(s) if n in required else instances(s) | st.just(...) for n, s in properties.items()}
            return st.fixed_dictionaries(whole).map(lambda v: {k: v[k] for k in properties if v[k] is not ...})
        case {"type": "object"}:
            return st.dictionaries(NAMES | TEXT, instances(schema["additionalProperties"]), max_size=3)
    raise AssertionError(schema)


def _strings(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "format" in schema:
        return FORMATS[schema["format"]]
    low, high = schema.get("minLength", 0), schema.get("maxLength", 8)
    base = st.text(st.characters(exclude_categories=["Cs"]), min_size=low, max_size=high)
    if "pattern" not in schema:
        return base
    pattern = re.compile(schema["pattern"])
    drawn = st.from_regex(pattern) | base
    return drawn.filter(lambda text: low <= len(text) <= high and pattern.search(text) and _same_in_ecma(text))


def _same_in_ecma(text: str) -> bool:
    """Return True if `re` and ECMA-262 agree: in Python `$` matches before a last newline and classes are wider."""
    return (
        not text.endswith("\n") and text.isascii() and not any("\x1c" <= c <= "\x1f" for c in text) and _encodes(text)
    )


def _encodes(text: str) -> bool:
    return all(not 0xD800 <= ord(character) <= 0xDFFF for character in text)


def _numbers(schema: dict[str, Any], kind: str) -> st.SearchStrategy[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -(10**6)))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 10**6))
    low, high = min(low, high), max(low, high)
    if kind == "integer":
        drawn: st.SearchStrategy[Any] = st.integers(low, high)
    elif len(schema) == 1:
        drawn = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
    else:
        drawn = st.integers(int(low * 1000), int(high * 1000)).map(lambda n: n / 1000) | st.sampled_from([low, high])
    return drawn.filter(
        lambda n: (
            schema.get("exclusiveMinimum", n - 1) < n < schema.get("exclusiveMaximum", n + 1)
            and schema.get("minimum", n) <= n <= schema.get("maximum", n)
        )
    )


def _arrays(schema: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    first, low, high = schema.get("prefixItems", []), schema.get("minItems", 0), schema.get("maxItems", 4)
    high = min(high, len(first)) if schema["items"] is False else high
    if high < low:
        return st.nothing()
    parts = [*first, *[schema["items"]] * max(0, high - len(first))][:high]
    return st.integers(low, high).flatmap(lambda n: st.tuples(*(instances(part) for part in parts[:n])).map(list))
