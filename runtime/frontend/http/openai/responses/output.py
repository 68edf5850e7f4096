"""Build output items of the Responses API, and the stream events on the way."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from .....protocol.sampling import TokenLogprob
from ....chat.request import ChatDelta, ToolCallDelta
from .custom_tools import InputReader

Event = dict[str, Any]
Logprobs = Callable[[list[TokenLogprob]], list[dict[str, Any]]]


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


class OutputBuilder:
    """Converts chat deltas to events, without sequence numbers. One item is open at a time."""

    def __init__(
        self,
        logprobs: Logprobs | None,
        namespaced_names: Mapping[str, tuple[str, str]],
        custom_names: Collection[str],
    ) -> None:
        """`logprobs` formats the log-probabilities of text tokens; None omits them. `namespaced_names` are namespace
        and name of functions by the names that the model calls, `custom_names` those of custom tools."""
        self.items: list[dict[str, Any]] = []
        self._logprobs = logprobs
        self._namespaced_names = namespaced_names
        self._custom_names = custom_names
        self._input = InputReader()  # of the open call of a custom tool
        self._open: dict[str, Any] | None = None  # the last of `items` while it is open

    @property
    def text(self) -> str:
        return "".join(item["content"][0]["text"] for item in self.items if item["type"] == "message")

    def feed(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.reasoning:
            yield from self._part("reasoning", delta.reasoning, [])
        if delta.content:
            values = [] if self._logprobs is None else self._logprobs(delta.logprobs or [])
            yield from self._part("message", delta.content, values)
        for call in delta.calls:
            yield from self._call(call)

    def finish(self, status: str) -> Iterator[Event]:
        """Close the last item. `status` is "completed", or "incomplete" when the output was cut."""
        yield from self._close(status)
        if not self.items and status == "completed":  # an empty answer is a message too
            yield from self._part("message", "", [])
            yield from self._close(status)

    def _part(self, kind: str, text: str, values: list[dict[str, Any]]) -> Iterator[Event]:
        name = "output_text" if kind == "message" else "reasoning_text"
        if self._open is None or self._open["type"] != kind:
            yield from self._close("completed")
            part: dict[str, Any] = {"type": name, "text": ""}
            if kind == "message":
                # The phase is known at the end: commentary if a call follows.
                begun: dict[str, Any] = {
                    "type": kind,
                    "id": new_id("msg"),
                    "role": "assistant",
                    "phase": None,
                    "content": [],
                }
                yield self._begin(begun)
                part |= {"annotations": [], "logprobs": []}
            else:
                yield self._begin({"type": kind, "id": new_id("rs"), "summary": [], "content": []})
            yield self._event("response.content_part.added", content_index=0, part=dict(part))
            assert self._open is not None
            self._open["content"].append(part)
        assert self._open is not None
        grown = self._open["content"][0]
        grown["text"] += text
        more: dict[str, Any] = {}
        if kind == "message":
            grown["logprobs"] += values
            more["logprobs"] = values
        if text:
            yield self._event(f"response.{name}.delta", content_index=0, delta=text, **more)

    def _call(self, call: ToolCallDelta) -> Iterator[Event]:
        if call.id is not None:
            yield from self._close("completed", phase="commentary")
            if call.name in self._custom_names:
                self._input = InputReader()
                custom = {"type": "custom_tool_call", "id": new_id("ctc"), "call_id": call.id, "name": call.name}
                yield self._begin(custom | {"input": ""})
                yield from self._add_input(self._input.feed(call.arguments))
                return
            item = {"type": "function_call", "id": new_id("fc"), "call_id": call.id, "name": call.name}
            if call.name in self._namespaced_names:
                item["namespace"], item["name"] = self._namespaced_names[call.name]
            yield self._begin(item | {"arguments": ""})
        assert self._open is not None
        if self._open["type"] == "custom_tool_call":
            yield from self._add_input(self._input.feed(call.arguments))
            return
        self._open["arguments"] += call.arguments
        if call.arguments:
            yield self._event("response.function_call_arguments.delta", delta=call.arguments)

    def _add_input(self, text: str) -> Iterator[Event]:
        assert self._open is not None
        self._open["input"] += text
        if text:
            yield self._event("response.custom_tool_call_input.delta", delta=text)

    def _begin(self, item: dict[str, Any]) -> Event:
        self._open = item | {"status": "in_progress"}
        self.items.append(self._open)
        shown = {**self._open, "content": []} if "content" in item else dict(self._open)
        return {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": shown}

    def _close(self, status: str, phase: str = "final_answer") -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        if item["type"] == "function_call":
            name, arguments = item["name"], item["arguments"]
            yield self._event("response.function_call_arguments.done", name=name, arguments=arguments)
        elif item["type"] == "custom_tool_call":
            yield from self._add_input(self._input.finish())
            yield self._event("response.custom_tool_call_input.done", input=item["input"])
        else:
            part = item["content"][0]
            more = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._event(f"response.{part['type']}.done", content_index=0, text=part["text"], **more)
            yield self._event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        if item["type"] == "message":
            item["phase"] = phase
        self._open = None
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _event(self, kind: str, **fields: Any) -> Event:
        place = len(self.items) - 1
        return {"type": kind, "item_id": self.items[place]["id"], "output_index": place, **fields}
