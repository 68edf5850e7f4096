"""Readers of the tool calls of one family each: the text of a block, without its markers, becomes calls.

calls.py has what they share, and says what a reader returns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from .calls import (
    JSON_BEGIN,
    Reader,
    ToolCall,
    call_of_texts,
    json_or_text,
    json_text,
    load_json,
    read_arguments,
    read_json_calls,
    read_python_calls,
    value_end,
)

MAX_DEPTH = 64  # of values in Gemma's calls
_NAME = r"(?P<name>[^\s<>:{}\[\]|`]+)"


def read_headed(text: str, *, header: re.Pattern[str], footer: re.Pattern[str]) -> tuple[list[ToolCall], int]:
    """Read calls that are a header with the name, a JSON object and a footer, which may be missing."""
    calls: list[ToolCall] = []
    at = 0
    while (begun := header.match(text, at)) is not None:
        end = value_end(text, begun.end())
        calls.append(ToolCall(begun["name"], read_arguments(text[begun.end() : end])))
        closed = footer.match(text, end)
        at = end if closed is None else closed.end()
    if not calls:
        raise ValueError("no call")
    return calls, at


def _headed(header: str, footer: str) -> Reader:
    return partial(read_headed, header=re.compile(rf"\s*(?:{header})\s*"), footer=re.compile(footer))


# `function<sep>NAME\n```json\n{...}\n```<end>` (V3, R1) or `NAME<sep>{...}<end>` (V3.1), repeated
read_deepseek = _headed(
    rf"<｜tool▁call▁begin｜>(?:\w+<｜tool▁sep｜>)?{_NAME}(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?)?",
    r"\s*(?:(?:```\s*)?<｜tool▁call▁end｜>|```)",
)
# `functions.NAME:INDEX<|tool_call_argument_begin|>{...}`, each between its begin and end
read_kimi = _headed(
    rf"<\|tool_call_begin\|>\s*(?:functions\.)?{_NAME}(?::\d+)?\s*<\|tool_call_argument_begin\|>",
    r"\s*<\|tool_call_end\|>",
)
# `NAME[ARGS]{...}`, each after its own `[TOOL_CALLS]` (v11 on)
_read_args = _headed(rf"(?:\[TOOL_CALLS\])?\s*{_NAME}\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]", "")


def read_mistral(text: str) -> tuple[list[ToolCall], int]:
    """Read a JSON array (v1-v7), or names and arguments."""
    return read_json_calls(text) if JSON_BEGIN.match(text) else _read_args(text)


@dataclass(frozen=True)
class TagGrammar:
    """Calls as tags: `call` names the tag of a call and `parameter` that of an argument, whose text is the value.

    A name stands between `equals` and `name_end`. A value may lack its closing tag: the next argument ends it, or the
    end of the call. A closing tag that stands in a value which is closed is part of it.
    """

    call: str
    parameter: str
    equals: str = "="
    name_end: str = ">"

    @property
    def opening(self) -> str:
        """Return how a call begins."""
        return f"<{self.call}{self.equals}"

    @property
    def closing(self) -> str:
        return f"</{self.call}>"

    @property
    def values(self) -> str:
        """Return a pattern of values, with the tag before them. `open` is there if the value is not closed."""
        argument, call, closing = (
            re.escape(each) for each in (f"<{self.parameter}{self.equals}", self.opening, self.closing)
        )
        end = rf"{closing}\s*</"  # the block's own end follows
        return (
            rf"{argument}(?P<key>[^>\n]*?){re.escape(self.name_end)}(?P<value>.*?)"
            rf"(?:</{re.escape(self.parameter)}>|(?P<open>(?={argument}|{call}|{end}|\Z)))"
        )

    def read(self, text: str) -> tuple[list[ToolCall], int]:
        opening = re.compile(rf"\s*{re.escape(self.opening)}(?P<name>[^>\n]+?){re.escape(self.name_end)}\s*")
        value, closing = re.compile(rf"{self.values}\s*", re.DOTALL), re.compile(rf"{re.escape(self.closing)}")
        calls: list[ToolCall] = []
        at = 0
        while (begun := opening.match(text, at)) is not None:
            arguments: list[tuple[str, str]] = []
            place = begun.end()
            while (found := value.match(text, place)) is not None:
                place, written = found.end(), found["value"]
                if found["open"] is not None and (cut := written.rfind(self.closing)) >= 0:
                    place, written = found.start("value") + cut, written[:cut]
                arguments.append((found["key"], self.trimmed(written, is_closed=found["open"] is None)))
            closed = closing.match(text, place)
            if closed is None and (place < len(text) or not arguments) and opening.match(text, place) is None:
                raise ValueError("no call")
            calls.append(call_of_texts(begun["name"], arguments))
            at = place if closed is None else closed.end()
        if not calls:
            raise ValueError("no call")
        return calls, at

    def trimmed(self, value: str, *, is_closed: bool) -> str:
        """Return a value without the line breaks of its tags."""
        return value if is_closed else value.removesuffix("\n")


class LineTagGrammar(TagGrammar):
    """Tags whose values stand on lines of their own."""

    def trimmed(self, value: str, *, is_closed: bool) -> str:
        return value.removeprefix("\n").removesuffix("\n")


class DsmlGrammar(TagGrammar):
    """Tags of DeepSeek V3.2. A parameter's attribute `string` says whether it is a text or JSON."""

    def read(self, text: str) -> tuple[list[ToolCall], int]:
        calls, end = super().read(text)
        return [self._typed(call) for call in calls], end

    def _typed(self, call: ToolCall) -> ToolCall:
        arguments: dict[str, Any] = {}
        for attributes, text in load_json(call.arguments).items():
            key, found, is_string = attributes.partition('" string="')
            if not found or is_string not in ("true", "false"):
                raise ValueError("no call")
            arguments[key] = text if is_string == "true" else json_or_text(text)
        return ToolCall(call.name, json_text(arguments))


QWEN3_CODER = LineTagGrammar("function", "parameter")
INVOKE = TagGrammar("invoke", "parameter", ' name="', '">')
STEPTML = TagGrammar("steptml:invoke", "steptml:parameter", ' name="', '">')
DSML = DsmlGrammar("｜DSML｜invoke", "｜DSML｜parameter", ' name="', '">')


def glm_values(prefix: str = "", block: str = "tool_call") -> str:
    """Return a pattern of the arguments of GLM's calls. `prefix` begins the tags' names."""
    next_call = rf"</{block}>\s*<{block}>\s*[^\s<]+\s*(?:<{prefix}arg_key>|</{block}>)"
    return (
        rf"<{prefix}arg_key>(?P<key>.*?)</{prefix}arg_key>\s*<{prefix}arg_value>(?P<value>.*?)"
        rf"(?:</{prefix}arg_value>|(?P<open>(?=<{prefix}arg_key>|{next_call}|\Z)))"
    )


def read_glm(text: str, prefix: str = "") -> tuple[list[ToolCall], int]:
    """Read `NAME` and `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, repeated."""
    begun = re.match(r"\s*(?P<name>[^<\s]+)\s*", text)
    if begun is None:
        raise ValueError("no call")
    at, arguments = begun.end(), []
    value = re.compile(rf"{glm_values(prefix)}\s*", re.DOTALL)
    while (found := value.match(text, at)) is not None:
        is_closed = found["open"] is None
        arguments.append((found["key"].strip(), found["value"] if is_closed else found["value"].removesuffix("\n")))
        at = found.end()
    return [call_of_texts(begun["name"], arguments)], len(text[:at].rstrip())


def read_longcat(text: str) -> tuple[list[ToolCall], int]:
    """Read JSON, or a name and tags as GLM's."""
    return read_json_calls(text) if JSON_BEGIN.match(text) else read_glm(text, "longcat_")


def read_step3(text: str) -> tuple[list[ToolCall], int]:
    """Read `<｜tool_call_begin｜>function<｜tool_sep｜>`, invocations and `<｜tool_call_end｜>`, repeated."""
    calls: list[ToolCall] = []
    at = 0
    while (begun := re.compile(r"\s*<｜tool_call_begin｜>\s*\w*\s*<｜tool_sep｜>").match(text, at)) is not None:
        read, end = STEPTML.read(text[begun.end() :])
        calls += read
        at = begun.end() + end
        closed = re.compile(r"\s*<｜tool_call_end｜>").match(text, at)
        at = at if closed is None else closed.end()
    if not calls:
        return STEPTML.read(text)
    return calls, at


def read_apertus(text: str) -> tuple[list[ToolCall], int]:
    """Read an array of objects `{NAME: ARGUMENTS}`."""
    begin = len(text) - len(text.lstrip())
    end = value_end(text, begin)
    items = load_json(text[begin:end])
    if not isinstance(items, list) or not items:
        raise ValueError("no call")
    calls = []
    for item in items:
        if not isinstance(item, dict) or len(item) != 1:
            raise ValueError("no call")
        [(name, arguments)] = item.items()
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are not a JSON object")
        calls.append(ToolCall(name, json_text(arguments)))
    return calls, end


def read_internlm(text: str) -> tuple[list[ToolCall], int]:
    """Read `<|plugin|>` and a JSON call."""
    before, plugin, _ = text.partition("<|plugin|>")
    if not plugin or before.strip():
        raise ValueError("no call")
    return read_json_calls(text, len(before) + len(plugin))


def read_lfm2(text: str) -> tuple[list[ToolCall], int]:
    """Read a Python list of calls, or JSON."""
    return read_json_calls(text) if JSON_BEGIN.match(text) else read_python_calls(text)


def read_gemma(text: str, quote: str) -> tuple[list[ToolCall], int]:
    """Read `call:NAME{KEY:VALUE,...}`. Texts stand between two `quote`s; lists and objects may nest."""
    begun = re.match(r"\s*call:\s*(?P<name>[^{\s]+)\s*(?=\{)", text)
    if begun is None:
        raise ValueError("no call")
    arguments, end = _GemmaValue(text, quote).read(begun.end())
    return [ToolCall(begun["name"], json_text(arguments))], end


class _GemmaValue:
    """Reads values of Gemma's calls from `text`. Positions are indices of it."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote

    def read(self, at: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value at `at` and the position after it. Raises ValueError."""
        if depth > MAX_DEPTH:
            raise ValueError("values are nested too deeply")
        text = self._text
        at = self._skip_blanks(at)
        if text.startswith(self._quote, at):
            return self._quoted(at)
        if text.startswith("{", at):
            return self._object(at + 1, depth)
        if text.startswith("[", at):
            return self._list(at + 1, depth)
        end = min((place for mark in ",]}" if (place := text.find(mark, at)) >= 0), default=len(text))
        return json_or_text(text[at:end].strip()), end

    def _quoted(self, at: int) -> tuple[str, int]:
        begin = at + len(self._quote)
        end = self._text.find(self._quote, begin)
        if end < 0:
            raise ValueError("a text that does not end")
        return self._text[begin:end], end + len(self._quote)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        items: dict[str, Any] = {}
        while not self._text.startswith("}", at := self._skip_blanks(at)):
            if self._text.startswith(self._quote, at):
                key, at = self._quoted(at)
                colon = at
            else:
                colon = self._text.find(":", at)
                key = self._text[at:colon].strip()
            if not self._text.startswith(":", colon) or not key:
                raise ValueError("no value")
            items[key], at = self.read(colon + 1, depth + 1)
            at = self._next(at, "}")
        return items, at + 1

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while not self._text.startswith("]", at := self._skip_blanks(at)):
            value, at = self.read(at, depth + 1)
            items.append(value)
            at = self._next(at, "]")
        return items, at + 1

    def _next(self, at: int, end: str) -> int:
        """Return the position of `end`, or of what follows a comma."""
        at = self._skip_blanks(at)
        if self._text.startswith(",", at):
            return at + 1
        if not self._text.startswith(end, at):
            raise ValueError("a value that does not end")
        return at

    def _skip_blanks(self, at: int) -> int:
        while self._text[at : at + 1].isspace():
            at += 1
        return at
