"""Parse a streaming answer into text and tool calls.

Text that may become a call is held back. A block that turns out to be no call is returned as text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ....protocol.sampling import Constraint
from .calls import ToolCall, typed_call
from .formats import ToolFormat


@dataclass(frozen=True)
class ParsedToolCalls:
    """Text and calls that are certain."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class ToolCallParser:
    """Incremental parser. `names` are the known tools; a block that calls another tool is text.

    `schemas` gives types to the arguments of formats that write them as texts.
    """

    def __init__(
        self, tool_format: ToolFormat, names: Collection[str], schemas: Mapping[str, Constraint] | None = None
    ) -> None:
        self._format = tool_format
        self._names = names
        self._schemas = schemas or {}
        self._pending = ""  # not returned yet
        self._block: str | None = None  # inside a block: the blanks before it and its marker
        self._at_start = True  # only blanks so far
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
        """Parse the rest at the end of the output."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        if self._block is not None:
            self._parse_block(self._pending, "", texts, calls)
        else:
            texts.append(self._pending)
        self._pending, self._block = "", None
        return self._result(texts, calls)

    def _find_block(self, texts: list[str]) -> bool:
        """Move the text before a block to `texts`; return True if a block begins."""
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
        """Return the length of the longest suffix that may begin a marker, with the blanks before it, which belong to
        the call.
        """
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
        """Parse the block if it is complete; return True then."""
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
            calls += [self._typed(call) if call.has_texts else call for call in read]
        else:
            texts.append(f"{self._block}{body}{end}")

    def _typed(self, call: ToolCall) -> ToolCall:
        schema = self._schemas.get(call.name)
        return typed_call(call, None if schema is None else schema.source)

    def _result(self, texts: list[str], calls: list[ToolCall]) -> ParsedToolCalls:
        self._found_call = self._found_call or bool(calls)
        text = "".join(texts)
        if self._found_call:
            text = text if text.strip() else ""  # blanks around calls belong to the format
        if text.strip():
            self._at_start = False
        return ParsedToolCalls(text, calls)
