"""Converts transcripts and sampling parameters to bodies of Anthropic's messages API, and its answers to sequences.

A parameter that the API does not have is refused, never dropped.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from ...runtime.protocol import session
from ...runtime.protocol.core import Finish
from ...runtime.protocol.errors import RequestError, RuntimeFailed
from ...runtime.protocol.sampling import PARAMETERS, Constraint, SamplingParams
from .endpoints.native_tools import NativeTools, arguments_of
from .endpoints.structured_output import OutputForm, output_form, refuse_written_form
from .endpoints.usage import CountedTokens, token_count, usage_of
from .model import OnText, TextEvents
from .stop_cutter import StopCutter
from .transcript import ChatMessage, NativeCall, Transcript

MAX_TEMPERATURE = 1.0
ROLES = ("system", "user", "assistant")
_TAKEN = ("max_new_tokens", "stop")
_DRAW = ("temperature", "top_k", "top_p")
_FINISHES: dict[str, Literal["length", "abort"]] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "abort",
}


def messages_body(transcript: Transcript) -> tuple[dict[str, Any], str]:
    """Return the fields of the transcript, and the white space at its end, which the API does not take.

    Leading system messages become `system`. Text without roles is one user message. Raises RequestError for a role
    that the API does not have, and where no message of the assistant is open.
    """
    if not transcript.has_roles:
        return {"messages": [{"role": "user", "content": transcript.text}]}, ""
    *messages, opened = transcript.chat()
    for message in messages:
        if message.role not in ROLES and message.call is None:
            raise RequestError(
                f"Anthropic's API has no role {message.role!r}: use 'user', or s.agent for the results of tools",
                param="role",
                code="unsupported",
            )
    num_system = next((index for index, each in enumerate(messages) if each.role != "system"), len(messages))
    system = "\n\n".join(message.content for message in messages[:num_system])
    prefill = opened.content.rstrip()
    bodies: list[dict[str, Any]] = []
    for message in messages[num_system:]:
        body = _message_body(message)
        if message.call is not None and bodies and isinstance(bodies[-1]["content"], list) and _is_result(bodies[-1]):
            bodies[-1]["content"] += body["content"]  # the results of one turn are one message
        else:
            bodies.append(body)
    if prefill:
        bodies.append({"role": "assistant", "content": prefill})
    return {"messages": bodies} | ({"system": system} if system else {}), opened.content[len(prefill) :]


def _message_body(message: ChatMessage) -> dict[str, Any]:
    if message.call is not None:
        result = {"type": "tool_result", "tool_use_id": message.call, "content": message.content}
        return {"role": "user", "content": [result]}
    if not message.calls:
        return {"role": message.role, "content": message.content}
    said = [{"type": "text", "text": message.said}] if message.said.strip() else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)} for call in message.calls
    ]
    return {"role": message.role, "content": [*said, *calls]}


def _is_result(body: dict[str, Any]) -> bool:
    return bool(body["role"] == "user")


def tools_body(tools: NativeTools) -> dict[str, Any]:
    """Return the fields that offer tools."""
    offered = []
    for one in tools.tools:
        function = one["function"]
        described = {"description": function["description"]} if function.get("description") else {}
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        offered.append({"name": function["name"], **described, "input_schema": schema})
    kinds = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}
    return {"tools": offered, "tool_choice": kinds.get(tools.choice, {"type": "tool", "name": tools.choice})}


def output_form_of(constraint: Constraint, *, is_begun: bool) -> OutputForm:
    """Return the form in which the API is asked for the text of a constraint. Raises RequestError if it cannot be.

    `is_begun`: the message has text before, which the API does not take beside a form.
    """
    refuse_written_form(constraint, "Anthropic's API")
    form = output_form(constraint, strict=False, unbounded=True)
    if form is None:
        raise RequestError(
            f"Anthropic's API cannot constrain text to a {constraint.kind}: {constraint.source[:80]!r}; give a schema "
            "or a regex, or run on a Runtime",
            param=constraint.kind,
            code="unsupported",
        )
    if is_begun:
        raise RequestError(
            "Anthropic's API takes no beginning of a message whose rest is constrained: let the gen stand first in "
            "the message",
            param="role",
            code="unsupported",
        )
    return form


def sampling_body(sampling: SamplingParams, *, draws: bool) -> dict[str, Any]:
    """Return the fields of the sampling parameters. Defaults are left out, since some models take no others.

    `draws`: the API's version takes parameters of the draw. Raises RequestError naming a parameter that the API does
    not have, or a temperature beyond its range.
    """
    taken = (*_TAKEN, *(_DRAW if draws else ()))
    for row in PARAMETERS.values():
        value = getattr(sampling, row.name)
        if row.name not in taken and value != row.default:
            raise RequestError(
                f"{row.name} = {value!r}: Anthropic's API has no such parameter"
                + (" in this version" if row.name in _DRAW else "")
                + "; leave it out",
                param=row.name,
                code="unsupported",
            )
    if sampling.temperature > MAX_TEMPERATURE:
        raise RequestError(
            f"temperature = {sampling.temperature}: Anthropic's API takes 0 to {MAX_TEMPERATURE}", param="temperature"
        )
    body: dict[str, Any] = {"max_tokens": sampling.max_new_tokens}
    if sampling.temperature != PARAMETERS["temperature"].default:
        body["temperature"] = sampling.temperature
    if sampling.top_p != PARAMETERS["top_p"].default:
        body["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k
    if sent := [stop for stop in sampling.stop if stop.strip()]:
        body["stop_sequences"] = sent
    return body


def own_stops(sampling: SamplingParams) -> tuple[str, ...]:
    """Return the stop strings of white space only, which the API refuses and the client looks for by itself."""
    return tuple(stop for stop in sampling.stop if not stop.strip())


class MessageEvents(TextEvents):
    """Collects the events of a streamed message; its text ends before a stop string of `cutter`."""

    def __init__(self, on_text: OnText, cutter: StopCutter) -> None:
        super().__init__(on_text)
        self._cutter = cutter
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def take(self, event: Any) -> Literal["end", "leave"] | None:
        kind = event.get("type") if isinstance(event, dict) else None
        match kind:
            case "message_start":
                self._message = dict(event.get("message") or {})
            case "content_block_delta" if (event.get("delta") or {}).get("type") == "text_delta":
                text = str(event["delta"].get("text") or "")
                self.has_text |= bool(text)  # also when the cutter holds it back
                self.give(self._cutter.take(text))
                return None if self._cutter.found is None else "leave"
            case "content_block_start" if (event.get("content_block") or {}).get("type") == "tool_use":
                self.has_text = True
                block = event["content_block"]
                self._calls[token_count(event.get("index"))] = {**block, "arguments": ""}
            case "content_block_delta" if (event.get("delta") or {}).get("type") == "input_json_delta":
                if (call := self._calls.get(token_count(event.get("index")))) is not None:
                    call["arguments"] += str(event["delta"].get("partial_json") or "")
            case "message_delta":
                self._message |= event.get("delta") or {}
                self._message["usage"] = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}
            case "message_stop":
                self.give(self._cutter.end())
                return "end"
        return None

    def answer(self) -> dict[str, Any]:
        """Return the message as it is without streaming."""
        return {**self._message, "content": [{"type": "text", "text": self.text}, *self._calls.values()]}


def sequence_of(answer: Any, cutter: StopCutter) -> session.Sequence:
    """Return the sequence of a message. Raises RuntimeFailed for an answer of another shape."""
    blocks = answer.get("content") if isinstance(answer, dict) else None
    if not isinstance(blocks, list):
        raise RuntimeFailed(f"the endpoint answered {str(answer)[:200]} where a message was asked for")
    texts = [block for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    text = "".join(str(block.get("text") or "") for block in texts)
    counts = counts_of(answer) or CountedTokens()
    reason, matched = answer.get("stop_reason"), answer.get("stop_sequence")
    if cutter.found is not None:
        return counts.sequence(text, Finish("stop", cutter.found))
    return counts.sequence(text, Finish(_FINISHES.get(str(reason), "stop"), matched))


def calls_of(answer: dict[str, Any]) -> tuple[NativeCall, ...]:
    """Return the tool calls of a collected message."""
    blocks = [block for block in answer["content"] if block.get("type") == "tool_use"]
    return tuple(
        NativeCall(
            str(block.get("id")), str(block.get("name")), block["arguments"] or json.dumps(block.get("input") or {})
        )
        for block in blocks
    )


def counts_of(answer: Any) -> CountedTokens | None:
    """Return the tokens of a message, None if it does not say them. Prompt tokens include those of the cache."""
    if (usage := usage_of(answer)) is None:
        return None
    cached = token_count(usage.get("cache_read_input_tokens"))
    prompt = cached + token_count(usage.get("cache_creation_input_tokens")) + token_count(usage.get("input_tokens"))
    return CountedTokens(prompt, cached, token_count(usage.get("output_tokens")))
