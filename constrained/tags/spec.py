"""Reader of structural tags, as xgrammar, vLLM and SGLang write them, as values.

There are two forms: `structures` with `triggers`, and the newer `format`. What has no meaning here is refused with its
pointer: an unknown format, an unknown field of a format, a field that the format does not have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

from ..automaton.vocabulary import Vocabulary
from ..errors import GrammarError
from ..regex.charset import has_surrogates
from .formats import (
    AnyTextFormat,
    ConstStringFormat,
    DispatchFormat,
    Format,
    GrammarFormat,
    OrFormat,
    RegexFormat,
    RepeatFormat,
    SchemaFormat,
    SeparatedTagsFormat,
    SequenceFormat,
    TagFormat,
    Token,
    TokensFormat,
)
from .xml_styles import XML_STYLES, XmlReader

_MAX_NESTING = 30
MAX_TIMES = 10_000  # of a repeat
_MAX_BUDGET = (1 << 31) - 1  # of `max_chars` and `max_tokens`
_ENDS_OF_ESCAPES = frozenset("/bfnrtu0123456789abcdefABCDEF")
_NO_END = -1  # of `repeat`: any number of times


def read_tags(spec: Mapping[str, Any] | str, vocabulary: Vocabulary) -> Format:
    """Read a structural tag from its JSON, with the tokens of a vocabulary.

    Raises GrammarError with the pointer of what is wrong or not supported."""
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the structural tag is no JSON: {error}") from None
    if not isinstance(spec, Mapping):
        raise GrammarError("a structural tag must be an object", pointer="")
    if spec.get("type", "structural_tag") != "structural_tag":
        _fail(f"the type must be 'structural_tag', not {spec['type']!r}", "/type")
    if "format" in spec:
        fields = _Fields(spec, "", ("type", "format"))
        return _SpecReader(vocabulary).format(fields.get("format"), "/format")
    return _structures(_Fields(spec, "", ("type", "structures", "triggers")))


def _fail(message: str, pointer: str) -> NoReturn:
    raise GrammarError(message, pointer=pointer)


def _structures(fields: _Fields) -> Format:
    tags = []
    for item in fields.items("structures", ("begin", "schema", "end")):
        schema = SchemaFormat(_json(item.get("schema")), None, None, (), item.at("schema"))
        tags.append(TagFormat(item.bytes("begin"), schema, (item.bytes("end"),), item.pointer))
    triggers = tuple(text.encode() for text in fields.texts("triggers", least=1))
    return _triggered(triggers, tuple(tags), (), True, False, fields)


def _json(schema: Any) -> Any:
    """Return the schema that a text contains."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        return schema  # refused with its pointer when it is compiled


class _SpecReader:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._depth = 0

    def format(self, spec: Any, pointer: str) -> Format:
        if not isinstance(spec, Mapping):
            _fail("not an object", pointer)
        if "type" not in spec:
            _fail("'type' is missing", pointer)
        kind = spec["type"]
        known = _FORMATS.get(kind) if isinstance(kind, str) else None
        if known is None:
            _fail(f"the type {kind!r} is not supported", f"{pointer}/type")
        self._depth += 1
        if self._depth > _MAX_NESTING:
            _fail(f"formats nested deeper than {_MAX_NESTING}", pointer)
        names, read = known
        found = read(self, _Fields(spec, pointer, ("type", *names)))
        self._depth -= 1
        return found

    def const(self, fields: _Fields) -> Format:
        return ConstStringFormat(fields.bytes("value"))

    def schema(self, fields: _Fields) -> Format:
        style = fields.spec.get("style", "json")
        if style != "json" and style not in XML_STYLES:
            known = ", ".join(map(repr, ("json", *XML_STYLES)))
            _fail(f"the style {style!r} is not supported: {known} are", fields.at("style"))
        order: Literal["any", "schema"] | None = None
        if "any_order" in fields.spec:
            order = "any" if fields.flag("any_order", False) else "schema"
        most = fields.budget("max_whitespace_cnt")
        whitespace: Literal["compact", "bounded"] | None = None if most is None else "bounded" if most else "compact"
        excludes = fields.texts("excludes")
        if style != "json":
            if excludes:
                _fail("'excludes' is for the style 'json'", fields.at("excludes"))
            place, schema = fields.at("json_schema"), _json(fields.get("json_schema"))
            names = self._vocabulary.names
            return XmlReader(schema, XML_STYLES[style], whitespace, names, place).parameters(order == "any")
        for number, text in enumerate(excludes):
            # Strings are compared as values, so an escape must not be able to spell a part of such a text.
            if not text.isprintable() or set('"\\') & set(text) or text[0] in _ENDS_OF_ESCAPES:
                reason = f"{text!r} may be a part of an escape in a string: begin it with another character"
                _fail(reason, f"{fields.at('excludes')}/{number}")
        return SchemaFormat(_json(fields.get("json_schema")), order, whitespace, excludes, fields.at("json_schema"))

    def qwen_parameters(self, fields: _Fields) -> Format:
        place, schema = fields.at("json_schema"), _json(fields.get("json_schema"))
        return XmlReader(schema, XML_STYLES["qwen_xml"], None, self._vocabulary.names, place).parameters(False)

    def any_text(self, fields: _Fields) -> Format:
        budgets = fields.budget("max_chars"), fields.budget("max_tokens")
        return AnyTextFormat(fields.texts("excludes"), *budgets)

    def regex(self, fields: _Fields) -> Format:
        return RegexFormat(fields.text("pattern"), fields.at("pattern"))

    def grammar(self, fields: _Fields) -> Format:
        return GrammarFormat(fields.text("grammar"), fields.at("grammar"))

    def token(self, fields: _Fields) -> Format:
        return TokensFormat((self._token(fields.get("token"), fields.at("token")),), False, 1, 1)

    def exclude_token(self, fields: _Fields) -> Format:
        return TokensFormat(self._excluded(fields), True, 1, 1)

    def any_tokens(self, fields: _Fields) -> Format:
        return TokensFormat(self._excluded(fields), True, 0, fields.budget("max_tokens"))

    def sequence(self, fields: _Fields) -> Format:
        return SequenceFormat(self._formats(fields))

    def any_of(self, fields: _Fields) -> Format:
        return OrFormat(self._formats(fields))

    def optional(self, fields: _Fields) -> Format:
        return RepeatFormat(self._inner(fields), 0, 1)

    def plus(self, fields: _Fields) -> Format:
        return RepeatFormat(self._inner(fields), 1, None)

    def star(self, fields: _Fields) -> Format:
        return RepeatFormat(self._inner(fields), 0, None)

    def repeat(self, fields: _Fields) -> Format:
        least, most = fields.number("min", 0), fields.number("max", _NO_END)
        if most != _NO_END and most < least:
            _fail(f"'max' is less than 'min', which is {least}", fields.at("max"))
        for name, times in (("min", least), ("max", most)):
            if times > MAX_TIMES:
                _fail(f"more than {MAX_TIMES} times", fields.at(name))
        return RepeatFormat(self._inner(fields), least, None if most == _NO_END else most)

    def tag(self, fields: _Fields) -> TagFormat:
        begin: bytes | Token = self._token_format(fields, "begin") or fields.bytes("begin")
        ends: tuple[bytes, ...] | Token | None = self._token_format(fields, "end")
        if ends is None:
            several = isinstance(fields.get("end"), list)
            ends = tuple(text.encode() for text in fields.texts("end", 1, True)) if several else (fields.bytes("end"),)
        return TagFormat(begin, self._inner(fields), ends, fields.pointer)

    def triggered(self, fields: _Fields) -> Format:
        triggers = tuple(text.encode() for text in fields.texts("triggers", least=1))
        excludes = tuple(text.encode() for text in fields.texts("excludes"))
        return _triggered(triggers, self._tags(fields), excludes, *_loops(fields), fields)

    def token_triggered(self, fields: _Fields) -> Format:
        triggers = self._tokens(fields, "trigger_tokens", least=1)
        return _triggered(triggers, self._tags(fields), self._excluded(fields), *_loops(fields), fields)

    def separated(self, fields: _Fields) -> Format:
        flags = fields.flag("at_least_one", False), fields.flag("stop_after_first", False)
        return SeparatedTagsFormat(self._tags(fields), fields.bytes("separator"), *flags)

    def dispatch(self, fields: _Fields) -> Format:
        excludes = tuple(text.encode() for text in fields.texts("excludes"))
        rules: list[tuple[bytes | Token, Format]] = []
        for pattern, format, pointer in self._rules(fields):
            rules.append((_checked_text(pattern, f"{pointer}/0").encode(), format))
            if not rules[-1][0]:
                _fail("an empty pattern", f"{pointer}/0")
        return DispatchFormat(tuple(rules), excludes, fields.flag("loop", True), False, False)

    def token_dispatch(self, fields: _Fields) -> Format:
        rules = [(self._token(pattern, f"{pointer}/0"), format) for pattern, format, pointer in self._rules(fields)]
        return DispatchFormat(tuple(rules), self._excluded(fields), fields.flag("loop", True), False, False)

    def _inner(self, fields: _Fields) -> Format:
        return self.format(fields.get("content"), fields.at("content"))

    def _formats(self, fields: _Fields) -> tuple[Format, ...]:
        place = fields.at("elements")
        return tuple(self.format(part, f"{place}/{n}") for n, part in enumerate(fields.values("elements", least=1)))

    def _rules(self, fields: _Fields) -> list[tuple[Any, Format, str]]:
        found = []
        for number, rule in enumerate(fields.values("rules", least=1)):
            pointer = f"{fields.at('rules')}/{number}"
            if not isinstance(rule, list | tuple) or len(rule) != 2:
                _fail("a rule must be a list of a pattern and a format", pointer)
            found.append((rule[0], self.format(rule[1], f"{pointer}/1"), pointer))
        return found

    def _tags(self, fields: _Fields) -> tuple[TagFormat, ...]:
        """Read tags, whose type may be left out."""
        names = _FORMATS["tag"][0]
        return tuple(self.tag(item) for item in fields.items("tags", ("type", *names)))

    def _token_format(self, fields: _Fields, name: str) -> Token | None:
        """Read a field that is a token, None if it is something else."""
        value = fields.get(name)
        if not isinstance(value, Mapping):
            return None
        found = self.format(value, fields.at(name))
        if not isinstance(found, TokensFormat) or found.is_excluded:
            _fail(f"{name!r} must be a text or a format of the type 'token'", fields.at(name))
        return found.tokens[0]

    def _token(self, value: Any, pointer: str, *, is_excluded: bool = False) -> Token:
        if isinstance(value, str):
            _checked_text(value, pointer)
        elif type(value) is not int:
            _fail("a token must be its number or its text", pointer)
        number = self._vocabulary.number_of(value)
        if number is None:
            _fail(f"the vocabulary has no token {value!r}", pointer)
        if number in self._vocabulary.eos_ids and not is_excluded:
            _fail(f"the token {value!r} ends an output, so it cannot be a part of one", pointer)
        return Token(number, value)

    def _tokens(self, fields: _Fields, name: str, least: int = 0, *, is_excluded: bool = False) -> tuple[Token, ...]:
        place, values = fields.at(name), fields.values(name, least)
        return tuple(self._token(value, f"{place}/{n}", is_excluded=is_excluded) for n, value in enumerate(values))

    def _excluded(self, fields: _Fields) -> tuple[Token, ...]:
        return self._tokens(fields, "exclude_tokens", is_excluded=True)


_Reader = Callable[[_SpecReader, "_Fields"], Format]
_FORMATS: dict[str, tuple[tuple[str, ...], _Reader]] = {
    "const_string": (("value",), _SpecReader.const),
    "json_schema": (
        ("json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"),
        _SpecReader.schema,
    ),
    "qwen_xml_parameter": (("json_schema",), _SpecReader.qwen_parameters),
    "any_text": (("excludes", "max_chars", "max_tokens"), _SpecReader.any_text),
    "regex": (("pattern",), _SpecReader.regex),
    "grammar": (("grammar",), _SpecReader.grammar),
    "token": (("token",), _SpecReader.token),
    "exclude_token": (("exclude_tokens",), _SpecReader.exclude_token),
    "any_tokens": (("exclude_tokens", "max_tokens"), _SpecReader.any_tokens),
    "sequence": (("elements",), _SpecReader.sequence),
    "or": (("elements",), _SpecReader.any_of),
    "optional": (("content",), _SpecReader.optional),
    "plus": (("content",), _SpecReader.plus),
    "star": (("content",), _SpecReader.star),
    "repeat": (("min", "max", "content"), _SpecReader.repeat),
    "tag": (("begin", "content", "end"), _SpecReader.tag),
    "triggered_tags": (
        ("triggers", "tags", "at_least_one", "stop_after_first", "excludes"),
        _SpecReader.triggered,
    ),
    "token_triggered_tags": (
        ("trigger_tokens", "tags", "exclude_tokens", "at_least_one", "stop_after_first"),
        _SpecReader.token_triggered,
    ),
    "tags_with_separator": (("tags", "separator", "at_least_one", "stop_after_first"), _SpecReader.separated),
    "dispatch": (("rules", "loop", "excludes"), _SpecReader.dispatch),
    "token_dispatch": (("rules", "loop", "exclude_tokens"), _SpecReader.token_dispatch),
}


def _loops(fields: _Fields) -> tuple[bool, bool]:
    return not fields.flag("stop_after_first", False), fields.flag("at_least_one", False)


def _triggered(
    triggers: tuple[bytes, ...] | tuple[Token, ...],
    tags: tuple[TagFormat, ...],
    excludes: tuple[bytes, ...] | tuple[Token, ...],
    loops: bool,
    at_least_one: bool,
    fields: _Fields,
) -> Format:
    """Return the free text with tags: each trigger is followed by the rest of one of the tags that begin with it."""
    is_text = isinstance(triggers[0], bytes)
    named: tuple[bytes | Token, ...] = triggers
    rests: dict[bytes | Token, list[Format]] = {trigger: [] for trigger in named}
    lengths = sorted({len(trigger) for trigger in triggers if isinstance(trigger, bytes)})
    for tag in tags:
        if isinstance(tag.begin, bytes) != is_text:
            _fail(f"'begin' must be a {'text' if is_text else 'token'} here", f"{tag.pointer}/begin")
        begin = tag.begin
        cut: list[bytes | Token] = [begin]
        if isinstance(begin, bytes):
            cut = [begin[:length] for length in lengths if length <= len(begin)]
        begun = [trigger for trigger in cut if trigger in rests]
        if not begun:
            _fail(f"no trigger begins the tag {_shown(begin)!r}", f"{tag.pointer}/begin")
        for trigger in begun:
            rest = begin[len(trigger) :] if isinstance(begin, bytes) and isinstance(trigger, bytes) else b""
            rests[trigger].append(TagFormat(rest, tag.content, tag.ends, tag.pointer))
    rules: list[tuple[bytes | Token, Format]] = []
    for number, trigger in enumerate(named):
        if not rests[trigger]:
            place = fields.at("triggers" if is_text else "trigger_tokens")
            _fail(f"no tag begins with the trigger {_shown(trigger)!r}", f"{place}/{number}")
        rules.append((trigger, OrFormat(tuple(rests[trigger]))))
    return DispatchFormat(tuple(rules), excludes, loops, at_least_one, True)


def _shown(begin: bytes | Token) -> int | str:
    return begin.decode() if isinstance(begin, bytes) else begin.shown


class _Fields:
    """The fields of an object of the specification, each read with the pointer of its error."""

    def __init__(self, spec: Any, pointer: str, names: tuple[str, ...]) -> None:
        if not isinstance(spec, Mapping):
            _fail("not an object", pointer)
        self.spec, self.pointer = spec, pointer
        for name in spec:
            if name not in names:
                _fail(f"the field {name!r} is not known here", self.at(str(name)))

    def at(self, name: str) -> str:
        return f"{self.pointer}/{name.replace('~', '~0').replace('/', '~1')}"

    def get(self, name: str) -> Any:
        return self.spec[name] if name in self.spec else _fail(f"{name!r} is missing", self.pointer)

    def text(self, name: str) -> str:
        return _checked_text(self.get(name), self.at(name))

    def bytes(self, name: str) -> bytes:
        return self.text(name).encode()

    def flag(self, name: str, default: bool) -> bool:
        value = self.spec.get(name, default)
        return value if isinstance(value, bool) else _fail(f"{name!r} must be true or false", self.at(name))

    def number(self, name: str, least: int) -> int:
        value = self.get(name)
        if type(value) is not int or value < least:
            _fail(f"{name!r} must be an integer of at least {least}", self.at(name))
        return value

    def budget(self, name: str) -> int | None:
        if self.spec.get(name) is None:
            return None
        found = self.number(name, 0)
        return found if found <= _MAX_BUDGET else _fail(f"{name!r} is more than {_MAX_BUDGET}", self.at(name))

    def values(self, name: str, least: int = 0) -> list[Any]:
        value = self.get(name) if least else self.spec.get(name, [])
        if not isinstance(value, list | tuple) or len(value) < least:
            _fail(f"{name!r} must be a list{' that is not empty' if least else ''}", self.at(name))
        return [*value]

    def items(self, name: str, names: tuple[str, ...]) -> list[_Fields]:
        return [_Fields(item, f"{self.at(name)}/{n}", names) for n, item in enumerate(self.values(name, least=1))]

    def texts(self, name: str, least: int = 0, may_be_empty: bool = False) -> tuple[str, ...]:
        found = [_checked_text(value, f"{self.at(name)}/{n}") for n, value in enumerate(self.values(name, least))]
        if "" in found and not may_be_empty:
            _fail("an empty text", f"{self.at(name)}/{found.index('')}")
        return tuple(found)


def _checked_text(value: Any, pointer: str) -> str:
    if not isinstance(value, str) or has_surrogates(value):
        _fail("not a string without lone surrogates", pointer)
    return value
