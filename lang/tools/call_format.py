"""Constrains text to the form in which a model writes tool calls, and reads the calls in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.session import OfferedTools
from .tool_set import PreparedCall, ToolSet

Recognised = Literal["marker", "bare JSON", "constrained"]  # how a call was found; constrained: the turn had to be one

MAX_BEFORE = 200  # characters of the sentence before bare JSON
# One sentence or nothing, and the begin of a fence or none, before JSON.
_BEFORE_BARE = re.compile(rf"([^{{\[\n]{{0,{MAX_BEFORE}}}?)\s*(?:```\w*\s*)?(?=[{{\[])")


@dataclass(frozen=True)
class CallFormat:
    """The form of a call: `before`, then `{"name": ..., ARGUMENTS: {...}}`, then `after`.

    `arguments` is the key of the arguments. Without `before` a call begins where `{"name": "` does.
    """

    before: str = "<tool_call>\n"
    arguments: str = "arguments"
    after: str = "\n</tool_call>"

    @property
    def trigger(self) -> str:
        """Return the text that begins a call wherever it stands."""
        return self.before.strip() or '{"name": "'

    def example(self) -> str:
        """Return a call as the model is shown it."""
        return f'{self.before}{{"name": <name of the tool>, "{self.arguments}": <its arguments>}}{self.after}'


@dataclass(frozen=True)
class InvalidCall:
    """A part of the model's text that begins like a call and is none."""

    text: str
    reason: Exception


class ReadTurn(NamedTuple):
    """The text of a turn without its calls, the calls in order, and how they were found."""

    said: str
    calls: list[PreparedCall | InvalidCall]
    recognised: Recognised


CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat(),
    "json": CallFormat("", "arguments", ""),
    "llama3_json": CallFormat("", "parameters", ""),
}


def call_format(given: str | CallFormat) -> CallFormat:
    """Return a format by name, or as given. Raises RequestError for anything else."""
    if isinstance(given, CallFormat):
        return given
    try:
        return CALL_FORMATS[given]
    except (KeyError, TypeError):
        raise RequestError(
            f"call_format must be one of {', '.join(CALL_FORMATS)}, or a CallFormat, got {given!r}", param="call_format"
        ) from None


def structural_tag(tools: ToolSet, form: CallFormat, choice: str = "auto") -> str:
    """Return the specification of text in which every call that is begun is valid.

    With the `choice` "required" the text is calls and nothing else, with a tool's name calls of this tool.
    """
    tags = []
    for name, schema in tools.schemas.items():
        closed = schema | ({"$defs": tools.definitions} if tools.definitions else {})
        begin = f'{form.before}{{"name": {json.dumps(name, ensure_ascii=False)}, "{form.arguments}": '
        content = {"type": "json_schema", "json_schema": closed}
        if choice in ("auto", "required", name):
            tags.append({"type": "tag", "begin": begin, "content": content, "end": "}" + form.after})
    spec: dict[str, Any]
    if choice == "auto":
        spec = {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags}
    else:
        spec = {"type": "tags_with_separator", "separator": "\n", "tags": tags, "at_least_one": True}
    return json.dumps({"type": "structural_tag", "format": spec})


def read_calls(text: str, tools: ToolSet, form: CallFormat) -> ReadTurn:
    """Read the calls in a text. What begins like a call and is none is invalid.

    Where the format's mark is missing, JSON that is the whole text, but for a fence and one sentence before it, is read
    as calls too, if it has a call's members and no others.
    """
    is_marked = bool(form.before.strip())
    if not (is_marked and form.trigger in text):
        bare = _read_bare(text, tools, form)
        if is_marked or bare.calls:
            return bare
    said, calls = [], []
    rest = text
    while form.trigger in rest:
        before, _, after = rest.partition(form.trigger)
        said.append(before)
        call, rest = _read_call(after if is_marked else form.trigger + after, tools, form)
        calls.append(call)
    return ReadTurn("".join([*said, rest]).strip(), calls, "marker" if is_marked else "bare JSON")


def _read_bare(text: str, tools: ToolSet, form: CallFormat) -> ReadTurn:
    none = ReadTurn(text.strip(), [], "bare JSON")
    whole = text.strip()
    if form.after.strip():  # some models leave the begin out
        whole = whole.removesuffix(form.after.strip()).rstrip()
    whole = whole.removesuffix("```")
    match = _BEFORE_BARE.match(whole)
    if match is None or re.search(r"[.!?]\s+\S", sentence := match[1].strip()):
        return none
    try:
        calls = [_bare_call(value, tools, form) for value in _json_values(whole[match.end() :].rstrip())]
    except (ValueError, RecursionError):
        return none
    return ReadTurn(sentence, calls, "bare JSON") if calls else none


def _json_values(text: str) -> Sequence[Any]:
    """Return the members of an array, or the values that follow each other. Raises ValueError for anything else."""
    values: list[Any] = []
    while text:
        value, end = json.JSONDecoder().raw_decode(text)
        values.append(value)
        text = text[end:].lstrip(" \n\r\t,;")
    return values[0] if len(values) == 1 and isinstance(values[0], list) else values


def _bare_call(value: Any, tools: ToolSet, form: CallFormat) -> PreparedCall | InvalidCall:
    """Return the call that a JSON value is. Raises ValueError for a value that has not the members of a call."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("no call")
    [key] = value.keys() - {"name"}
    if key not in (form.arguments, "arguments", "parameters") or not isinstance(value[key], dict):
        raise ValueError("no call")
    try:
        return tools.parse_arguments(value["name"], json.dumps(value[key]))
    except (ValueError, RecursionError) as error:
        return InvalidCall(json.dumps(value, ensure_ascii=False), error)


def _read_call(text: str, tools: ToolSet, form: CallFormat) -> tuple[PreparedCall | InvalidCall, str]:
    """Read a call at the beginning of the text; return it, and the text after it."""
    body = text.lstrip()
    after = form.after.strip()
    try:
        value, end = json.JSONDecoder().raw_decode(body)
        rest = body[end:]
        if after and rest.strip():  # at the end of the text some models leave the mark out
            if not rest.lstrip().startswith(after):
                raise ValueError(f"{after!r} does not follow the call")
            rest = rest.partition(after)[2]
        return _prepared(value, tools, form), rest
    except (ValueError, RecursionError) as error:
        inside, mark, rest = text.partition(after) if after else (text, "", "")
        whole = (form.trigger if form.before.strip() else "") + inside + mark
        return InvalidCall(whole.strip(), error), rest


def _prepared(value: Any, tools: ToolSet, form: CallFormat) -> PreparedCall:
    if not isinstance(value, dict) or set(value) != {"name", form.arguments} or not isinstance(value["name"], str):
        raise ValueError(f'a call has a "name" and "{form.arguments}", and nothing else')
    return tools.parse_arguments(value["name"], json.dumps(value[form.arguments]))


def described(tools: ToolSet, form: CallFormat) -> str:
    """Describe tools and the form of their calls, for models whose chat template does not."""
    lines = [json.dumps(one.schema()["function"], ensure_ascii=False) for one in tools.tools.values()]
    return "\n".join(
        ["Tools:", *lines, "", "To call a tool, write:", form.example(), "Answer in words once you need no tool."]
    )


def offer(tools: ToolSet, form: CallFormat = CALL_FORMATS["hermes"]) -> OfferedTools:
    """Return the tools as the first message of a chat offers them."""
    schemas = [one.schema() for one in tools.tools.values()]
    return OfferedTools(json.dumps(schemas, ensure_ascii=False), described(tools, form))
