"""Converts sampling parameters to bodies of OpenAI-compatible endpoints, and their answers to the protocol's values.

A parameter that the endpoint's dialect has no field for is refused, never dropped.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NoReturn, get_args

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.core import Finish
from ...runtime.protocol.errors import RequestError, RuntimeFailed
from ...runtime.protocol.sampling import PARAMETERS, Constraint, Dialect, SamplingParams
from ..types.result_types import closed
from .endpoints.structured_output import OutputForm, output_form, refuse_written_form
from .endpoints.usage import CountedTokens, token_count, usage_of
from .model import OnText, TextEvents
from .transcript import NativeCall

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
_FINISHES: dict[str, Literal["length", "abort"]] = {"length": "length", "content_filter": "abort"}


def sampling_body(sampling: SamplingParams, dialect: Dialect) -> dict[str, Any]:
    """Return the fields of all parameters but the number of tokens and the constraint.

    Raises RequestError naming a parameter that the dialect has no field for.
    """
    body: dict[str, Any] = {"temperature": sampling.temperature}
    for row in PARAMETERS.values():
        value = getattr(sampling, row.name)
        name = row.name_in("openai")
        if name is None or value == row.default:  # without a name: the number of tokens
            continue
        if dialect not in row.dialects:
            takers = " or ".join(repr(one) for one in row.dialects)
            way_out = f"leave it out, or name the server's dialect ({takers})" if takers else "leave it out"
            raise RequestError(
                f"{row.name} = {value!r}: an endpoint of dialect {dialect!r} has no such parameter; {way_out}",
                param=row.name,
                code="unsupported",
            )
        body[name] = msgspec.to_builtins(value, str_keys=True)
    return body


def chat_form(constraint: Constraint) -> OutputForm:
    """Return the form in which a chat asks for the text of a constraint. Raises RequestError if it cannot."""
    refuse_written_form(constraint, "an endpoint of dialect 'openai'")
    form = output_form(constraint, strict=True)
    return _refuse(constraint, "openai", "chat") if form is None else form


def format_body(form: OutputForm) -> dict[str, Any]:
    """Return the field of a chat that holds an output form."""
    schema = {"name": "output", "schema": form.schema, "strict": form.is_strict}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def constraint_body(constraint: Constraint, dialect: Dialect, *, in_chat: bool) -> dict[str, Any]:
    """Return the field of a constraint, but for chats of OpenAI's own dialect. Raises RequestError for none."""
    kind, source = constraint.kind, constraint.source
    is_open = constraint.additional_properties == "schema"
    if kind == "json_schema" and not is_open:
        source = json.dumps(closed(json.loads(source)))  # other servers' defaults differ
    is_compact = (dialect, kind, constraint.whitespace) == ("vllm", "json_schema", "compact")
    sent = msgspec.structs.replace(constraint, whitespace=None) if is_compact else constraint
    refuse_written_form(sent, f"an endpoint of dialect {dialect!r}")
    if is_compact:
        return {"structured_outputs": {"json": json.loads(source), "disable_any_whitespace": True}}
    if kind == "json_schema" and in_chat:
        return format_body(OutputForm(json.loads(source), not is_open))
    match dialect, kind:
        case "vllm", "regex" | "grammar":
            return {"structured_outputs": {kind: source}}
        case "vllm", "json_schema":
            return {"structured_outputs": {"json": json.loads(source)}}
        case "vllm", "choices":
            return {"structured_outputs": {"choice": json.loads(source)}}
        case "sglang", "regex" | "json_schema":
            return {kind: source}
        case "sglang", "choices":
            return {"regex": "|".join(re.escape(choice) for choice in json.loads(source))}
        case "sglang", "grammar":
            return {"ebnf": source}
    return _refuse(constraint, dialect, "chat" if in_chat else "completions")


def _refuse(constraint: Constraint, dialect: Dialect, where: str) -> NoReturn:
    way_out = "put the gen into assistant(...), or set is_chat_model=True"
    if constraint.kind == "grammar":
        way_out = "give a schema or a regex"
    elif constraint.kind == "structural_tag":
        way_out = "an agent needs a chat"
    elif where == "chat":
        way_out = "give a schema"
    raise RequestError(
        f"an endpoint of dialect {dialect!r} cannot constrain {where} to a {constraint.kind}: "
        f"{constraint.source[:80]!r}; {way_out}, or run on a server that can (dialect 'vllm' or 'sglang', a Runtime)",
        param=constraint.kind,
        code="unsupported",
    )


def sequences_of(answer: Any, n: int) -> list[session.Sequence]:
    """Return the sequences of an answer with `n` choices. Raises RuntimeFailed for an answer of another shape."""
    found = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(found, list) or len(found) != n or not all(isinstance(one, dict) for one in found):
        raise RuntimeFailed(f"the endpoint answered {str(answer)[:200]} where {n} choices were asked for")
    counts = counts_of(answer) or CountedTokens()
    texts = [{**one, "text": _text(one)} for one in sorted(found, key=lambda one: token_count(one.get("index")))]
    # The API gives the sum of all samples' tokens: the first sequence gets it.
    return [_sequence(one, CountedTokens() if place else counts) for place, one in enumerate(texts)]


def _text(choice: dict[str, Any]) -> str:
    message = choice.get("message") or {}
    if message.get("refusal") or choice.get("refusal"):
        refuse_answer(str(message.get("refusal") or choice.get("refusal")))
    return str(message.get("content") or choice.get("text") or "")


def refuse_answer(said: str) -> NoReturn:
    """Raise the error of a model that refuses to answer in the form that it was asked for."""
    raise RequestError(f"the model refused to answer: {said[:500]}", code="refused")


def calls_of(answer: Any) -> tuple[NativeCall, ...]:
    """Return the tool calls of an answer's first choice."""
    choice = min(answer["choices"], key=lambda one: token_count(one.get("index")))
    found = (choice.get("message") or choice).get("tool_calls") or ()
    return tuple(
        NativeCall(
            str(call.get("id") or f"call_{index}"),
            str(call["function"].get("name")),
            str(call["function"].get("arguments") or "{}"),
            call,
        )
        for index, call in enumerate(found)
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    )


def _sequence(choice: dict[str, Any], counts: CountedTokens) -> session.Sequence:
    stop = choice.get("matched_stop", choice.get("stop_reason"))  # SGLang's and vLLM's name
    return counts.sequence(choice["text"], Finish(_FINISHES.get(str(choice.get("finish_reason")), "stop"), stop))


class CompletionEvents(TextEvents):
    """Collects the events of one streamed choice."""

    def __init__(self, on_text: OnText) -> None:
        super().__init__(on_text)
        self._usage: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._refusal = ""

    def take(self, event: Any) -> None:
        if not isinstance(event, dict):
            raise RuntimeFailed(f"the endpoint sent {str(event)[:200]} as an event")
        self._usage.update(event.get("usage") or {})
        for choice in (event.get("choices") or ())[:1]:
            delta = choice.get("delta") or {}
            self.give(delta.get("content") if "delta" in choice else choice.get("text"))
            self._refusal += delta.get("refusal") or ""
            for part in delta.get("tool_calls") or ():
                self._add_call(part)
            if choice.get("finish_reason"):
                self._last.update(choice)

    def answer(self) -> dict[str, Any]:
        """Return the answer as it is without streaming, with the text in `text`."""
        calls = [call for _, call in sorted(self._calls.items())]
        choice = {**self._last, "text": self.text, "tool_calls": calls, "refusal": self._refusal}
        return {"choices": [choice], "usage": self._usage}

    def _add_call(self, part: dict[str, Any]) -> None:
        """Add a part of a call: its id and name come first, then its arguments in pieces."""
        self.has_text = True
        call = self._calls.setdefault(
            token_count(part.get("index")), {"type": "function", "function": {"name": "", "arguments": ""}}
        )
        call |= {key: value for key, value in part.items() if key not in ("index", "function") and value is not None}
        for key, value in (part.get("function") or {}).items():
            if isinstance(value, str):
                call["function"][key] = call["function"].get(key, "") + value


def counts_of(answer: Any) -> CountedTokens | None:
    """Return the tokens of an answer, None if it does not say them."""
    if (usage := usage_of(answer)) is None:
        return None
    details = usage.get("prompt_tokens_details")
    return CountedTokens(
        prompt=token_count(usage.get("prompt_tokens")),
        cached=token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        completion=token_count(usage.get("completion_tokens")),
    )


def scores_of(logprobs: Any, before: str, choice: str) -> list[float]:
    """Return the log-probabilities of a choice's tokens; one that spans its boundary with `before` counts in full."""
    if not logprobs or not logprobs.get("token_logprobs") or not logprobs.get("text_offset"):
        raise RequestError(
            "the endpoint gives no log-probabilities of a prompt (echo with logprobs), so a select cannot be scored",
            param="choices",
            code="unsupported",
        )
    starts = logprobs["text_offset"]
    ends = [*starts[1:], len(before) + len(choice)]
    values = [
        value or 0.0  # None for the very first token, which counts the same for all
        for value, start, end in zip(logprobs["token_logprobs"], starts, ends, strict=False)
        if end > len(before) and start < len(before) + len(choice)
    ]
    if not values:
        raise RuntimeFailed(f"the endpoint scored no token of {choice!r}")
    return values
