"""A regular expression of the JSON that a schema describes, for programs that give `regex=` as SGLang's do.

`schema=` and `json_schema=` of `gen` know more of JSON Schema, and return values; this is a part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...runtime.protocol.errors import RequestError

OPTIONAL_SPACE = r"[ ]?"
MAX_LENGTH = 1 << 20  # of the expression
_CHARACTER = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})'
_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_SIMPLE = {
    "integer": _INTEGER,
    "number": _INTEGER + r"(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?",
    "boolean": "(?:true|false)",
    "null": "null",
}
_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$defs", "definitions"}
)


def build_regex_from_object(object: Any, whitespace_pattern: str | None = None) -> str:
    """Return a regular expression of the JSON of a Pydantic model or a JSON schema (a mapping or its text).

    Members stand in the schema's order, with what `whitespace_pattern` matches around them: by default an optional
    space. Raises RequestError for a recursive schema, and for keywords that no expression here says, such as
    `minimum`.
    """
    if callable(describe := getattr(object, "model_json_schema", None)):
        schema = describe()
    elif isinstance(object, str):
        try:
            schema = json.loads(object)
        except ValueError as error:
            raise _refused(f"is no JSON ({error})", object) from None
    else:
        schema = object
    if not isinstance(schema, Mapping):
        raise _refused("must be a Pydantic model or a JSON schema", object)
    space = OPTIONAL_SPACE if whitespace_pattern is None else f"(?:{whitespace_pattern})"
    return SchemaRegex(schema, space).of(schema, ())


class SchemaRegex:
    """Writes expressions of the parts of the schema `root`."""

    def __init__(self, root: Mapping[str, Any], space: str) -> None:
        self._root = root
        self._space = space

    def of(self, schema: Any, inside: tuple[str, ...]) -> str:
        """Return the expression of a part; `inside` are the references that led to it."""
        if not isinstance(schema, Mapping):
            raise _refused("has a part that is no object", schema)
        rest = {key: value for key, value in schema.items() if key not in _NOTES}
        written = self._of(rest, inside)
        if len(written) > MAX_LENGTH:
            raise _refused(f"needs an expression of more than {MAX_LENGTH} characters", schema)
        return written

    def _of(self, rest: dict[str, Any], inside: tuple[str, ...]) -> str:
        if (target := rest.pop("$ref", None)) is not None:
            if target in inside:
                raise _refused("is recursive; use gen(schema=...) or gen(json_schema=...)", target)
            return self._only(rest, self.of(self._resolve(target), (*inside, target)))
        if "const" in rest:
            value = rest.pop("const")
            rest.pop("type", None)
            return self._only(rest, re.escape(json.dumps(value, ensure_ascii=False)))
        if "enum" in rest:
            values = rest.pop("enum")
            rest.pop("type", None)
            return self._only(rest, _any([re.escape(json.dumps(value, ensure_ascii=False)) for value in values]))
        for key in ("anyOf", "oneOf"):
            if key in rest:
                parts = rest.pop(key)
                return self._only(rest, _any([self.of(part, inside) for part in parts]))
        if "allOf" in rest and len(rest["allOf"]) == 1:
            [part] = rest.pop("allOf")
            return self._only(rest, self.of(part, inside))
        kind = rest.pop("type", None)
        if isinstance(kind, list):
            return _any([self._of({"type": each, **rest}, inside) for each in kind])
        match kind:
            case "string":
                return self._string(rest)
            case "array":
                return self._array(rest, inside)
            case "object":
                return self._object(rest, inside)
            case str() if kind in _SIMPLE:
                return self._only(rest, _SIMPLE[kind])
        raise _refused("has a part without a known type", {"type": kind, **rest})

    def _string(self, rest: dict[str, Any]) -> str:
        if (pattern := rest.pop("pattern", None)) is not None:
            return self._only(rest, f'"(?:{pattern.removeprefix("^").removesuffix("$")})"')
        least, most = rest.pop("minLength", 0), rest.pop("maxLength", "")
        return self._only(rest, f'"{_CHARACTER}{_repeat(least, most)}"')

    def _array(self, rest: dict[str, Any], inside: tuple[str, ...]) -> str:
        if "items" not in rest:
            raise _refused("has an array without items", rest)
        item = self.of(rest.pop("items"), inside)
        least, most = rest.pop("minItems", 0), rest.pop("maxItems", "")
        space = self._space
        if most == 0:
            return self._only(rest, rf"\[{space}\]")
        further = f"(?:{space},{space}{item}){_repeat(max(least - 1, 0), most if most == '' else most - 1)}"
        filled = f"{item}{further}"
        return self._only(rest, rf"\[{space}{filled if least else f'(?:{filled})?'}{space}\]")

    def _object(self, rest: dict[str, Any], inside: tuple[str, ...]) -> str:
        space = self._space
        properties, required = rest.pop("properties", {}), rest.pop("required", [])
        others = rest.pop("additionalProperties", False)
        if missing := [name for name in required if name not in properties]:
            raise _refused(f"requires {missing[0]!r}, which its properties do not list", required)
        if not properties:
            if not isinstance(others, Mapping):
                return self._only(rest, rf"\{{{space}\}}")
            member = f'"{_CHARACTER}*"{space}:{space}{self.of(others, inside)}'
            return self._only(rest, rf"\{{{space}(?:{member}(?:{space},{space}{member})*)?{space}\}}")
        members = []
        for name, part in properties.items():
            key = re.escape(json.dumps(name, ensure_ascii=False))
            members.append((f"{key}{space}:{space}{self.of(part, inside)}", name in required))
        comma = f"{space},{space}"
        first = next((place for place, (_, needed) in enumerate(members) if needed), None)
        if first is None:  # any of them may be the first, or none is there
            found = [text + _after(members[place + 1 :], comma) for place, (text, _) in enumerate(members)]
            return self._only(rest, rf"\{{{space}{_any(found)}?{space}\}}")
        before = "".join(f"(?:{text}{comma})?" for text, _ in members[:first])
        written = before + members[first][0] + _after(members[first + 1 :], comma)
        return self._only(rest, rf"\{{{space}{written}{space}\}}")

    def _only(self, rest: Mapping[str, Any], written: str) -> str:
        """Return `written` if no keyword is left that it does not say."""
        if rest:
            raise _refused(f"has {next(iter(rest))!r}, which this expression does not say; use gen(schema=...)", rest)
        return written

    def _resolve(self, target: str) -> Any:
        part: Any = self._root
        if not target.startswith("#/"):
            raise _refused("refers to another document", target)
        for name in target[2:].split("/"):
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(part, Mapping) or name not in part:
                raise _refused("refers to a part that is not there", target)
            part = part[name]
        return part


def _any(found: list[str]) -> str:
    if not found:
        raise _refused("has an empty list of alternatives", found)
    return f"(?:{'|'.join(found)})"


def _after(members: list[tuple[str, bool]], comma: str) -> str:
    return "".join(f"{comma}{text}" if needed else f"(?:{comma}{text})?" for text, needed in members)


def _repeat(least: int, most: int | str) -> str:
    return "*" if least == 0 and most == "" else f"{{{least},{most}}}"


def _refused(what: str, part: Any) -> RequestError:
    return RequestError(f"the schema {what}: {str(part)[:200]}", param="object", code="unsupported")
