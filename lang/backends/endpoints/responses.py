"""Converts generations to bodies of OpenAI's Responses API, and its events to sequences and calls.

A parameter that the API does not have is refused, never dropped.
"""

from __future__ import annotations

from typing import Any, Literal

from ....runtime.protocol import session
from ....runtime.protocol.core import Finish
from ....runtime.protocol.errors import RequestError
from ....runtime.protocol.sampling import PARAMETERS, SamplingParams
from ..model import OnText, TextEvents
from ..stop_cutter import StopCutter
from ..transcript import NativeCall, Transcript
from .asked_output import AskedOutput
from .native_tools import NativeTools, function_bodies
from .usage import CountedTokens, token_count, usage_of

_TAKEN = ("temperature", "top_p", "max_new_tokens", "stop")


def response_body(model: str, transcript: Transcript, sampling: SamplingParams, asked: AskedOutput) -> dict[str, Any]:
    """Return the body of a request. Raises RequestError naming a parameter that the API does not have."""
    for row in PARAMETERS.values():
        value = getattr(sampling, row.name)
        if row.name not in _TAKEN and value != row.default:
            raise RequestError(
                f"{row.name} = {value!r}: the Responses API has no such parameter; leave it out, or use api='chat'",
                param=row.name,
                code="unsupported",
            )
    body: dict[str, Any] = {"model": model, "input": _input(transcript), "store": False}
    body["max_output_tokens"] = sampling.max_new_tokens
    for name in ("temperature", "top_p"):
        if (value := getattr(sampling, name)) != PARAMETERS[name].default:
            body[name] = value
    if (form := asked.form) is not None:
        schema = {"type": "json_schema", "name": "output", "schema": form.schema, "strict": form.is_strict}
        body["text"] = {"format": schema}
    if asked.tools is not None:
        body |= _tools(asked.tools)
    return body | {"stream": True}


def _input(transcript: Transcript) -> list[dict[str, Any]]:
    if not transcript.has_roles:
        return [{"role": "user", "content": transcript.text}]
    items: list[dict[str, Any]] = []
    for message in transcript.chat()[:-1]:
        if message.call is not None:
            items.append({"type": "function_call_output", "call_id": message.call, "output": message.content})
            continue
        if message.said or not message.calls:
            items.append({"role": message.role, "content": message.said})
        items += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.calls
        ]
    return items


def _tools(tools: NativeTools) -> dict[str, Any]:
    functions = [{"type": "function", "strict": False, **one} for one in function_bodies(tools, strict=True)]
    body: dict[str, Any] = {"tools": functions}
    if tools.choice in ("required", "none"):
        body["tool_choice"] = tools.choice
    elif tools.choice != "auto":
        body["tool_choice"] = {"type": "function", "name": tools.choice}
    return body


class ResponseEvents(TextEvents):
    """Collects the events of a streamed response; its text ends before a stop string of `cutter`."""

    def __init__(self, on_text: OnText, cutter: StopCutter) -> None:
        super().__init__(on_text)
        self._cutter = cutter
        self._response: dict[str, Any] = {}
        self._refusal = ""

    def take(self, event: Any) -> Literal["end", "leave"] | None:
        match event.get("type") if isinstance(event, dict) else None:
            case "response.output_text.delta":
                text = str(event.get("delta") or "")
                self.has_text |= bool(text)  # also when the cutter holds it back
                self.give(self._cutter.take(text))
                return None if self._cutter.found is None else "leave"
            case "response.refusal.delta":
                self._refusal += str(event.get("delta") or "")
            case "response.completed" | "response.incomplete":
                self.give(self._cutter.end())
                self._response = dict(event.get("response") or {})
                return "end"
            case "response.failed" | "error":
                about = (event.get("response") or event).get("error") or event
                raise RequestError(f"the endpoint failed: {str(about)[:500]}", code="failed")
        return None

    def answer(self) -> dict[str, Any]:
        """Return the response, with its text in `text` and the stop that ended it in `matched`."""
        return {**self._response, "text": self.text, "refusal": self._refusal, "matched": self._cutter.found}


def response_sequence(answer: dict[str, Any]) -> session.Sequence:
    """Return the sequence of a response. Raises RequestError if the model refused to answer."""
    if answer["refusal"]:
        raise RequestError(f"the model refused to answer: {answer['refusal'][:500]}", code="refused")
    counts = response_counts(answer) or CountedTokens()
    reason = (answer.get("incomplete_details") or {}).get("reason")
    if reason == "max_output_tokens" and answer["matched"] is None:
        return counts.sequence(answer["text"], Finish("length"))
    return counts.sequence(answer["text"], Finish("abort" if reason == "content_filter" else "stop", answer["matched"]))


def response_calls(answer: dict[str, Any]) -> tuple[NativeCall, ...]:
    """Return the tool calls of a response."""
    return tuple(
        NativeCall(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or "{}"))
        for item in answer.get("output") or ()
        if isinstance(item, dict) and item.get("type") == "function_call"
    )


def response_counts(answer: Any) -> CountedTokens | None:
    """Return the tokens of a response, None if it does not say them."""
    if (usage := usage_of(answer)) is None:
        return None
    details = usage.get("input_tokens_details")
    return CountedTokens(
        prompt=token_count(usage.get("input_tokens")),
        cached=token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        completion=token_count(usage.get("output_tokens")),
    )
