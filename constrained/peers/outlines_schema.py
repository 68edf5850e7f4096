r"""Translates JSON Schemas to patterns with outlines-core, so that every text of a pattern is valid.

outlines-core ignores most keywords silently and misreads some (`allOf` concatenates, a `pattern` may end its string, a
property without `type` breaks the object around it). So a schema is first rewritten to the subset that it translates
correctly, and every other keyword is refused with its JSON pointer. Objects with `properties` are closed and their
members come in order; untyped values nest two levels; strings with a length, pattern or format contain no escapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outlines_core.json_schema import build_regex_from_schema

from ..budget import INTERPRETED, CompileBudget
from ..errors import GrammarError
from ..regex.charset import CharSet, charset, complement, intersection
from ..regex.syntax.expression import (
    NO_TEXT,
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
from ..regex.syntax.parser import parse_regex
from ..schema.keywords import KEYWORDS, TYPES, check_keywords, child
from ..schema.strings.formats import format_expression

_MAX_NODES = 1_000  # subschemas, with references expanded
_MAX_DEPTH = 30
_MAX_COUNT = 10_000
MAX_PATTERN = 1 << 16  # characters

_CHARACTERS = complement(((0, 0), (0xD800, 0xDFFF)))  # without NUL, which terminates the backend's patterns
_UNESCAPED = complement(charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x9F), (0xD800, 0xDFFF)]))
_REFUSED = ("$recursiveRef", "extends", "disallow", "$id", "id")
_KEYWORDS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}


def schema_pattern(schema: Mapping[str, Any] | bool | str, whitespace: str) -> str:
    """Return the pattern of a schema's values. Raises GrammarError with the pointer of what cannot be enforced."""
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
        rewritten = json.dumps(_Rewriter(document).schema(document, "", ()))
        return str(build_regex_from_schema(rewritten, whitespace))
    except GrammarError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(str(error).splitlines()[0]) from None


def portable_pattern(expression: Expression) -> str:
    """Write an expression as a pattern that Python and outlines-core read alike.

    Anchors at its ends are dropped, because the pattern matches the whole text. Raises GrammarError for other anchors
    and for look-around.
    """
    text = _pattern_of(_within(_without_ends(expression), _CHARACTERS))
    if len(text) > MAX_PATTERN:
        raise GrammarError(f"the pattern is too complex: {len(text)} characters written out")
    return text


class _Rewriter:
    """Rewrites a schema to an equivalent or narrower one that outlines-core translates correctly."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._num_nodes = 0
        self._budget = CompileBudget()

    def schema(self, schema: Any, pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        """Rewrite a subschema; `followed` are the references that led to it."""
        check_keywords(schema, pointer)
        self._num_nodes += 1
        self._budget.check(self._num_nodes, 10 * INTERPRETED)
        if self._num_nodes > _MAX_NODES or pointer.count("/") > 2 * _MAX_DEPTH or len(followed) > _MAX_DEPTH:
            raise GrammarError("the schema is too large", pointer=pointer)
        if isinstance(schema, bool):
            raise _not_supported(f"the schema {json.dumps(schema)}", pointer)
        for name in _REFUSED if pointer else _REFUSED[:3]:  # an $id inside the schema changes what references mean
            if name in schema:
                raise _not_supported(repr(name), child(pointer, name))
        keywords = {
            name: value for name, value in schema.items() if name in KEYWORDS and name not in ("$defs", "definitions")
        }
        kind = next((name for name in ("$ref", "enum", "const", "anyOf", "allOf") if name in keywords), None)
        if kind is None:
            return self._typed(keywords, pointer, followed)
        for name in keywords:
            if name != kind and not (name == "type" and kind in ("enum", "const")):
                raise _not_supported(f"{name!r} beside {kind!r}", child(pointer, name))
        value = keywords[kind]
        match kind:
            case "$ref":
                return self._referred(value, pointer, followed)
            case "enum" | "const":
                return _enum(value if kind == "enum" else [value], keywords.get("type"), pointer)
            case "allOf" if len(value) == 1:
                return self.schema(value[0], child(pointer, "allOf", 0), followed)
            case "anyOf":
                parts = [self.schema(part, child(pointer, "anyOf", i), followed) for i, part in enumerate(value)]
                return {"anyOf": parts}
        raise _not_supported("'allOf' of several schemas", child(pointer, kind))

    def _referred(self, reference: str, pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        if reference in followed:
            raise _not_supported("recursion", child(pointer, "$ref"))
        if reference != "#" and not reference.startswith("#/"):
            raise _not_supported(f"the reference {reference!r}", child(pointer, "$ref"))
        found = self._document
        for step in reference.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise GrammarError(f"the reference {reference!r} leads to nothing", pointer=child(pointer, "$ref"))
            found = found[name]
        return self.schema(found, reference[1:], (*followed, reference))

    def _typed(self, keywords: dict[str, Any], pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        types = keywords.pop("type", "object" if "properties" in keywords else None)
        if isinstance(types, list) and len(types) == 1:
            types = types[0]
        known = _KEYWORDS.get(types, ()) if isinstance(types, str) else ()
        for name in keywords:
            if name not in known:
                beside = f" beside 'type': {json.dumps(types)}" if name in sum(_KEYWORDS.values(), ()) else ""
                raise _not_supported(f"{name!r}{beside}", child(pointer, name))
        match types:
            case None:
                raise _not_supported("a schema without 'type'", pointer)
            case []:
                raise _not_supported("an empty 'type'", child(pointer, "type"))
            case list():
                return {"anyOf": [self._typed({"type": name}, pointer, followed) for name in types]}
            case "string":
                return _string(keywords, pointer)
            case "array":
                return self._array(keywords, pointer, followed)
            case "object":
                return self._object(keywords, pointer, followed)
        return {"type": types}

    def _array(self, keywords: dict[str, Any], pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        least, most = _counts(keywords, "minItems", "maxItems", pointer)
        if "prefixItems" in keywords:
            first = keywords["prefixItems"]
            if not first or "items" in keywords or not least <= len(first) <= (len(first) if most is None else most):
                raise _not_supported("'prefixItems' of another number than 'minItems' and 'maxItems' say", pointer)
            parts = [self.schema(part, child(pointer, "prefixItems", i), followed) for i, part in enumerate(first)]
            return {"type": "array", "prefixItems": parts}
        if isinstance(keywords.get("items"), list):
            raise _not_supported("'items' as a list", child(pointer, "items"))
        rewritten: dict[str, Any] = {"type": "array", "minItems": least}
        if most is not None:
            rewritten["maxItems"] = most
        inner = (
            self.schema(keywords["items"], child(pointer, "items"), followed) if "items" in keywords else _any_value(1)
        )
        return {**rewritten, "items": inner}

    def _object(self, keywords: dict[str, Any], pointer: str, followed: tuple[str, ...]) -> dict[str, Any]:
        properties, required = keywords.get("properties", {}), keywords.get("required", [])
        more = keywords.get("additionalProperties", True)
        if isinstance(required, bool):
            raise _not_supported("'required' as draft 3 has it", child(pointer, "required"))
        for name in required:
            if name not in properties:
                raise _not_supported(
                    f"{name!r} in 'required' without being in 'properties'", child(pointer, "required")
                )
        if not properties:
            if more is False:
                return {"const": {}}
            inner = (
                _any_value(1) if more is True else self.schema(more, child(pointer, "additionalProperties"), followed)
            )
            return {"type": "object", "additionalProperties": inner}
        members = {}
        for name, value in properties.items():
            if json.dumps(name, ensure_ascii=False) != f'"{name}"':
                raise _not_supported(f"the property name {name!r}", child(pointer, "properties"))
            members[name] = self.schema(value, child(pointer, "properties", name), followed)
        return {"type": "object", "properties": members, "required": list(required)}


def _any_value(depth: int) -> dict[str, Any]:
    """Return a schema of any value, nested at most `depth` levels.

    The built-in one of outlines-core nests deeper and takes it four seconds to compile.
    """
    parts: list[dict[str, Any]] = [{"type": name} for name in ("string", "number", "boolean", "null")]
    if depth:
        inner = _any_value(depth - 1)
        parts += [{"type": "array", "items": inner}, {"type": "object", "additionalProperties": inner}]
    return {"anyOf": parts}


def _string(keywords: dict[str, Any], pointer: str) -> dict[str, Any]:
    least, most = _counts(keywords, "minLength", "maxLength", pointer)
    kinds = [name for name in ("pattern", "format") if name in keywords]
    if not keywords:
        return {"type": "string"}
    if len(kinds) + bool(len(keywords) > len(kinds)) > 1:
        raise _not_supported(f"{kinds[0]!r} beside another keyword of strings", child(pointer, kinds[0]))
    at_fault = child(pointer, kinds[0] if kinds else "maxLength")
    try:
        match kinds:
            case ["pattern"]:
                expression: Expression | None = parse_regex(keywords["pattern"], "ecma")
            case ["format"]:
                expression = format_expression(keywords["format"])
            case _:
                expression = repeat(Chars(_UNESCAPED), least, most)
        if expression is None:
            raise GrammarError(f"the format {keywords['format']!r} is not supported")
        return {"type": "string", "pattern": f"(?:{portable_pattern(_within(expression, _UNESCAPED))})"}
    except GrammarError as error:
        raise GrammarError(error.reason, pointer=at_fault, position=error.position) from None


def _enum(values: list[Any], types: Any, pointer: str) -> dict[str, Any]:
    allowed = TYPES if types is None else types if isinstance(types, list) else [types]
    kept = [value for value in values if any(_has_type(value, name) for name in allowed)]
    if not kept:
        raise GrammarError("no text at all satisfies the constraint", pointer=pointer)
    return {"enum": kept}


def _has_type(value: Any, name: str) -> bool:
    match name:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    classes = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
    return isinstance(value, classes[name])


def _counts(keywords: dict[str, Any], least: str, most: str, pointer: str) -> tuple[int, int | None]:
    for name in (least, most):
        if keywords.get(name, 0) > _MAX_COUNT:
            raise _not_supported(f"{name!r} beyond {_MAX_COUNT}", child(pointer, name))
    low, high = int(keywords.get(least, 0)), keywords.get(most)
    if high is not None and high < low:
        raise GrammarError("no text at all satisfies the constraint", pointer=child(pointer, most))
    return low, None if high is None else int(high)


def _not_supported(what: str, pointer: str) -> GrammarError:
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
    """Restrict an expression to the texts that contain only allowed characters."""
    match expression:
        case Chars(ranges=ranges):
            kept = intersection(ranges, allowed)
            return Chars(kept) if kept else NO_TEXT
        case Seq(parts=parts):
            return sequence(*(_within(part, allowed) for part in parts))
        case Alt(parts=parts):
            return alternation(_within(part, allowed) for part in parts)
        case Repeat(part=part, least=least, most=most, lazy=lazy):
            return repeat(_within(part, allowed), least, most, lazy)
    return expression


def _pattern_of(expression: Expression) -> str:
    match expression:
        case Chars(ranges=ranges):
            return "[" + "".join(f"{_escape(low)}-{_escape(high)}" for low, high in ranges) + "]"
        case Seq(parts=parts):
            return "".join(map(_pattern_of, parts))
        case Alt(parts=parts) if parts:
            return f"(?:{'|'.join(map(_pattern_of, parts))})"
        case Repeat(part=part, least=least, most=most, lazy=lazy):
            if max(least, most or 0) > _MAX_COUNT:
                raise GrammarError(f"a repeat beyond {_MAX_COUNT} is not supported")
            return f"(?:{_pattern_of(part)}){{{least},{'' if most is None else most}}}{'?' if lazy else ''}"
        case Alt():
            raise GrammarError("no text at all satisfies the constraint")
    raise GrammarError("anchors, \\b and look-around are not supported")


def _escape(code: int) -> str:
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
