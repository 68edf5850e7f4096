"""The answers of an OpenAI-compatible endpoint as the protocol's own values. Sends nothing."""

from __future__ import annotations

from typing import Any, Literal

from ...runtime.protocol import session
from ...runtime.protocol.core import Finish
from ...runtime.protocol.errors import RequestError, RuntimeFailed

_FINISHES: dict[str, Literal["length", "abort"]] = {"length": "length", "content_filter": "abort"}


def sequences_of(answer: Any, n: int) -> list[session.Sequence]:
    found = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(found, list) or len(found) != n:
        raise RuntimeFailed(f"the endpoint answered {str(answer)[:200]} where {n} choices were asked for")
    usage = answer.get("usage") or {}
    texts = [{**one, "text": _text(one)} for one in sorted(found, key=lambda one: int(one.get("index", 0)))]
    # The API tells the sum of all samples' tokens: it stands with the first.
    return [sequence_of(one, {} if place else usage) for place, one in enumerate(texts)]


def _text(choice: dict[str, Any]) -> str:
    return str((choice.get("message") or {}).get("content") or choice.get("text") or "")


def sequence_of(choice: dict[str, Any], usage: dict[str, Any]) -> session.Sequence:
    stop = choice.get("matched_stop", choice.get("stop_reason"))  # SGLang's and vLLM's name
    return session.Sequence(
        text=choice["text"],
        ids=[],
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        finish=Finish(_FINISHES.get(str(choice.get("finish_reason")), "stop"), stop),
    )


def scores_of(logprobs: Any, before: str, choice: str) -> list[float]:
    """The log-probabilities of the choice's tokens; one that spans the seam counts in full."""
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
