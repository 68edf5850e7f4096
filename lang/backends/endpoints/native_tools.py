"""Tool calls as endpoints have them, beside the text in which agents read and write them.

A structural tag says which tools a turn may call, and how a call is written. The endpoint gets the tools. Calls that it
answers are written into the text, and those of earlier turns are sent as calls again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ....runtime.protocol.sampling import Constraint
from ..transcript import ChatMessage, NativeCall, Transcript
from .structured_output import output_form

NO_CALL = r"[^\s{\[<`][^{]*"  # the regex of a turn that must not be a call, in any form
_BEGIN = re.compile(r'(.*)\{"name": ("(?:[^"\\]|\\.)*"), "(\w+)": ', re.DOTALL)


@dataclass(frozen=True)
class CallText:
    """How a call is written: `before`, `{"name": ..., ARGUMENTS: ...}`, `after`."""

    before: str = "<tool_call>\n"
    arguments: str = "arguments"
    after: str = "\n</tool_call>"

    def written(self, said: str, calls: Sequence[NativeCall]) -> str:
        """Return the text of a turn: what was said, then the calls."""
        texts = [
            f'{self.before}{{"name": {json.dumps(call.name, ensure_ascii=False)}, '
            f'"{self.arguments}": {call.arguments}}}{self.after}'
            for call in calls
        ]
        return "\n".join(filter(None, (said, *texts)))


@dataclass(frozen=True)
class NativeTools:
    """The tools of a turn, in OpenAI's form, and whether it must call: "auto", "required", "none" or a tool's name."""

    tools: tuple[dict[str, Any], ...]
    choice: str = "auto"
    text: CallText = field(default_factory=CallText)


def native_tools(transcript: Transcript, constraint: Constraint | None) -> NativeTools | None:
    """Return the tools that the next text may call: those of its structural tag, and those that the chat offers."""
    offered = {one["function"]["name"]: one for one in json.loads(transcript.offered_tools or "[]")}
    if constraint is not None and constraint.kind == "structural_tag":
        return _tools_of_tag(json.loads(constraint.source)["format"], offered)
    if not offered:
        return None
    return NativeTools(tuple(offered.values()), "auto" if constraint is None else "none")


def without_tools(constraint: Constraint | None) -> Constraint | None:
    """Return the constraint that is left once the tools are sent."""
    if constraint is None or constraint.kind == "structural_tag":
        return None
    return None if (constraint.kind, constraint.source) == ("regex", NO_CALL) else constraint


def _tools_of_tag(form: dict[str, Any], offered: dict[str, dict[str, Any]]) -> NativeTools:
    """Return the tools of a tag, as the chat describes them; the chat's others only where one is chosen by name."""
    tools: dict[str, dict[str, Any]] = {}
    text = CallText()
    for tag in form["tags"]:
        match = _BEGIN.fullmatch(tag["begin"])
        assert match is not None, f"no call begins with {tag['begin']!r}"
        name = json.loads(match[2])
        text = CallText(match[1], match[3], tag["end"].removeprefix("}"))
        schema = tag["content"]["json_schema"]
        bare = {"type": "function", "function": {"name": name, "parameters": schema}}
        tools[name] = offered.get(name, bare)
    if form["type"] == "triggered_tags":
        return NativeTools(tuple(tools.values()), "auto", text)
    if len(tools) == 1 and tools.keys() < offered.keys():
        return NativeTools(tuple(offered.values()), next(iter(tools)), text)
    return NativeTools(tuple(tools.values()), "required", text)


def function_bodies(tools: NativeTools, *, strict: bool) -> list[dict[str, Any]]:
    """Return the tools' functions. With `strict` those are marked whose arguments OpenAI enforces as they are."""
    functions = [dict(one["function"]) for one in tools.tools]
    if strict:
        for function in functions:
            schema = function.get("parameters") or {}
            form = output_form(Constraint("json_schema", json.dumps(schema)), strict=True)
            if form is not None and form.is_strict and form.schema == schema:
                function["strict"] = True
    return functions


def arguments_of(call: NativeCall) -> dict[str, Any]:
    """Return the arguments of a call as an object; an empty one for text that was cut off."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def openai_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat completions take it."""
    body: dict[str, Any] = {"role": message.role, "content": message.said}
    if message.calls:
        body["content"] = message.said or None
        body["tool_calls"] = [
            call.whole
            or {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return body if message.call is None else body | {"tool_call_id": message.call}


def openai_tools(tools: NativeTools, *, strict: bool) -> dict[str, Any]:
    """Return the fields of chat completions that offer tools."""
    body: dict[str, Any] = {
        "tools": [{"type": "function", "function": one} for one in function_bodies(tools, strict=strict)]
    }
    if tools.choice in ("required", "none"):
        body["tool_choice"] = tools.choice
    elif tools.choice != "auto":
        body["tool_choice"] = {"type": "function", "function": {"name": tools.choice}}
    return body
