"""Readers of the tool calls of one family each: the text of a block, without its markers, becomes calls.

Every reader raises ValueError for a block that is no call. calls.py has what they share.
"""

from __future__ import annotations

import json
from typing import Any

from .calls import (
    ToolCall,
    call_of_texts,
    json_or_text,
    read_arguments,
    read_json_calls,
    read_python_calls,
    read_tagged,
)

MAX_DEPTH = 64  # of values in Gemma's calls


def read_deepseek(block: str) -> list[ToolCall]:
    """Parse `function<sep>NAME\\n```json\\n{...}\\n```<end>` (V3, R1) or `NAME<sep>{...}<end>` (V3.1), repeated."""
    calls = []
    for part in block.split("<｜tool▁call▁begin｜>"):
        body = part.partition("<｜tool▁call▁end｜>")[0]
        if not body.strip():
            continue
        before, separator, after = body.partition("<｜tool▁sep｜>")
        if not separator:
            raise ValueError("no call")
        name, fence, arguments = after.partition("```json")
        if fence:
            calls.append(ToolCall(name.strip(), read_arguments(arguments.strip().removesuffix("```"))))
        else:
            calls.append(ToolCall(before.strip(), read_arguments(after)))
    return calls


def read_mistral(block: str) -> list[ToolCall]:
    """Parse a JSON array (v1-v7) or `NAME[ARGS]{...}`, each after its own `[TOOL_CALLS]` (v11 on)."""
    if "[ARGS]" not in block:
        return read_json_calls(block)
    calls = []
    for part in filter(str.strip, block.split("[TOOL_CALLS]")):
        name, _, arguments = part.partition("[ARGS]")
        calls.append(ToolCall(name.partition("[CALL_ID]")[0].strip(), read_arguments(arguments)))
    return calls


def read_kimi(block: str) -> list[ToolCall]:
    """Parse `functions.NAME:INDEX<|tool_call_argument_begin|>{...}`, each between its begin and end."""
    pairs = read_tagged(block, "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
    return [
        ToolCall(call_id.strip().rpartition(":")[0].removeprefix("functions."), read_arguments(arguments))
        for call_id, arguments in pairs
    ]


def read_qwen3_coder(block: str) -> list[ToolCall]:
    """Parse `<function=NAME><parameter=KEY>\nVALUE\n</parameter>...</function>`."""
    calls = []
    for name, body in read_tagged(block, "<function=", ">", "</function>"):
        pairs = read_tagged(body, "<parameter=", ">", "</parameter>")
        calls.append(call_of_texts(name, [(key, text.removeprefix("\n").removesuffix("\n")) for key, text in pairs]))
    return calls


def read_glm(block: str, prefix: str = "") -> list[ToolCall]:
    """Parse `NAME` and `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, repeated.

    `prefix` begins the tags' names.
    """
    key_tag, value_tag = f"<{prefix}arg_key>", f"<{prefix}arg_value>"
    name, key, rest = block.partition(key_tag)
    pairs = read_tagged(key + rest, key_tag, f"</{prefix}arg_key>", f"</{prefix}arg_value>")
    values = [(key.strip(), value.lstrip().partition(value_tag)) for key, value in pairs]
    if any(before for _, (before, _, _) in values):
        raise ValueError("no call")
    return [call_of_texts(name, [(key, text) for key, (_, _, text) in values])]


def read_longcat(block: str) -> list[ToolCall]:
    """Parse JSON, or a name and tags as GLM's."""
    return read_json_calls(block) if block.lstrip().startswith("{") else read_glm(block, "longcat_")


def read_invocations(block: str, prefix: str = "") -> list[ToolCall]:
    """Parse `<invoke name="NAME"><parameter name="KEY">VALUE</parameter>...</invoke>`, repeated.

    `prefix` begins the tags' names.
    """
    invocations = read_tagged(block, f'<{prefix}invoke name="', '">', f"</{prefix}invoke>")
    return [
        call_of_texts(name, read_tagged(body, f'<{prefix}parameter name="', '">', f"</{prefix}parameter>"))
        for name, body in invocations
    ]


def read_step3(block: str) -> list[ToolCall]:
    """Parse `<｜tool_call_begin｜>function<｜tool_sep｜>`, invocations and `<｜tool_call_end｜>`, repeated."""
    pairs = read_tagged(block, "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>")
    return [call for _, body in pairs for call in read_invocations(body, "steptml:")]


def read_dsml(block: str) -> list[ToolCall]:
    """Parse invocations of DeepSeek V3.2. A parameter's attribute `string` says whether it is a text or JSON."""
    calls = []
    for name, body in read_tagged(block, '<｜DSML｜invoke name="', '">', "</｜DSML｜invoke>"):
        arguments: dict[str, Any] = {}
        for attributes, text in read_tagged(body, '<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>"):
            key, found, is_string = attributes.partition('" string="')
            if not found or is_string not in ("true", "false"):
                raise ValueError("no call")
            arguments[key] = text if is_string == "true" else json_or_text(text)
        calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
    return calls


def read_apertus(block: str) -> list[ToolCall]:
    """Parse an array of objects `{NAME: ARGUMENTS}`."""
    items = json_or_text(block)
    if not isinstance(items, list) or not items:
        raise ValueError("no call")
    calls = []
    for item in items:
        if not isinstance(item, dict) or len(item) != 1:
            raise ValueError("no call")
        [(name, arguments)] = item.items()
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are not a JSON object")
        calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
    return calls


def read_granite_20b(block: str) -> list[ToolCall]:
    """Parse JSON calls, each after its own `<function_call>`."""
    return read_json_calls(block.replace("<function_call>", " "))


def read_internlm(block: str) -> list[ToolCall]:
    """Parse `<|plugin|>` and a JSON call."""
    _, plugin, call = block.partition("<|plugin|>")
    if not plugin:
        raise ValueError("no call")
    return read_json_calls(call)


def read_lfm2(block: str) -> list[ToolCall]:
    """Parse a Python list of calls, or JSON."""
    return read_json_calls(block) if block.lstrip().startswith(("[{", "{")) else read_python_calls(block)


def read_gemma(block: str, quote: str) -> list[ToolCall]:
    """Parse `call:NAME{KEY:VALUE,...}`. Texts stand between two `quote`s; lists and objects may nest."""
    name, brace, rest = block.strip().removeprefix("call:").partition("{")
    if not (block.lstrip().startswith("call:") and brace):
        raise ValueError("no call")
    arguments, end = _GemmaValue(brace + rest, quote).read(0)
    if (brace + rest)[end:].strip():
        raise ValueError("no call")
    return [ToolCall(name.strip(), json.dumps(arguments, ensure_ascii=False))]


class _GemmaValue:
    """Reads values of Gemma's calls from `text`. Positions are indices of it."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote

    def read(self, at: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value at `at` and the position after it. Raises ValueError."""
        if depth > MAX_DEPTH:
            raise ValueError("values are nested too deeply")
        text = self._text
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
        while not self._text.startswith("}", at):
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
        while not self._text.startswith("]", at):
            value, at = self.read(at, depth + 1)
            items.append(value)
            at = self._next(at, "]")
        return items, at + 1

    def _next(self, at: int, end: str) -> int:
        """Return the position of `end`, or of what follows a comma."""
        if self._text.startswith(",", at):
            return at + 1
        if not self._text.startswith(end, at):
            raise ValueError("a value that does not end")
        return at


def read_fenced(block: str) -> list[ToolCall]:
    text = block.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return read_json_calls(text)
