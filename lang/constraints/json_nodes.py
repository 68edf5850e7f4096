"""Turns JSON Schemas into nodes: the keywords that types of Python have, each refused by name where it is not enforced.

The texts are valid under the schema. They are fewer than all valid ones: members come in the schema's order and no
others with them, one space may follow a comma or colon, and numbers have at most 18 digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from ...runtime.protocol.errors import RequestError
from .nodes import (
    EMPTY_NODE,
    CharNode,
    EitherNode,
    JoinNode,
    LiteralNode,
    LoopNode,
    Node,
    RuleNode,
    characters,
    complement,
    either,
    join,
    loop,
    maybe,
    ranges_of,
)
from .patterns import pattern_node

MAX_JSON_DEPTH = 60
MAX_PROPERTIES = 200  # of one object
MAX_LISTED = 1_000  # integers between bounds
_ANNOTATIONS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id",
    "$defs", "definitions", "discriminator", "x-order",
}  # fmt: skip
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames",
               "patternProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}  # fmt: skip
_KEYWORDS["integer"] = _KEYWORDS["number"]
_CONTROLS = ranges_of([(0, 31)])
_NOT_PLAIN = ranges_of([*_CONTROLS, *characters('"\\')])
_CHARACTER = EitherNode(
    (CharNode(complement(_NOT_PLAIN)), join([LiteralNode("\\"), CharNode(characters('"\\/bfnrt'))]))
)
_QUOTE = LiteralNode('"')
_SPACE = maybe(LiteralNode(" "))
_INTEGER = r"-?(?:0|[1-9]\d{0,17})"
_POSITIVE = {"integer": r"(?:0|[1-9]\d{0,17})", "number": r"(?:0|[1-9]\d{0,17})(?:\.\d{1,17})?"}
_NUMBERS = {"integer": _INTEGER, "number": rf"{_INTEGER}(?:\.\d{{1,17}})?(?:[eE][-+]?\d{{1,2}})?"}
_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"  # days that every month has
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[-+](?:0\d|1[0-3]):[0-5]\d)"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def schema_node(source: str, rules: dict[str, Node]) -> Node:
    """Return the node of a schema's JSON text. The rules that it needs are added to `rules`.

    Raises RequestError that names the keyword that is not supported, with its place in the schema.
    """
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"json_schema {source!r} is not JSON: {error}", param="json_schema") from None
    return _SchemaReader(schema, source, rules).node(schema, "#", 0)


class _SchemaReader:
    def __init__(self, root: Any, source: str, rules: dict[str, Node]) -> None:
        self._root = root
        self._source = source
        self._rules = rules

    def node(self, schema: Any, place: str, depth: int) -> Node:
        """Return the node of a schema at `place`."""
        if depth > MAX_JSON_DEPTH:
            _refuse("nesting", f"deeper than {MAX_JSON_DEPTH}", place)
        if schema is True or schema == {}:
            return self._any_value()
        if not isinstance(schema, Mapping):
            _refuse("the schema", repr(schema), place)
        given = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
        for name in ("$ref", "allOf", "anyOf", "oneOf", "const", "enum"):
            if name in given:
                return self._combined(name, given, schema, place, depth)
        kinds = given.pop("type", None)
        if kinds is None:
            if not given:
                return self._any_value()
            name = next(iter(given))
            kinds = next((kind for kind, names in _KEYWORDS.items() if name in names), None)
            if kinds is None:
                _refuse(name, repr(given[name]), place)
        listed = kinds if isinstance(kinds, list) else [kinds]
        if not listed or any(kind not in _TYPES for kind in listed):
            _refuse("type", repr(kinds), place)
        known = set().union(*(_KEYWORDS.get(kind, set()) for kind in listed))
        for name, value in given.items():
            if name not in known:
                _refuse(name, repr(value), place)
        return either(self._of_type(kind, given, place, depth) for kind in listed)

    def _combined(self, name: str, given: Mapping[str, Any], schema: Mapping[str, Any], place: str, depth: int) -> Node:
        value = given[name]
        beside = [other for other in given if other not in (name, "type")]
        if beside or ("type" in given and name not in ("const", "enum")):
            _refuse(name, f"beside {', '.join(beside) or 'type'}", place)
        match name:
            case "$ref":
                return self._reference(value, place)
            case "const":
                return _value_node(value)
            case "enum":
                kinds = given.get("type")
                if not isinstance(value, list) or not value:
                    _refuse(name, repr(value), place)
                return either(_value_node(one) for one in value if kinds is None or _is_of_type(one, kinds))
        if not isinstance(value, list) or not value:
            _refuse(name, repr(value), place)
        if (name == "allOf" and len(value) > 1) or (name == "oneOf" and "discriminator" not in schema):
            _refuse(name, "except with one schema" if name == "allOf" else "without a discriminator", place)
        return either(self.node(one, f"{place}/{name}/{at}", depth + 1) for at, one in enumerate(value))

    def _reference(self, target: Any, place: str) -> Node:
        if not isinstance(target, str) or not target.startswith("#"):
            _refuse("$ref", repr(target), place)
        # The same schema's rule has the same name everywhere, so that constraints can be put together.
        name = f"json-{hashlib.sha256(f'{target} {self._source}'.encode()).hexdigest()[:16]}"
        if name not in self._rules:
            found = self._root
            for step in filter(None, target[1:].split("/")):
                step = step.replace("~1", "/").replace("~0", "~")
                if not isinstance(found, Mapping) or step not in found:
                    _refuse("$ref", f"{target!r}, which is not in the schema", place)
                found = found[step]
            self._rules[name] = EMPTY_NODE  # keeps the name, since the schema may refer to itself
            self._rules[name] = self.node(found, target, 0)
            _check_progress(name, self._rules, target)
        return RuleNode(name)

    def _of_type(self, kind: str, given: Mapping[str, Any], place: str, depth: int) -> Node:
        match kind:
            case "null":
                return LiteralNode("null")
            case "boolean":
                return either([LiteralNode("true"), LiteralNode("false")])
            case "integer" | "number":
                return _number_node(kind, given, place)
            case "string":
                return _string_node(given, place)
            case "array":
                return self._array(given, place, depth)
        return self._object(given, place, depth)

    def _array(self, given: Mapping[str, Any], place: str, depth: int) -> Node:
        if given.get("uniqueItems"):
            _refuse("uniqueItems", "true", place)
        first = [self.node(one, f"{place}/prefixItems", depth + 1) for one in given.get("prefixItems", ())]
        least, most = given.get("minItems", 0), given.get("maxItems")
        _check_bounds("minItems", least, most, place)
        items = given.get("items", True)
        if first and (least < len(first) or (most is not None and most < len(first))):
            _refuse("prefixItems", f"of which some may be missing (minItems {least})", place)
        rest = max(0, least - len(first)), None if most is None else most - len(first)
        if items is False or rest[1] == 0:
            return join([LiteralNode("["), *_separated(first), LiteralNode("]")])
        item = self.node(items, f"{place}/items", depth + 1)
        if first:
            more = loop(join([*_COMMA, item]), rest[0], rest[1])
            return join([LiteralNode("["), *_separated(first), more, LiteralNode("]")])
        return join([LiteralNode("["), _listed(item, *rest), LiteralNode("]")])

    def _object(self, given: Mapping[str, Any], place: str, depth: int) -> Node:
        for name in ("minProperties", "maxProperties", "propertyNames", "patternProperties"):
            if name in given:
                _refuse(name, repr(given[name]), place)
        properties, required = given.get("properties", {}), given.get("required", [])
        additional = given.get("additionalProperties", not properties)
        if any(name not in properties for name in required):
            _refuse("required", f"{required!r}, of which some are not in properties", place)
        if len(properties) > MAX_PROPERTIES:
            _refuse("properties", f"more than {MAX_PROPERTIES}", place)
        members: list[tuple[Node, bool]] = []
        for name, schema in properties.items():
            value = self.node(schema, f"{place}/properties/{name}", depth + 1)
            members.append((join([_value_node(name), LiteralNode(":"), _SPACE, value]), name in required))
        if not members:
            if additional is False:
                return LiteralNode("{}")
            value = self.node(additional, f"{place}/additionalProperties", depth + 1)
            member = join([_string_node({}, place), LiteralNode(":"), _SPACE, value])
            return join([LiteralNode("{"), _listed(member, 0, None), LiteralNode("}")])
        return join([LiteralNode("{"), _members(members), LiteralNode("}")])

    def _any_value(self) -> Node:
        if "json" not in self._rules:
            self._rules["json"] = EMPTY_NODE
            reader = _SchemaReader({}, "{}", self._rules)
            self._rules["json"] = reader.node({"type": list(_TYPES)}, "#", 0)
        return RuleNode("json")


_COMMA = (LiteralNode(","), _SPACE)


def _members(members: list[tuple[Node, bool]]) -> Node:
    """Return the members in order; those that are not required may be missing."""
    after: Node = EMPTY_NODE  # what may follow a member, from each place on
    begin: Node = EMPTY_NODE  # what may come first
    for member, is_required in reversed(members):
        first = join([member, after])
        begin = first if is_required else either([first, begin])
        following = join([*_COMMA, member])
        after = join([following if is_required else maybe(following), after])
    return begin


def _separated(parts: list[Node]) -> list[Node]:
    return [node for at, part in enumerate(parts) for node in ((*_COMMA, part) if at else (part,))]


def _listed(item: Node, least: int, most: int | None) -> Node:
    """Return `least` to `most` items with commas between them."""
    if most == 0:
        return EMPTY_NODE
    more = loop(join([*_COMMA, item]), max(0, least - 1), None if most is None else most - 1)
    listed = join([item, more])
    return listed if least else maybe(listed)


def _string_node(given: Mapping[str, Any], place: str) -> Node:
    least, most = given.get("minLength", 0), given.get("maxLength")
    _check_bounds("minLength", least, most, place)
    pattern, form = given.get("pattern"), given.get("format")
    if form is not None and form not in _FORMATS:
        _refuse("format", repr(form), place)
    if sum(one is not None for one in (pattern, form, most or least or None)) > 1:
        _refuse("pattern" if pattern is not None else "format", "beside another limit of the string", place)
    if form is not None:
        return join([_QUOTE, pattern_node(_FORMATS[form]), _QUOTE])
    if pattern is None:
        return join([_QUOTE, loop(_CHARACTER, least, most), _QUOTE])
    if not isinstance(pattern, str):
        _refuse("pattern", repr(pattern), place)
    is_end = pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1
    text = pattern.removeprefix("^")
    inner = pattern_node(f"(?:{text[:-1] if is_end else text})", "pattern")
    anything = loop(_CHARACTER, 0, None)
    before = [] if pattern.startswith("^") else [anything]
    return join([_QUOTE, *before, _inside_string(inner), *([] if is_end else [anything]), _QUOTE])


def _inside_string(node: Node) -> Node:
    """Return the node without the characters that a JSON string must escape; others are written as they are."""
    match node:
        case LiteralNode(text=text):
            return LiteralNode(json.dumps(text, ensure_ascii=False)[1:-1])
        case CharNode(ranges=ranges):
            plain = complement(ranges_of([*complement(ranges), *_NOT_PLAIN]))
            escaped = [one for one in '"\\\n\t' if any(low <= ord(one) <= high for low, high in ranges)]
            parts: list[Node] = [CharNode(plain)] if plain else []
            return either([*parts, *(LiteralNode(json.dumps(one)[1:-1]) for one in escaped)])
        case JoinNode(parts=nodes):
            return join(map(_inside_string, nodes))
        case EitherNode(parts=nodes):
            return either(map(_inside_string, nodes))
        case LoopNode(part=part, least=least, most=most, lazy=lazy):
            return LoopNode(_inside_string(part), least, most, lazy)
    raise AssertionError(f"no part of a pattern: {node!r}")


def _number_node(kind: str, given: Mapping[str, Any], place: str) -> Node:
    if not given:
        return pattern_node(_NUMBERS[kind])
    low, high = given.get("minimum"), given.get("maximum")
    if kind == "integer" and "multipleOf" not in given and all(type(value) is int for value in given.values()):
        low = given["exclusiveMinimum"] + 1 if "exclusiveMinimum" in given else low
        high = given["exclusiveMaximum"] - 1 if "exclusiveMaximum" in given else high
        if low is not None and high is not None and 0 <= high - low < MAX_LISTED:
            return either(LiteralNode(str(number)) for number in range(low, high + 1))
        if high is None and low == 1:
            return pattern_node(r"[1-9]\d{0,17}")
    if given == {"minimum": 0}:
        return pattern_node(_POSITIVE[kind])
    name = next(iter(given))
    _refuse(
        name, f"{given[name]!r}: numbers may have the minimum 0, integers two bounds at most {MAX_LISTED} apart", place
    )


def _value_node(value: Any) -> Node:
    return LiteralNode(json.dumps(value, ensure_ascii=False))


def _is_of_type(value: Any, kinds: Any) -> bool:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    name = names.get(type(value), "null")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return name in listed or (name == "integer" and "number" in listed)


def _check_bounds(name: str, least: Any, most: Any, place: str) -> None:
    for value in (least, most):
        if value is not None and (type(value) is not int or value < 0):
            _refuse(name, repr(value), place)
    if most is not None and most < least:
        _refuse(name, f"{least}, above the maximum {most}", place)


def _check_progress(name: str, rules: Mapping[str, Node], target: str) -> None:
    """Raise RequestError for a rule that begins with itself, which describes no text."""
    todo, seen = [rules[name]], set()
    while todo:
        match todo.pop():
            case RuleNode(name=other):
                if other == name:
                    _refuse("$ref", f"{target!r}, which refers to itself about the same value", target)
                if other not in seen:
                    seen.add(other)
                    todo.append(rules[other])
            case JoinNode(parts=(first, *_)):
                todo.append(first)  # a value's text is never empty
            case EitherNode(parts=parts):
                todo += parts


def _refuse(keyword: str, value: str, place: str) -> NoReturn:
    raise RequestError(
        f"a JSON schema inside seq cannot have {keyword}: {value} (at {place} of the schema)", param="json_schema"
    )
