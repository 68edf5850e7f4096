r"""Translates JSON Schemas to patterns with outlines-core, so that whatever a pattern matches is valid.

outlines-core drops most keywords silently and mistakes some (`allOf` concatenates, a `pattern` may end its string, a
property without `type` breaks the object around it). So a schema is rewritten first to the part that it translates
correctly, and every other keyword is refused with its JSON pointer. Objects with `properties` are closed and their
members come in order; free values nest two deep; strings with a length, pattern or format are written without escapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outlines_core.json_schema import build_regex_from_schema

from ..budget import CompileBudget
from ..errors import GrammarError
from ..regex.charset import CharSet, charset, complement
from ..regex.expression import (
    NOTHING,
    Alt,
    Chars,
    Expression,
    Repeat,
    Seq,
    TextEnd,
    TextStart,
    alternation,
    repeat,
    sequence,
)
from ..regex.parser import parse_regex
from ..schema.formats import format_expression
from ..schema.keywords import KEYWORDS, TYPES, check_keywords, child

MAX_NODES = 1_000  # subschemas, references followed
MAX_DEPTH = 30
MAX_COUNT = 10_000
MAX_PATTERN = 1 << 16  # characters

_CHARACTERS = complement(((0, 0), (0xD800, 0xDFFF)))  # without NUL, which ends the backend's patterns
_UNESCAPED = complement(charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x9F), (0xD800, 0xDFFF)]))
_REFUSED = ("$recursiveRef", "extends", "disallow", "$id", "id")
_KEYWORDS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}


def schema_pattern(schema: Mapping[str, Any] | bool | str, whitespace: str) -> str:
    """The pattern of a schema's values. Raises GrammarError with the pointer of what cannot be enforced."""
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
        rewritten = json.dumps(_Rewriter(document).schema(document, "", ()))
        return str(build_regex_from_schema(rewritten, whitespace))
    except GrammarError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(str(error).splitlines()[0]) from None


def portable_pattern(expression: Expression) -> str:
    """An expression as a pattern that Python and outlines-core read alike. Anchors at its ends are left out, for they
    say nothing of a pattern that matches the whole text. Raises GrammarError for others and for look-around."""
    text = _spelled(_within(_without_ends(expression), _CHARACTERS))
    if len(text) > MAX_PATTERN:
        raise GrammarError(f"the pattern is too complex: {len(text)} characters written out")
    return text


class _Rewriter:
    """Makes of a schema an equal or narrower one that outlines-core translates correctly."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._num_nodes = 0
        self._budget = CompileBudget()

    def schema(self, schema: Any, pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        """`followed` are the references on the way here."""
        check_keywords(schema, pointer)
        self._num_nodes += 1
        self._budget.check(self._num_nodes)
        if self._num_nodes > MAX_NODES or pointer.count("/") > 2 * MAX_DEPTH or len(followed) > MAX_DEPTH:
            raise GrammarError("the schema is too large", pointer=pointer)
        if isinstance(schema, bool):
            raise _refused(f"the schema {json.dumps(schema)}", pointer)
        for name in _REFUSED if pointer else _REFUSED[:3]:  # an $id inside the schema changes what references mean
            if name in schema:
                raise _refused(repr(name), child(pointer, name))
        asked = {
            name: value for name, value in schema.items() if name in KEYWORDS and name not in ("$defs", "definitions")
        }
        kind = next((name for name in ("$ref", "enum", "const", "anyOf", "allOf") if name in asked), None)
        if kind is None:
            return self._typed(asked, pointer, followed)
        for name in asked:
            if name != kind and not (name == "type" and kind in ("enum", "const")):
                raise _refused(f"{name!r} beside {kind!r}", child(pointer, name))
        value = asked[kind]
        match kind:
            case "$ref":
                return self._referred(value, pointer, followed)
            case "enum" | "const":
                return _listed(value if kind == "enum" else [value], asked.get("type"), pointer)
            case "allOf" if len(value) == 1:
                return self.schema(value[0], child(pointer, "allOf", 0), followed)
            case "anyOf":
                parts = [self.schema(part, child(pointer, "anyOf", i), followed) for i, part in enumerate(value)]
                return {"anyOf": parts}
        raise _refused("'allOf' of several schemas", child(pointer, kind))

    def _referred(self, reference: str, pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        if reference in followed:
            raise _refused("recursion", child(pointer, "$ref"))
        if reference != "#" and not reference.startswith("#/"):
            raise _refused(f"the reference {reference!r}", child(pointer, "$ref"))
        found = self._document
        for step in reference.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise GrammarError(f"the reference {reference!r} leads to nothing", pointer=child(pointer, "$ref"))
            found = found[name]
        return self.schema(found, reference[1:], (*followed, reference))

    def _typed(self, asked: dict[str, Any], pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        types = asked.pop("type", "object" if "properties" in asked else None)
        if isinstance(types, list) and len(types) == 1:
            types = types[0]
        known = _KEYWORDS.get(types, ()) if isinstance(types, str) else ()
        for name in asked:
            if name not in known:
                beside = f" beside 'type': {json.dumps(types)}" if name in sum(_KEYWORDS.values(), ()) else ""
                raise _refused(f"{name!r}{beside}", child(pointer, name))
        match types:
            case None:
                raise _refused("a schema without 'type'", pointer)
            case []:
                raise _refused("an empty 'type'", child(pointer, "type"))
            case list():
                return {"anyOf": [self._typed({"type": name}, pointer, followed) for name in types]}
            case "string":
                return _string(asked, pointer)
            case "array":
                return self._array(asked, pointer, followed)
            case "object":
                return self._object(asked, pointer, followed)
        return {"type": types}

    def _array(self, asked: dict[str, Any], pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        least, most = _counts(asked, "minItems", "maxItems", pointer)
        if "prefixItems" in asked:
            first = asked["prefixItems"]
            if not first or "items" in asked or not least <= len(first) <= (len(first) if most is None else most):
                raise _refused("'prefixItems' of another number than 'minItems' and 'maxItems' say", pointer)
            parts = [self.schema(part, child(pointer, "prefixItems", i), followed) for i, part in enumerate(first)]
            return {"type": "array", "prefixItems": parts}
        if isinstance(asked.get("items"), list):
            raise _refused("'items' as a list", child(pointer, "items"))
        rewritten: dict[str, Any] = {"type": "array", "minItems": least}
        if most is not None:
            rewritten["maxItems"] = most
        inner = self.schema(asked["items"], child(pointer, "items"), followed) if "items" in asked else _free(1)
        return {**rewritten, "items": inner}

    def _object(self, asked: dict[str, Any], pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        properties, required = asked.get("properties", {}), asked.get("required", [])
        more = asked.get("additionalProperties", True)
        if isinstance(required, bool):
            raise _refused("'required' as draft 3 has it", child(pointer, "required"))
        for name in required:
            if name not in properties:
                raise _refused(f"{name!r} in 'required' without being in 'properties'", child(pointer, "required"))
        if not properties:
            if more is False:
                return {"const": {}}
            inner = _free(1) if more is True else self.schema(more, child(pointer, "additionalProperties"), followed)
            return {"type": "object", "additionalProperties": inner}
        members = {}
        for name, value in properties.items():
            if json.dumps(name, ensure_ascii=False) != f'"{name}"':
                raise _refused(f"the property name {name!r}", child(pointer, "properties"))
            members[name] = self.schema(value, child(pointer, "properties", name), followed)
        return {"type": "object", "properties": members, "required": list(required)}


def _free(depth: int) -> dict[str, Any]:
    """Any value, nested so deep. outlines-core's own is nested deeper and takes it four seconds."""
    parts: list[dict[str, Any]] = [{"type": name} for name in ("string", "number", "boolean", "null")]
    if depth:
        inner = _free(depth - 1)
        parts += [{"type": "array", "items": inner}, {"type": "object", "additionalProperties": inner}]
    return {"anyOf": parts}


def _string(asked: dict[str, Any], pointer: str) -> dict[str, Any]:
    least, most = _counts(asked, "minLength", "maxLength", pointer)
    kinds = [name for name in ("pattern", "format") if name in asked]
    if not asked:
        return {"type": "string"}
    if len(kinds) + bool(len(asked) > len(kinds)) > 1:
        raise _refused(f"{kinds[0]!r} beside another keyword of strings", child(pointer, kinds[0]))
    at_fault = child(pointer, kinds[0] if kinds else "maxLength")
    try:
        match kinds:
            case ["pattern"]:
                expression: Expression | None = parse_regex(asked["pattern"], "ecma")
            case ["format"]:
                expression = format_expression(asked["format"])
            case _:
                expression = repeat(Chars(_UNESCAPED), least, most)
        if expression is None:
            raise GrammarError(f"the format {asked['format']!r} is not supported")
        return {"type": "string", "pattern": f"(?:{portable_pattern(_within(expression, _UNESCAPED))})"}
    except GrammarError as error:
        raise GrammarError(error.reason, pointer=at_fault, position=error.position) from None


def _listed(values: list[Any], types: Any, pointer: str) -> dict[str, Any]:
    allowed = TYPES if types is None else types if isinstance(types, list) else [types]
    kept = [value for value in values if any(_is_of(value, name) for name in allowed)]
    if not kept:
        raise GrammarError("no text at all satisfies the constraint", pointer=pointer)
    return {"enum": kept}


def _is_of(value: Any, name: str) -> bool:
    match name:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    classes = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
    return isinstance(value, classes[name])


def _counts(asked: dict[str, Any], least: str, most: str, pointer: str) -> tuple[int, int | None]:
    for name in (least, most):
        if asked.get(name, 0) > MAX_COUNT:
            raise _refused(f"{name!r} beyond {MAX_COUNT}", child(pointer, name))
    low, high = int(asked.get(least, 0)), asked.get(most)
    if high is not None and high < low:
        raise GrammarError("no text at all satisfies the constraint", pointer=child(pointer, most))
    return low, None if high is None else int(high)


def _refused(what: str, pointer: str) -> GrammarError:
    return GrammarError(f"{what} is not supported", pointer=pointer)


def _without_ends(expression: Expression) -> Expression:
    match expression:
        case Alt(parts=parts):
            return alternation(_without_ends(part) for part in parts)
        case Seq(parts=parts):
            first = 1 if parts and parts[0] == TextStart() else 0
            last = len(parts) - 1 if len(parts) > first and parts[-1] == TextEnd() else len(parts)
            return sequence(*parts[first:last])
        case TextStart() | TextEnd():
            return Seq(())
    return expression


def _within(expression: Expression, allowed: CharSet) -> Expression:
    """The texts of an expression that hold only allowed characters."""
    match expression:
        case Chars(ranges=ranges):
            kept = _both(ranges, allowed)
            return Chars(kept) if kept else NOTHING
        case Seq(parts=parts):
            return sequence(*(_within(part, allowed) for part in parts))
        case Alt(parts=parts):
            return alternation(_within(part, allowed) for part in parts)
        case Repeat(part=part, least=least, most=most, lazy=lazy):
            return repeat(_within(part, allowed), least, most, lazy)
    return expression


def _spelled(expression: Expression) -> str:
    match expression:
        case Chars(ranges=ranges):
            return "[" + "".join(f"{_escape(low)}-{_escape(high)}" for low, high in ranges) + "]"
        case Seq(parts=parts):
            return "".join(map(_spelled, parts))
        case Alt(parts=parts) if parts:
            return f"(?:{'|'.join(map(_spelled, parts))})"
        case Repeat(part=part, least=least, most=most, lazy=lazy):
            if max(least, most or 0) > MAX_COUNT:
                raise GrammarError(f"a repeat beyond {MAX_COUNT} is not supported")
            return f"(?:{_spelled(part)}){{{least},{'' if most is None else most}}}{'?' if lazy else ''}"
        case Alt():
            raise GrammarError("no text at all satisfies the constraint")
    raise GrammarError("anchors, \\b and look-around are not supported")


def _escape(code: int) -> str:
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _both(first: CharSet, second: CharSet) -> CharSet:
    return tuple(
        (max(low, start), min(high, end))
        for low, high in first
        for start, end in second
        if low <= end and start <= high
    )
