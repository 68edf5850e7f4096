"""Parse answers in harmony, the format of gpt-oss: messages on channels, as they stream.

A message is `<|start|>ROLE<|channel|>NAME<|message|>BODY` and one of `<|end|>`, `<|call|>` or `<|return|>`. The role or
the channel may be followed by ` to=RECIPIENT`, the channel by the body's type. `analysis` is reasoning; `final`, and
`commentary` without a recipient, are content; a message to `functions.NAME` is a tool call.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from .tools.calls import ToolCall, read_arguments

CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ANSWER = "<|start|>assistant"  # ends a prompt, and precedes each further message of an answer
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
TO_FUNCTION = "to=functions."
_START = "<|start|>"
_ENDS = (END, CALL, RETURN, _START, CHANNEL)  # the last two begin another message, whose predecessor was not closed
_HEADER_STARTS = (CHANNEL, _START, "to=")
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

    `keeps_reasoning`: the reasoning stays in the content, with its markers.
    """

    def __init__(self, names: Collection[str], place: Place = "start", *, keeps_reasoning: bool = False) -> None:
        self._names = names
        self._keeps_reasoning = keeps_reasoning
        self._pending = ""
        self._header: str | None = None  # of the current message; None: the header is being read
        self._kind: Literal["analysis", "content", "call"] = "content"
        self._call = ""
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
        while self._read_header(output) if self._header is None else self._read_body(output):
            pass
        return output

    def finish(self) -> HarmonyOutput:
        """Return the rest at the end of the output. A header that was cut off is no content."""
        output = HarmonyOutput()
        rest, self._pending = self._pending, ""
        if self._header is not None:
            self._add(rest, output)
            self._end_message("", output)
        elif rest.strip() and not rest.lstrip().startswith(("<|", TO_FUNCTION)):
            output.content = rest
        return output

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
            output.content += ANALYSIS
        return True

    def _begin_message(self, header: str) -> None:
        before, _, after = header.partition(CHANNEL)
        words = after.split()
        recipient = next((word[len("to=") :] for word in (*words, *before.split()) if word.startswith("to=")), None)
        self._header = header
        if recipient is not None and recipient.startswith("functions."):
            self._kind, self._call = "call", ""
            return
        channel = words[0].partition("<")[0] if words else ""
        self._kind = "analysis" if channel == "analysis" else "content"
        self._needs_gap = self._begun[self._kind]

    def _read_body(self, output: HarmonyOutput) -> bool:
        found = [(at, end) for end in _ENDS if (at := self._pending.find(end)) >= 0]
        if found:
            at, end = min(found)
            body, self._pending = self._pending[:at], self._pending[at:]
            closing = end if end in (END, CALL, RETURN) else ""
            self._pending = self._pending.removeprefix(closing)
            self._add(body, output)
            self._end_message(closing, output)
            return True
        kept = max(
            (size for end in _ENDS for size in range(1, len(end)) if self._pending.endswith(end[:size])), default=0
        )
        certain = len(self._pending) - kept
        body, self._pending = self._pending[:certain], self._pending[certain:]
        self._add(body, output)
        return False

    def _add(self, body: str, output: HarmonyOutput) -> None:
        """Add part of the current message's body."""
        if self._kind == "call":
            self._call += body
            return
        if not body:
            return
        gap, self._needs_gap = "\n\n" if self._needs_gap else "", False
        self._begun[self._kind] = True
        if self._kind == "analysis" and not self._keeps_reasoning:
            output.reasoning += gap + body
        else:
            output.content += ("" if self._kind == "analysis" else gap) + body

    def _end_message(self, closing: str, output: HarmonyOutput) -> None:
        """End the current message; a call is known now."""
        if self._kind == "call":
            call = self._read_call()
            if call is None:
                output.content += f"{self._header}{MESSAGE}{self._call}{closing}"
            else:
                output.calls.append(call)
        elif self._kind == "analysis" and self._keeps_reasoning:
            output.content += closing
        self._header = None

    def _read_call(self) -> ToolCall | None:
        assert self._header is not None
        name = self._header.partition(TO_FUNCTION)[2].partition("<")[0].split()
        if not name or name[0] not in self._names:
            return None
        try:
            return ToolCall(name[0], read_arguments(self._call) if self._call.strip() else "{}")
        except ValueError:
            return None
