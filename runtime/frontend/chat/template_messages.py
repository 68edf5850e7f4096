"""Convert messages for chat templates that differ from the usual form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from typing import Any


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Replace call ids by hashes of nine characters, the only ids that Mistral's templates accept."""

    def short(call_id: str) -> str:
        return sha256(call_id.encode()).hexdigest()[:9]

    changed = []
    for message in messages:
        given = dict(message)
        if "tool_call_id" in given:
            given["tool_call_id"] = short(given["tool_call_id"])
        if "tool_calls" in given:
            given["tool_calls"] = [{**call, "id": short(call["id"])} for call in given["tool_calls"]]
        changed.append(given)
    return changed


def for_harmony(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages for gpt-oss's template: reasoning is `thinking`, and a message has one call, which its result
    follows.

    A message with calls has reasoning or content there, not both; the content is appended to the reasoning.
    """
    changed: list[dict[str, Any]] = []
    results: dict[str, Mapping[str, Any]] = {}  # of the last message with several calls, until they are placed
    for index, message in enumerate(messages):
        if message["role"] == "tool" and results.pop(message.get("tool_call_id", ""), None) is not None:
            continue
        given = dict(message)
        if reasoning := given.pop("reasoning_content", None):
            given["thinking"] = reasoning
        calls = given.get("tool_calls") or []
        if calls and given.get("thinking") and given.get("content"):
            given["content"] = f"{given.pop('thinking')}\n\n{given['content']}"
        if len(calls) < 2:
            changed.append(given)
            continue
        following = takewhile(lambda each: each["role"] == "tool", messages[index + 1 :])
        results = {result.get("tool_call_id", ""): result for result in following}
        for number, call in enumerate(calls):
            head = given if number == 0 else {"role": "assistant", "content": ""}
            changed.append({**head, "tool_calls": [call]})
            if call["id"] in results:
                changed.append(dict(results[call["id"]]))
    return changed
