"""Reads an object schema as the parameters of a tool call in XML, in the styles that models are trained on.

A parameter is a tag with its name. A string is written as it is, and every other value as JSON, or, where values nest
in tags, objects and arrays as tags too. So a value whose schema allows several may be read as any, as the models' own
parsers do. What the styles cannot write is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn
from urllib.parse import unquote

from ..errors import GrammarError
from ..schema.compile import checked_document
from .formats import (
    ConstStringFormat,
    Format,
    OrFormat,
    RawTextFormat,
    RepeatFormat,
    SchemaFormat,
    SequenceFormat,
    Token,
    TokensFormat,
    WhitespaceFormat,
)

MAX_ANY_ORDER = 10  # parameters in any order: their subsets are rules
_EMPTY = ConstStringFormat(b"")
_NESTED = ("object", "array")
_ROOT = "urn:ramiform:parameters"
_INSIDE = "/$defs/parameters"  # of the schema of a parameter's value: the pointer of the whole
_JSON_TYPES = ("number", "boolean", "object", "array", "null")
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
)
_OF_DOCUMENTS = frozenset(("$schema", "$id", "$defs", "definitions"))
_OF_ROOT = frozenset(("type", "properties", "required", "additionalProperties", "$ref")) | _ANNOTATIONS | _OF_DOCUMENTS
_GIVEN = frozenset(("enum", "const"))
_OF_STRINGS = _GIVEN | frozenset(("minLength", "maxLength", "pattern", "format", "type")) | _ANNOTATIONS
_OF_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_OF_ITEMS = frozenset(("items", "prefixItems", "minItems", "maxItems"))
_OF_OTHERS = (
    _OF_NUMBERS
    | _OF_ITEMS
    | frozenset(
        "uniqueItems contains minContains maxContains properties required additionalProperties patternProperties "
        "propertyNames minProperties maxProperties dependentRequired dependentSchemas $defs definitions".split()
    )
)


@dataclass(frozen=True)
class XmlStyle:
    """How a parameter is written. `{kind}` in `after_name` is the first of `kinds` for strings, then by JSON's type.

    `{name}` in `end` is the name, `item` for an item. `item` begins an item of an array where values nest in tags, and
    is None where they are JSON. No string holds `excluded`, or else `end`. `is_spaced`: blanks may stand around JSON.
    """

    before_name: str
    after_name: str
    before_value: str
    end: str
    kinds: tuple[str, Mapping[str, str]] = ("", {})
    item: str | None = None
    excluded: str = ""
    is_spaced: bool = True


_NOT_STRINGS = dict.fromkeys(_JSON_TYPES, "false")
_M3 = "]<]minimax[>["  # begins every tag of MiniMax M3
_OWN_NAMES = {kind: kind for kind in _JSON_TYPES}
XML_STYLES = {
    "qwen_xml": XmlStyle("<parameter=", ">", "", "</parameter>"),
    "minimax_xml": XmlStyle('<parameter name="', '">', "", "</parameter>"),
    "glm_xml": XmlStyle("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "deepseek_xml": XmlStyle(
        '<｜DSML｜parameter name="', '" string="{kind}">', "", "</｜DSML｜parameter>", ("true", _NOT_STRINGS)
    ),
    "deepseek_v4_1_xml": XmlStyle(
        '<｜DSML｜ parameter name="', '" string="{kind}">', "", "</｜DSML｜ parameter>", ("true", _NOT_STRINGS)
    ),
    "kimi_k3_xml": XmlStyle(
        '<|open|>argument key="', '" type="{kind}"<|sep|>', "", "<|close|>argument<|sep|>", ("string", _OWN_NAMES)
    ),
    "cohere_xml": XmlStyle(
        '<cofl:value name="',
        '" type="{kind}">',
        "",
        "</cofl:value>",
        ("raw", {**dict.fromkeys(_JSON_TYPES, "json"), "object": "dict", "array": "list"}),
        item='<cofl:value type="{kind}">',
    ),
    "minimax_m3_xml": XmlStyle(
        f"{_M3}<", ">", "", f"{_M3}</{{name}}>", item=f"{_M3}<item>", excluded=_M3, is_spaced=False
    ),
}


class XmlReader:
    """Reads a schema in a style. `whitespace` None: the request decides. `special_ids`: special tokens by name."""

    def __init__(
        self,
        schema: Any,
        style: XmlStyle,
        whitespace: Literal["compact", "bounded"] | None,
        special_ids: Mapping[str, int],
        pointer: str,
    ) -> None:
        try:
            self._schema = checked_document(schema).root
        except GrammarError as error:
            place = pointer + (error.pointer or "")
            raise GrammarError(error.reason, pointer=place, position=error.position) from None
        self._style = style
        self._whitespace = whitespace
        self._blank = WhitespaceFormat(None if whitespace is None else int(whitespace == "bounded"))
        self._special_ids = special_ids
        self._pointer = pointer
        self._inside: list[str] = []  # places of the values around
        self._is_any_order = False

    def parameters(self, is_any_order: bool) -> Format:
        """Return the format of an object's members as parameters.

        Raises GrammarError with the pointer of what the style cannot write.
        """
        self._is_any_order = is_any_order
        root, place = self._resolved(self._schema, "")
        if not isinstance(root, dict) or root.get("type") != "object":
            self._fail("a style of XML needs a schema of the type 'object'", place)
        return self._members(root, place)

    def _members(self, schema: dict[str, Any], place: str) -> Format:
        self._check_keywords(schema, place, _OF_ROOT)
        members, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(members, dict):
            self._fail("a style of XML needs 'properties': only listed parameters are written", place)
        for number, name in enumerate(required):
            if name not in members:
                self._fail(f"the required parameter {name!r} is not listed", f"{place}/required/{number}")
        written = {}
        for name in members:
            if not name or set(name) & set('<>"&\n|'):
                self._fail(f"a style of XML cannot write the name {name!r}", f"{place}/properties/{_escaped(name)}")
            written[name] = self._parameter(name, f"{place}/properties/{_escaped(name)}")
        if self._is_any_order:
            return self._in_any_order(written, frozenset(required), place)
        parts: list[Format] = [self._blank]
        for name, parameter in written.items():
            part = SequenceFormat((parameter, self._blank))
            parts.append(part if name in required else RepeatFormat(part, 0, 1))
        return SequenceFormat(tuple(parts))

    def _in_any_order(self, written: dict[str, Format], required: frozenset[str], place: str) -> Format:
        if len(written) > MAX_ANY_ORDER:
            self._fail(f"a style of XML writes at most {MAX_ANY_ORDER} parameters in any order", f"{place}/properties")
        rests: dict[frozenset[str], Format] = {}  # what may follow, by the parameters that are left

        def rest(left: frozenset[str]) -> Format:
            if left not in rests:
                following = [
                    SequenceFormat((written[name], self._blank, rest(left - {name})))
                    for name in written
                    if name in left
                ]
                ends: list[Format] = [] if left & required else [_EMPTY]
                rests[left] = OrFormat((*ends, *following))
            return rests[left]

        return SequenceFormat((self._blank, rest(frozenset(written))))

    def _parameter(self, name: str | None, place: str) -> Format:
        """Return a value in its tag: a member by its name, an item without."""
        style, kinds = self._style, self._style.kinds
        if place in self._inside:
            self._fail("a style of XML cannot write values that contain themselves", place)
        self._inside.append(place)
        strings = list(self._strings(*self._resolved_at(place)))
        types = self._types(*self._resolved_at(place)) - {"string"}
        written: list[Format] = []
        begin = f"{style.before_name}{name}{style.after_name}" if name is not None else style.item or ""
        end = style.end.replace("{name}", "item" if name is None else name)
        if strings:
            written.append(self._tag(begin.replace("{kind}", kinds[0]), [OrFormat(tuple(strings))], end))
        groups: dict[str, list[str]] = {}
        for kind in _JSON_TYPES:
            if kind in types and (style.item is None or kind not in _NESTED):
                groups.setdefault(kinds[1].get(kind, ""), []).append(kind)
        for shown, group in groups.items():
            blank = [self._blank] if style.is_spaced else []
            content = [*blank, self._json(place, group), *blank]
            written.append(self._tag(begin.replace("{kind}", shown), content, end))
        for kind in _NESTED if style.item is not None else ():
            nested = list(self._nested(kind, *self._resolved_at(place))) if kind in types else []
            if nested:
                shown = kinds[1].get(kind, "")
                written.append(self._tag(begin.replace("{kind}", shown), [OrFormat(tuple(nested))], end))
        self._inside.pop()
        return OrFormat(tuple(written)) if written else self._fail("no text at all satisfies this schema", place)

    def _tag(self, begin: str, content: list[Format], end: str) -> Format:
        first = self._marker(begin)
        if self._style.before_value:
            first += [self._blank, *self._marker(self._style.before_value)]
        return SequenceFormat((*first, *content, *self._marker(end)))

    # Objects and arrays whose parts are tags.

    def _nested(self, kind: str, schema: Any, place: str) -> Iterator[Format]:
        """Yield formats of the objects or arrays that a schema allows."""
        if kind not in self._types(schema, place):
            return
        if not isinstance(schema, dict) or schema.keys().isdisjoint(("type", "anyOf", "oneOf")):
            self._fail("a style of XML whose values nest needs their 'type'", place)
        branches = self._branches(schema, place, _ANNOTATIONS | {"type"})
        if branches is None:
            self._check_keywords(schema, place, _OF_ROOT | _OF_ITEMS | _OF_STRINGS - _GIVEN | _OF_NUMBERS)
            yield self._members(schema, place) if kind == "object" else self._items(schema, place)
            return
        found = [[*self._nested(kind, *self._resolved_at(branch))] for branch in branches]
        if "oneOf" in schema and sum(map(bool, found)) > 1:
            self._fail(f"several values of the type {kind!r} under 'oneOf' are not supported", f"{place}/oneOf")
        for formats in found:
            yield from formats

    def _items(self, schema: dict[str, Any], place: str) -> Format:
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        listed = schema.get("prefixItems", [])
        if not isinstance(schema.get("items", True), dict):
            most = min(most, len(listed)) if schema.get("items") is False else most
            if most > len(listed):
                self._fail("a style of XML whose values nest needs 'items'", place)
        if least > most:
            self._fail("no text at all satisfies this schema", place)
        first = [self._parameter(None, f"{place}/prefixItems/{n}") for n in range(int(min(most, len(listed))))]
        rest: Format = _EMPTY
        if most > len(first):
            item = SequenceFormat((self._parameter(None, f"{place}/items"), self._blank))
            further = None if math.isinf(most) else int(most) - len(first)
            rest = RepeatFormat(item, max(0, least - len(first)), further)
        for number, part in reversed([*enumerate(first)]):
            here = SequenceFormat((part, self._blank, rest))
            rest = here if number < least else OrFormat((_EMPTY, here))
        return SequenceFormat((self._blank, rest))

    def _marker(self, text: str) -> list[Format]:
        """Return a marker's texts and special tokens."""
        names = [name for name in self._special_ids if name and name in text]
        parts = re.split("|".join(f"({re.escape(name)})" for name in names), text) if names else [text]
        return [
            TokensFormat((Token(self._special_ids[part], part),), False, 1, 1)
            if part in names
            else ConstStringFormat(part.encode())
            for part in parts
            if part
        ]

    def _json(self, place: str, types: list[str]) -> Format:
        """Return the values of some types of a parameter's schema, which may refer to the whole."""
        root = {name: value for name, value in self._schema.items() if name != "$schema"}
        uri = root.setdefault("$id", _ROOT)
        schema = {"$defs": {"parameters": root}, "allOf": [{"$ref": f"{uri}#{place}"}, {"type": types}]}
        if "$schema" in self._schema:
            schema["$schema"] = self._schema["$schema"]
        return SchemaFormat(schema, None, self._whitespace, (), self._pointer, _INSIDE)

    # Which values a schema allows.

    def _types(self, schema: Any, place: str) -> frozenset[str]:
        """Return types of which all values of a schema are."""
        everything = frozenset((*_JSON_TYPES, "string"))
        if not isinstance(schema, dict):
            return everything if schema else frozenset()
        found = everything
        if "type" in schema:
            named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            found &= frozenset("number" if name == "integer" else name for name in named)
        if "const" in schema:
            found &= {_type_of(schema["const"])}
        if isinstance(schema.get("enum"), list):
            found &= frozenset(map(_type_of, schema["enum"]))
        for branches in ("anyOf", "oneOf"):
            if branches in schema:
                inner = [
                    self._types(*self._resolved_at(f"{place}/{branches}/{n}")) for n in range(len(schema[branches]))
                ]
                found &= frozenset().union(*inner)
        return found

    def _strings(self, schema: Any, place: str) -> Iterator[Format]:
        """Yield formats of the strings that a schema allows."""
        if "string" not in self._types(schema, place):
            return
        schema = schema if isinstance(schema, dict) else {}
        branches = self._branches(schema, place, _ANNOTATIONS | _OF_OTHERS)
        if branches is None:
            self._check_keywords(schema, place, _OF_STRINGS | _OF_OTHERS, " beside strings")
            yield from self._plain_strings(schema)
            return
        found = [[*self._strings(*self._resolved_at(branch))] for branch in branches]
        if "oneOf" in schema and sum(map(bool, found)) > 1:
            self._fail("several strings under 'oneOf' are not supported in a style of XML", f"{place}/oneOf")
        for formats in found:
            yield from formats

    def _plain_strings(self, schema: dict[str, Any]) -> Iterator[Format]:
        given = schema.get("enum", [schema["const"]] if "const" in schema else None)
        limits = schema.get("minLength", 0), schema.get("maxLength")
        texts = None
        if given is not None:
            texts = tuple(text for text in given if isinstance(text, str) and text == schema.get("const", text))
        end = self._style.excluded or self._style.end
        end = "" if any(name in end for name in self._special_ids if name) else end  # a special token is in no text
        yield RawTextFormat(schema.get("pattern"), schema.get("format"), *limits, end, texts)

    def _branches(self, schema: dict[str, Any], place: str, beside: frozenset[str]) -> list[str] | None:
        """Return the places of a schema's alternatives, None without any. Only keywords of `beside` are beside them."""
        name = next((name for name in ("anyOf", "oneOf") if name in schema), None)
        if name is None:
            return None
        if schema.keys() - beside - {name}:
            self._fail(f"{name!r} beside other keywords is not supported in a style of XML", f"{place}/{name}")
        return [f"{place}/{name}/{number}" for number in range(len(schema[name]))]

    def _check_keywords(self, schema: dict[str, Any], place: str, known: frozenset[str], where: str = "") -> None:
        for name in schema:
            if name not in known:
                self._fail(f"{name!r}{where} is not supported in a style of XML", f"{place}/{name}")

    # References.

    def _resolved_at(self, place: str, seen: tuple[str, ...] = ()) -> tuple[Any, str]:
        """Return the schema at a pointer into the whole, with its pointer, after references inside the whole."""
        schema = self._schema
        for step in place.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(name) if isinstance(schema, list) else name]
            except (LookupError, ValueError, TypeError):
                self._fail("a reference to nothing", place)
        return self._resolved(schema, place, seen)

    def _resolved(self, schema: Any, place: str, seen: tuple[str, ...] = ()) -> tuple[Any, str]:
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema, place
        reference = schema["$ref"]
        if not reference.startswith("#/") or reference in seen:
            self._fail("a style of XML follows references to '#/...' only", f"{place}/$ref")
        if schema.keys() - _ANNOTATIONS - _OF_DOCUMENTS - {"$ref"}:
            self._fail("a style of XML needs '$ref' to stand alone", f"{place}/$ref")
        return self._resolved_at(reference[1:], (*seen, reference))

    def _fail(self, message: str, place: str) -> NoReturn:
        raise GrammarError(message, pointer=self._pointer + place)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _type_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", dict: "object", list: "array", type(None): "null"}
    return kinds.get(type(value), "number")
