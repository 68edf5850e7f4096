"""Whether no value can be valid under two schemas at once. Proves it or says no; knows values, not texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .schema_keywords import child, type_of, types_of
from .schema_numbers import read_bounds

Resolve = Callable[[Any, str], tuple[Any, str]]  # a schema and its pointer -> the same behind its $refs
MAX_DEPTH = 16


def disjoint(a: Any, at_a: str, b: Any, at_b: str, resolve: Resolve, depth: int = 0) -> bool:
    """True only if proved: by types, given values, bounds, or a required property that cannot be both."""
    (a, at_a), (b, at_b) = resolve(a, at_a), resolve(b, at_b)
    if a is False or b is False:
        return True
    if depth > MAX_DEPTH or not isinstance(a, dict) or not isinstance(b, dict):
        return False
    for one, at_one, other, at_other in ((a, at_a, b, at_b), (b, at_b, a, at_a)):
        for union in ("anyOf", "oneOf", "allOf"):
            if isinstance(one.get(union), list):
                parts = [
                    disjoint(part, child(at_one, union, n), other, at_other, resolve, depth + 1)
                    for n, part in enumerate(one[union])
                ]
                return any(parts) if union == "allOf" else all(parts)
    values_a, values_b = _values(a, at_a), _values(b, at_b)
    if values_a is not None and values_b is not None:
        return not any(equal(x, y) for x in values_a for y in values_b)
    types_a, types_b = _types(a, at_a, values_a), _types(b, at_b, values_b)
    common = types_a & types_b
    if not common:
        return True
    if common == {"object"}:
        return _objects_disjoint(a, at_a, b, at_b, resolve, depth)
    if common <= {"integer", "number"} and values_a is None and values_b is None:
        (low_a, high_a), (low_b, high_b) = read_bounds(a, at_a), read_bounds(b, at_b)
        return any(
            low is not None
            and high is not None
            and (low.value > high.value or (low.value == high.value and (low.strict or high.strict)))
            for low, high in ((low_a, high_b), (low_b, high_a))
        )
    return False


def equal(a: Any, b: Any) -> bool:
    """JSON equality: 1 is 1.0, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _values(schema: Mapping[str, Any], pointer: str) -> list[Any] | None:
    """The only values that may be valid, if the schema lists them."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _types(schema: Mapping[str, Any], pointer: str, values: list[Any] | None) -> set[str]:
    types = set(types_of(schema, pointer)) if values is None else {type_of(value) for value in values}
    return types | {"integer"} if "number" in types else types


def _objects_disjoint(
    a: Mapping[str, Any], at_a: str, b: Mapping[str, Any], at_b: str, resolve: Resolve, depth: int
) -> bool:
    for one, at_one, other, at_other in ((a, at_a, b, at_b), (b, at_b, a, at_a)):
        inner, other_inner = one.get("properties", {}), other.get("properties", {})
        for name in one.get("required", ()):
            if name not in other_inner:
                if other.get("additionalProperties") is False:
                    return True
            elif name in inner and disjoint(
                inner[name],
                child(at_one, "properties", name),
                other_inner[name],
                child(at_other, "properties", name),
                resolve,
                depth + 1,
            ):
                return True
    return False
