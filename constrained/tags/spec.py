"""Reader of structural tags: xgrammar's and SGLang's `structures` and `triggers`, and the newer `format`, as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import GrammarError
from ..regex.charset import has_surrogates

_MAX_NESTING = 30


@dataclass(frozen=True)
class ConstStringFormat:
    """A constant string."""

    text: bytes


@dataclass(frozen=True, eq=False)
class SchemaFormat:
    """A JSON value. `pointer` is that of the schema in the specification."""

    schema: Any
    pointer: str


@dataclass(frozen=True)
class RegexFormat:
    """A whole match of a Python pattern (None: any text) in which no text of `excludes` occurs."""

    pattern: str | None
    excludes: tuple[str, ...]
    pointer: str


@dataclass(frozen=True)
class GrammarFormat:
    """A text of a grammar in llama.cpp's notation."""

    text: str
    pointer: str


@dataclass(frozen=True)
class TagFormat:
    """A tag with its opening string, and its content up to the first of `ends` that completes it."""

    begin: bytes
    content: Format
    ends: tuple[bytes, ...]
    pointer: str


@dataclass(frozen=True)
class SequenceFormat:
    """Formats one after another."""

    parts: tuple[Format, ...]


@dataclass(frozen=True)
class OrFormat:
    """Choice of one format."""

    parts: tuple[Format, ...]
    pointer: str


@dataclass(frozen=True)
class TriggeredTagsFormat:
    """Free text in which each trigger begins one of the tags that begin with it."""

    triggers: tuple[bytes, ...]
    tags: tuple[TagFormat, ...]
    at_least_one: bool
    stop_after_first: bool
    excludes: tuple[bytes, ...]
    pointer: str


@dataclass(frozen=True)
class SeparatedTagsFormat:
    """Tags with separators between them, and nothing else."""

    tags: tuple[TagFormat, ...]
    separator: bytes
    at_least_one: bool
    stop_after_first: bool
    pointer: str


Format = (
    ConstStringFormat
    | SchemaFormat
    | RegexFormat
    | GrammarFormat
    | TagFormat
    | SequenceFormat
    | OrFormat
    | TriggeredTagsFormat
    | SeparatedTagsFormat
)


def read_tags(spec: Mapping[str, Any] | str) -> Format:
    """Read a structural tag from its JSON. Raises GrammarError with the pointer of what is wrong or not supported."""
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the structural tag is no JSON: {error}") from None
    if not isinstance(spec, Mapping):
        raise GrammarError("a structural tag must be an object", pointer="")
    if "format" in spec:
        return _SpecReader().format(spec["format"], "/format")
    return _SpecReader().structures(spec)


def _fail(message: str, pointer: str) -> NoReturn:
    raise GrammarError(message, pointer=pointer)


class _SpecReader:
    def __init__(self) -> None:
        self._depth = 0

    def structures(self, spec: Mapping[str, Any]) -> Format:
        tags = tuple(
            TagFormat(
                _bytes(item, "begin", f"/structures/{n}"),
                SchemaFormat(_get(item, "schema", f"/structures/{n}"), f"/structures/{n}/schema"),
                (_bytes(item, "end", f"/structures/{n}"),),
                f"/structures/{n}",
            )
            for n, item in enumerate(_list(spec, "structures", ""))
        )
        triggers = _strings(spec, "triggers", "")
        return _triggered(TriggeredTagsFormat(triggers, tags, False, False, (), ""))

    def format(self, spec: Any, pointer: str) -> Format:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            _fail(f"formats nested deeper than {_MAX_NESTING}", pointer)
        found = self._format(spec, _get(spec, "type", pointer), pointer)
        self._depth -= 1
        return found

    def _format(self, spec: Any, kind: Any, pointer: str) -> Format:
        match kind:
            case "const_string":
                return ConstStringFormat(_bytes(spec, "value", pointer))
            case "json_schema":
                if spec.get("style", "json") != "json":
                    _fail(f"the style {spec['style']!r} is not supported", f"{pointer}/style")
                return SchemaFormat(_get(spec, "json_schema", pointer), f"{pointer}/json_schema")
            case "any_text":
                return RegexFormat(None, _texts(spec, "excludes", pointer), pointer)
            case "regex":
                return RegexFormat(_text(spec, "pattern", pointer), (), f"{pointer}/pattern")
            case "grammar":
                return GrammarFormat(_text(spec, "grammar", pointer), f"{pointer}/grammar")
            case "tag":
                return self._tag(spec, pointer)
            case "sequence" | "or":
                parts = tuple(
                    self.format(part, f"{pointer}/elements/{n}")
                    for n, part in enumerate(_list(spec, "elements", pointer))
                )
                return SequenceFormat(parts) if kind == "sequence" else OrFormat(parts, pointer)
            case "triggered_tags":
                found = TriggeredTagsFormat(
                    _strings(spec, "triggers", pointer), self._tags(spec, pointer), *_flags(spec, pointer),
                    tuple(text.encode() for text in _texts(spec, "excludes", pointer)), pointer,
                )  # fmt: skip
                return _triggered(found)
            case "tags_with_separator":
                return SeparatedTagsFormat(
                    self._tags(spec, pointer), _bytes(spec, "separator", pointer), *_flags(spec, pointer), pointer
                )
            case _:
                _fail(f"the type {kind!r} is not supported", f"{pointer}/type")

    def _tags(self, spec: Any, pointer: str) -> tuple[TagFormat, ...]:
        tags = [self._tag(tag, f"{pointer}/tags/{n}") for n, tag in enumerate(_list(spec, "tags", pointer))]
        return tuple(tags) if tags else _fail("there are no tags", f"{pointer}/tags")

    def _tag(self, spec: Any, pointer: str) -> TagFormat:
        ends = _get(spec, "end", pointer)
        ends = _strings(spec, "end", pointer) if isinstance(ends, list) else (_bytes(spec, "end", pointer),)
        content = self.format(_get(spec, "content", pointer), f"{pointer}/content")
        return TagFormat(_bytes(spec, "begin", pointer), content, ends, pointer)


def _triggered(found: TriggeredTagsFormat) -> TriggeredTagsFormat:
    if b"" in found.triggers or b"" in found.excludes:
        _fail("an empty trigger or exclusion", found.pointer)
    for tag in found.tags:
        if not any(tag.begin.startswith(trigger) for trigger in found.triggers):
            _fail(f"no trigger begins the tag {tag.begin.decode()!r}", f"{tag.pointer}/begin")
    for number, trigger in enumerate(found.triggers):
        if not any(tag.begin.startswith(trigger) for tag in found.tags):
            _fail(f"no tag begins with the trigger {trigger.decode()!r}", f"{found.pointer}/triggers/{number}")
    return found


def _get(spec: Any, key: str, pointer: str) -> Any:
    if not isinstance(spec, Mapping):
        _fail("not an object", pointer)
    return spec[key] if key in spec else _fail(f"{key!r} is missing", pointer)


def _text(spec: Any, key: str, pointer: str) -> str:
    value = _get(spec, key, pointer)
    if not isinstance(value, str) or has_surrogates(value):
        _fail(f"{key!r} must be a string without lone surrogates", f"{pointer}/{key}")
    return value


def _bytes(spec: Any, key: str, pointer: str) -> bytes:
    return _text(spec, key, pointer).encode()


def _list(spec: Any, key: str, pointer: str) -> list[Any]:
    value = _get(spec, key, pointer)
    if not isinstance(value, list) or not value:
        _fail(f"{key!r} must be a list that is not empty", f"{pointer}/{key}")
    return value


def _strings(spec: Any, key: str, pointer: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in _texts(spec, key, pointer)) or _fail(f"{key!r} is empty", f"{pointer}/{key}")


def _texts(spec: Any, key: str, pointer: str) -> tuple[str, ...]:
    if not spec.get(key):
        return ()
    found = _list(spec, key, pointer)
    return tuple(_text({str(n): value}, str(n), f"{pointer}/{key}") for n, value in enumerate(found))


def _flags(spec: Any, pointer: str) -> tuple[bool, bool]:
    for key in ("at_least_one", "stop_after_first"):
        if not isinstance(spec.get(key, False), bool):
            _fail(f"{key!r} must be true or false", f"{pointer}/{key}")
    return spec.get("at_least_one", False), spec.get("stop_after_first", False)
