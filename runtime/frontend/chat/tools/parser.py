"""A model's answer, as it streams, parted into text and tool calls.

What may yet turn out to be a call is held back; what looked like one and is none comes out as the text that it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from .calls import ToolCall
from .formats import ToolFormat


@dataclass(frozen=True)
class ParsedToolCalls:
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class ToolCallParser:
    """`names`: the tools that there are; a block that calls another is text."""

    def __init__(self, tool_format: ToolFormat, names: Collection[str]) -> None:
        self._format = tool_format
        self._names = names
        self._pending = ""  # not given out yet
        self._block: str | None = None  # the marker that opened it and the blanks before, while inside one
        self._at_start = True  # nothing but blanks so far
        self._found_call = False

    def feed(self, text: str) -> ParsedToolCalls:
        self._pending += text
        texts: list[str] = []
        calls: list[ToolCall] = []
        while self._block is not None or self._find_block(texts):
            if not self._end_block(texts, calls):
                break
        return self._result(texts, calls)

    def finish(self) -> ParsedToolCalls:
        """The answer is over: what is left of it."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        if self._block is not None:
            self._parse_block(self._pending, "", texts, calls)
        else:
            texts.append(self._pending)
        self._pending, self._block = "", None
        return self._result(texts, calls)

    def _find_block(self, texts: list[str]) -> bool:
        """Give out the text before a block; whether one begins."""
        found = [(at, begin) for begin in self._format.begin_markers if (at := self._pending.find(begin)) >= 0]
        if found:
            at, begin = min(found)
            before = self._pending[:at].rstrip()
            texts.append(before)
            self._block = self._pending[len(before) : at + len(begin)]
            self._pending = self._pending[at + len(begin) :]
            return True
        if self._at_start and self._format.bare_prefixes:
            begun = self._pending.lstrip()
            if any(begun.startswith(start) for start in self._format.bare_prefixes):
                self._block = ""
                return True
            if any(start.startswith(begun) for start in self._format.bare_prefixes):
                return False
        kept = self._num_held_back(self._pending)
        texts.append(self._pending[: len(self._pending) - kept])
        self._pending = self._pending[len(self._pending) - kept :]
        return False

    def _num_held_back(self, text: str) -> int:
        """The longest end of `text` that may begin a marker, with the blanks before it: they go with the call."""
        kept = max(
            (
                size
                for begin in self._format.begin_markers
                for size in range(1, len(begin))
                if text.endswith(begin[:size])
            ),
            default=0,
        )
        body = text[: len(text) - kept]
        return kept + len(body) - len(body.rstrip())

    def _end_block(self, texts: list[str], calls: list[ToolCall]) -> bool:
        """Read the block if it is over; whether it is."""
        end = self._format.end_marker if self._block else None
        if end is None:
            return False
        body, found, after = self._pending.partition(end)
        if found:
            self._parse_block(body, end, texts, calls)
            self._pending, self._block = after, None
        return bool(found)

    def _parse_block(self, body: str, end: str, texts: list[str], calls: list[ToolCall]) -> None:
        try:
            read = self._format.parse(body)
        except ValueError:
            read = []
        if read and all(call.name in self._names for call in read):
            calls += read
        else:
            texts.append(f"{self._block}{body}{end}")

    def _result(self, texts: list[str], calls: list[ToolCall]) -> ParsedToolCalls:
        self._found_call = self._found_call or bool(calls)
        text = "".join(texts)
        if self._found_call:
            text = text if text.strip() else ""  # blanks around calls are the format's
        if text.strip():
            self._at_start = False
        return ParsedToolCalls(text, calls)
