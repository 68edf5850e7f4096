"""Parse answers in harmony, the format of gpt-oss: messages on channels, as they stream.

A message is `<|start|>ROLE<|channel|>NAME<|message|>BODY` and one of `<|end|>`, `<|call|>` or `<|return|>`. The role or
the channel may be followed by ` to=RECIPIENT`, the channel by the body's type. `analysis` is reasoning; `final`, and
`commentary` without a recipient, are content; a message to `functions.NAME` is a tool call. Models are known to leave
out the first marker, the end and `functions.`, and to write `json` right behind the name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...protocol.sampling import Constraint
from .tools.bare import BareCalls
from .tools.calls import STRING, ToolCall, find_unquoted, read_arguments
from .tools.formats import FORMATS
from .tools.schemas import ArgumentsSchema

CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ANSWER = "<|start|>assistant"  # ends a prompt, and precedes each further message of an answer
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
TO_FUNCTION = "to=functions."
_START = "<|start|>"
_ENDS = (END, CALL, RETURN, _START, CHANNEL)  # the last two begin another message, whose predecessor was not closed
_END = re.compile("|".join(map(re.escape, _ENDS)))
_QUOTED = re.compile(STRING, re.DOTALL)
_HEADER_STARTS = (CHANNEL, _START, "to=", f"commentary {TO_FUNCTION}", f"analysis {TO_FUNCTION}")
_MAX_HEADER = 512  # characters; a longer header is text

Place = Literal["start", "analysis", "final"]  # where an answer begins: before a header, or in a message's body


@dataclass
class HarmonyOutput:
    """Text, reasoning and calls that are certain."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class HarmonyParser:
    """Incremental parser. `names` are the known tools: a call of another one is content.

    `keeps_reasoning`: the reasoning stays in the content, with its markers. `reads_bare`: content that is a call
    without the format's markers is one, as `BareCalls` says with `schemas`.
    """

    def __init__(
        self,
        names: Collection[str],
        schemas: Mapping[str, Constraint] | None = None,
        *,
        place: Place = "start",
        keeps_reasoning: bool = False,
        reads_bare: bool = False,
    ) -> None:
        self._names = names
        self._keeps_reasoning = keeps_reasoning
        self._bare: BareCalls | None = None  # None too once the answer is known to be more than a bare call
        if reads_bare:
            known = {name: ArgumentsSchema((schemas or {}).get(name)) for name in names}
            self._bare = BareCalls(FORMATS["harmony"], known)
        self._pending = ""
        self._header: str | None = None  # of the current message; None: the header is being read
        self._kind: Literal["analysis", "content", "call"] = "content"
        self._tool = ""  # that the current message calls
        self._searched = 0  # in `_pending`: no end of the call is before it
        self._begun = {"analysis": False, "content": False}  # has text of this kind: a further message needs a gap
        self._needs_gap = False
        if place != "start":
            self._begin_message(f"{CHANNEL}{place}")

    @property
    def in_reasoning(self) -> bool:
        return self._header is not None and self._kind == "analysis"

    def feed(self, text: str) -> HarmonyOutput:
        """Add text; return what is certain now."""
        self._pending += text
        output = HarmonyOutput()
        self._parse(output, is_final=False)
        return output

    def finish(self) -> HarmonyOutput:
        """Return the rest at the end of the output. A header that was cut off is no content."""
        output = HarmonyOutput()
        self._parse(output, is_final=True)
        rest, self._pending = self._pending, ""
        if self._header is not None:
            self._end_message(rest, "", output)
        elif rest.strip() and not rest.lstrip().startswith(("<|", *_HEADER_STARTS[2:])):
            self._add_content(rest, output)
        if self._bare is not None:
            text, calls = self._bare.finish(before_call=False)
            output.content += text
            output.calls += calls
        return output

    def _parse(self, output: HarmonyOutput, *, is_final: bool) -> None:
        while self._read_header(output) if self._header is None else self._read_body(output, is_final):
            pass

    def _read_header(self, output: HarmonyOutput) -> bool:
        header, found, rest = self._pending.partition(MESSAGE)
        begun = header.lstrip()
        is_header = any(begun.startswith(start) or start.startswith(begun) for start in _HEADER_STARTS)
        if not is_header or len(header) > _MAX_HEADER:
            self._begin_message(f"{CHANNEL}final")  # a model that leaves its format
            return True
        if not found:
            return False
        self._pending = rest
        self._begin_message(header)
        if self._kind == "analysis" and self._keeps_reasoning:
            if self._begun["content"]:
                self._pass_content(output)
            output.content += ANALYSIS
        return True

    def _begin_message(self, header: str) -> None:
        before, _, after = header.partition(CHANNEL)
        words = after.split()
        recipient = next((word[len("to=") :] for word in (*words, *before.split()) if word.startswith("to=")), "")
        recipient = recipient.partition("<")[0]
        self._header = header
        if recipient.startswith("functions.") or recipient in self._names:
            self._kind, self._searched = "call", 0
            self._tool = recipient.removeprefix("functions.")
            if self._tool not in self._names:
                self._tool = self._tool.removesuffix("json")
            return
        channel = words[0].partition("<")[0] if words else ""
        self._kind = "analysis" if channel == "analysis" else "content"
        self._needs_gap = self._begun[self._kind]

    def _read_body(self, output: HarmonyOutput, is_final: bool) -> bool:
        if (end := self._find_end(is_final)) is not None:
            body, self._pending = self._pending[: end.start()], self._pending[end.start() :]
            closing = end[0] if end[0] in (END, CALL, RETURN) else ""
            self._pending = self._pending.removeprefix(closing)
            self._end_message(body, closing, output)
            return True
        if self._kind == "call":
            return False
        kept = max(
            (size for end in _ENDS for size in range(1, len(end)) if self._pending.endswith(end[:size])), default=0
        )
        certain = len(self._pending) - kept
        body, self._pending = self._pending[:certain], self._pending[certain:]
        self._add(body, output)
        return False

    def _find_end(self, is_final: bool) -> re.Match[str] | None:
        """Return the end of the current message. One that is quoted in a call's arguments is a part of them, if they
        can be read so."""
        first = _END.search(self._pending)
        if self._kind != "call" or first is None:
            return first
        found, self._searched = find_unquoted(self._pending, _END, _QUOTED, self._searched)
        if found is None and not is_final:
            return None
        body = self._pending if found is None else self._pending[: found.start()]
        return first if self._read_call(body) is None else found

    def _add(self, body: str, output: HarmonyOutput) -> None:
        """Add text of the current message, which is no call."""
        if not body:
            return
        gap, self._needs_gap = "\n\n" if self._needs_gap else "", False
        self._begun[self._kind] = True
        if self._kind == "content":
            self._add_content(gap + body, output)
        elif self._keeps_reasoning:
            output.content += body
        else:
            output.reasoning += gap + body

    def _add_content(self, text: str, output: HarmonyOutput) -> None:
        output.content += text if self._bare is None else self._bare.feed(text)

    def _pass_content(self, output: HarmonyOutput) -> None:
        """Return the content that was held back: the answer is more than a bare call."""
        if self._bare is not None:
            output.content += self._bare.finish(before_call=True)[0]
            self._bare = None

    def _end_message(self, body: str, closing: str, output: HarmonyOutput) -> None:
        """End the current message with the rest of its body; a call is known now."""
        if self._kind != "call":
            self._add(body, output)
            if self._kind == "analysis" and self._keeps_reasoning:
                output.content += closing
        elif (call := self._read_call(body)) is not None:
            self._pass_content(output)
            output.calls.append(call)
        else:
            self._add_content(f"{self._header}{MESSAGE}{body}{closing}", output)
        self._header = None

    def _read_call(self, body: str) -> ToolCall | None:
        if self._tool not in self._names:
            return None
        try:
            return ToolCall(self._tool, read_arguments(body) if body.strip() else "{}")
        except ValueError:
            return None
