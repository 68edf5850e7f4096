"""Parse a streaming answer into text and tool calls.

Text that may become a call is held back. A block that turns out to be no call is returned as text. What is returned
does not depend on how the answer was cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ....protocol.sampling import Constraint
from .bare import BareCalls
from .calls import ToolCall, find_unquoted, skip_separators, typed_call
from .formats import ToolFormat
from .schemas import ArgumentsSchema


@dataclass(frozen=True)
class ParsedToolCalls:
    """Text and calls that are certain."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class _Block:
    """An open block: the blanks before it and its marker, what ends it, and whether its marker is part of a call."""

    before: str
    end: str | None
    is_inner: bool = False


class ToolCallParser:
    """Incremental parser. `names` are the known tools; a block that calls another tool is text.

    `schemas` gives types to the arguments of formats that write them as texts. `reads_bare`: an answer that is a call
    without the format's markers is one too, as `BareCalls` says.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        names: Collection[str],
        schemas: Mapping[str, Constraint] | None = None,
        *,
        reads_bare: bool = False,
    ) -> None:
        self._format = tool_format
        self._schemas = {name: ArgumentsSchema((schemas or {}).get(name)) for name in names}
        self._bare = BareCalls(tool_format, self._schemas) if reads_bare else None
        self._quoted = re.compile(tool_format.quoted, re.DOTALL)
        begins = [(begin, tool_format.end_marker, False) for begin in tool_format.begin_markers]
        self._begins = [*begins, *([(*tool_format.inner, True)] if tool_format.inner else [])]
        self._own_bare = () if reads_bare else tool_format.bare_prefixes
        self._pending = ""  # not returned yet
        self._block: _Block | None = None
        self._searched = 0  # in `_pending`: no end of the block is before it
        self._at_start = True  # only blanks so far
        self._found_call = False
        self._after_call = False  # only blanks since

    def feed(self, text: str) -> ParsedToolCalls:
        if self._bare is not None:
            text = self._bare.feed(text)
        self._pending += text
        return self._parse(is_final=False)

    def finish(self, *, before_call: bool = False) -> ParsedToolCalls:
        """Parse the rest at the end of the output, or of the part of it that ends where a call was opened."""
        bare: list[ToolCall] = []
        if self._bare is not None:
            rest, bare = self._bare.finish(before_call=before_call)
            self._pending += rest
            self._bare = None
        if bare or before_call:
            self._found_call = True
            self._pending = self._pending.rstrip()  # blanks before a call belong to its format
        parsed = self._parse(is_final=True)
        return ParsedToolCalls(parsed.text, [*parsed.calls, *map(self._typed, bare)])

    def _parse(self, *, is_final: bool) -> ParsedToolCalls:
        texts: list[str] = []
        calls: list[ToolCall] = []
        while self._find_block(texts, is_final) and self._end_block(texts, calls, is_final):
            pass
        return self._result(texts, calls)

    def _find_block(self, texts: list[str], is_final: bool) -> bool:
        """Move the text before a block to `texts`; return True if a block is open."""
        if self._block is not None:
            return True
        end = self._format.end_marker
        if self._after_call and end is not None:  # an end without a begin
            rest = self._pending.lstrip()
            if rest.startswith(end):
                self._pending = rest[len(end) :]
            elif end.startswith(rest) and not is_final:
                return False
        found = [(at, *begin) for begin in self._begins if (at := self._pending.find(begin[0])) >= 0]
        if found:
            at, begin, block_end, is_inner = min(found, key=lambda one: one[0])
            before = self._pending[:at].rstrip()
            texts.append(before)
            self._open(_Block(self._pending[len(before) : at + len(begin)], block_end, is_inner), at + len(begin))
            return True
        if self._at_start and self._own_bare and self._pending:
            begun = self._pending.lstrip()
            if any(begun.startswith(start) for start in self._own_bare):
                self._open(_Block("", None), 0)
                return True
            if not is_final and any(start.startswith(begun) for start in self._own_bare):
                return False
        kept = 0 if is_final else self._num_held_back(self._pending)
        self._after_call = self._after_call and not self._pending.strip()
        texts.append(self._pending[: len(self._pending) - kept])
        self._pending = self._pending[len(self._pending) - kept :]
        return False

    def _open(self, block: _Block, at: int) -> None:
        self._block, self._pending, self._searched = block, self._pending[at:], 0

    def _num_held_back(self, text: str) -> int:
        """Return the length of the longest suffix that may begin a marker, with the blanks before it, which belong to
        the call.
        """
        kept = max(
            (size for begin, _, _ in self._begins for size in range(1, len(begin)) if text.endswith(begin[:size])),
            default=0,
        )
        body = text[: len(text) - kept]
        return kept + len(body) - len(body.rstrip())

    def _end_block(self, texts: list[str], calls: list[ToolCall], is_final: bool) -> bool:
        """Parse the block if it is complete; return True if text is left to parse."""
        block = self._block
        assert block is not None
        at = self._find_end(block.end, is_final)
        if at is not None and block.end is not None:
            body = self._pending[:at] + (block.end if block.is_inner else "")
            if (read := self._read(block, body, in_part=False)) is None and is_final:
                read = self._read(block, self._pending, in_part=True)
            if read is None:
                texts.append(block.before + self._pending[: at + len(block.end)])
                read = [], at + len(block.end)
            elif read[1] >= len(body):  # up to the end, and no further block before it
                read = read[0], max(read[1], at + len(block.end))
        elif is_final:
            read = self._read(block, self._pending, in_part=True)
            if read is None:
                texts.append(block.before + self._pending)
                read = [], len(self._pending)
        else:
            return False
        self._block = None
        self._pending = self._pending[read[1] :]
        self._after_call = bool(read[0])
        calls += map(self._typed, read[0])
        return bool(self._pending)

    def _find_end(self, end: str | None, is_final: bool) -> int | None:
        """Return where the block's end marker is: the first one that is not quoted.

        At the end of the output, the first one at all, if the text that quotes the others does not end.
        """
        if end is None:
            return None
        found, self._searched = find_unquoted(self._pending, re.compile(re.escape(end)), self._quoted, self._searched)
        if found is not None:
            return found.start()
        at = self._pending.find(end, self._searched) if is_final else -1
        return at if at >= 0 else None

    def _read(self, block: _Block, body: str, *, in_part: bool) -> tuple[list[ToolCall], int] | None:
        """Return the calls of a block, and where the text after them begins; None if it has none.

        `in_part`: text may follow the calls. Else nothing does but a further block, whose predecessor was not closed.
        """
        marker = block.before.lstrip() if block.is_inner else ""
        try:
            calls, end = self._format.read(marker + body)
        except ValueError:
            return None
        end = max(0, end - len(marker))
        rest = body[skip_separators(body, end) :]
        if not all(call.name in self._schemas for call in calls):
            return None
        if not rest:
            return calls, len(body)
        is_marked = bool(block.before)
        if is_marked and (in_part or any(rest.startswith(begin) for begin, _, _ in self._begins)):
            return calls, end
        return None

    def _typed(self, call: ToolCall) -> ToolCall:
        return typed_call(call, self._schemas[call.name]) if call.has_texts else call

    def _result(self, texts: list[str], calls: list[ToolCall]) -> ParsedToolCalls:
        self._found_call = self._found_call or bool(calls)
        text = "".join(texts)
        if self._found_call:
            text = text if text.strip() else ""  # blanks around calls belong to the format
        if text.strip():
            self._at_start = False
        return ParsedToolCalls(text, calls)
