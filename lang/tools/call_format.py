"""Constrains text to the form in which a model writes tool calls, and reads the calls in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.session import OfferedTools
from .tool_set import PreparedCall, ToolSet


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


def structural_tag(tools: ToolSet, form: CallFormat) -> str:
    """Return the specification of text in which every call that is begun is valid."""
    tags = []
    for name, schema in tools.schemas.items():
        closed = schema | ({"$defs": tools.definitions} if tools.definitions else {})
        begin = f'{form.before}{{"name": {json.dumps(name, ensure_ascii=False)}, "{form.arguments}": '
        content = {"type": "json_schema", "json_schema": closed}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": "}" + form.after})
    spec = {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": spec})


def read_calls(text: str, tools: ToolSet, form: CallFormat) -> tuple[str, list[PreparedCall | InvalidCall]]:
    """Return the text without its calls, and the calls in order. What begins like a call and is none is invalid."""
    said, calls = [], []
    rest = text
    while form.trigger in rest:
        before, _, after = rest.partition(form.trigger)
        said.append(before)
        call, rest = _read_call(after if form.before.strip() else form.trigger + after, tools, form)
        calls.append(call)
    return "".join([*said, rest]).strip(), calls


def _read_call(text: str, tools: ToolSet, form: CallFormat) -> tuple[PreparedCall | InvalidCall, str]:
    """Read a call at the beginning of the text; return it, and the text after it."""
    body = text.lstrip()
    after = form.after.strip()
    try:
        value, end = json.JSONDecoder().raw_decode(body)
        rest = body[end:]
        if after:
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
