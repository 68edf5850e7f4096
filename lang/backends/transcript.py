"""The content of a state as text: an immutable list of the parts that were appended."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling import SamplingParams

_CALL_BEGIN = re.compile(r'\{"name": "')
_MARK_END = re.compile(r"<\w+>\s*\Z")


@dataclass(frozen=True)
class NativeCall:
    """A tool call as an endpoint answered it. `arguments` is JSON text, `whole` the call in the endpoint's own form."""

    id: str
    name: str
    arguments: str
    whole: Any = None


@dataclass(frozen=True)
class TranscriptPart:
    """A part of a transcript: text as `s.text()` shows it, and ids of generated text if the model gives them.

    Of generated text that holds calls, `said` is the rest. A message that begins may offer `tools`, a JSON list.
    """

    kind: Literal["text", "generated", "begin", "end"]
    text: str
    ids: tuple[int, ...] | None = None
    role: str | None = None  # of a message that begins
    calls: tuple[NativeCall, ...] = ()
    said: str = ""
    tools: str | None = None


@dataclass(frozen=True)
class ChatMessage:
    """A message. `calls` are those of the assistant's, and `said` its content without them; `call` is the id of the
    call whose result the message is."""

    role: str
    content: str = ""
    said: str = ""
    calls: tuple[NativeCall, ...] = ()
    call: str | None = None


@dataclass(frozen=True)
class SpeculatedText:
    """Text that the model wrote beyond the end of a gen, and its sampling. `ended`: the model stopped after it."""

    text: str
    sampling: SamplingParams
    ended: bool


@dataclass(frozen=True)
class Transcript:
    """The parts of a state's content, the role of the open message, and speculated text after the parts."""

    parts: tuple[TranscriptPart, ...] = ()
    open_role: str | None = None
    speculated: SpeculatedText | None = None  # dropped when other text is appended

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def has_roles(self) -> bool:
        return any(part.kind == "begin" for part in self.parts)

    @property
    def offered_tools(self) -> str | None:
        """Return the tools that the chat offers, as JSON."""
        return next((part.tools for part in self.parts if part.tools is not None), None)

    def add_text(self, text: str) -> Transcript:
        """Append text. Speculated text that begins with it is kept, without that beginning."""
        speculated = self.speculated
        if speculated is not None:
            rest = speculated.text.removeprefix(text) if speculated.text.startswith(text) else None
            speculated = None if rest is None else replace(speculated, text=rest)
        return replace(self, parts=(*self.parts, TranscriptPart("text", text)), speculated=speculated)

    def add_generated(self, parts: tuple[TranscriptPart, ...], speculated: SpeculatedText | None = None) -> Transcript:
        return replace(self, parts=(*self.parts, *parts), speculated=speculated)

    def begin(self, role: str, text: str, tools: str | None = None) -> Transcript:
        """Begin a message, which may offer tools. Raises RequestError when one is open."""
        if self.open_role is not None:
            raise RequestError(f"role {role!r} cannot begin inside role {self.open_role!r}", param="role")
        return Transcript((*self.parts, TranscriptPart("begin", text, role=role, tools=tools)), role)

    def end(self, text: str) -> Transcript:
        """End the open message. Raises RequestError when none is open."""
        if self.open_role is None:
            raise RequestError("no role to end: none is open", param="role")
        return Transcript((*self.parts, TranscriptPart("end", text)))

    def fork(self) -> Transcript:
        """Copy without the speculated text: two branches that both took it would not be independent samples."""
        return replace(self, speculated=None)

    def since(self, start: Transcript) -> tuple[TranscriptPart, ...]:
        """Return the parts appended to `start`. Raises RequestError unless the message open in `start` is open."""
        parts = self.parts[len(start.parts) :]
        begins = [part for part in parts if part.kind == "begin"]
        check_joinable(start.open_role, self.open_role, has_begun=bool(begins))
        return parts

    def join(self, parts: tuple[TranscriptPart, ...]) -> Transcript:
        """Append the parts of a fork. Raises RequestError if they hold messages and one is open here."""
        if self.open_role is not None and any(part.kind == "begin" for part in parts):
            raise RequestError(f"a fork that wrote messages cannot be joined inside role {self.open_role!r}")
        return replace(self, parts=(*self.parts, *parts), speculated=None)

    def messages(self) -> list[ChatMessage]:
        """Return the messages, the open one last. Raises RequestError for text outside of messages."""
        messages: list[ChatMessage] = []
        inside = False
        for part in self.parts:
            if part.kind == "begin":
                messages.append(ChatMessage(part.role or ""))
            elif inside and part.kind != "end":
                last = messages[-1]
                messages[-1] = ChatMessage(
                    last.role,
                    last.content + part.text,
                    last.said + (part.said if part.calls else part.text),
                    (*last.calls, *part.calls),
                )
            elif part.kind != "end" and part.text.strip():
                raise RequestError(
                    f"text outside the chat's messages cannot be sent to a chat endpoint: {part.text[:80]!r}",
                    param="role",
                )
            inside = part.kind == "begin" or (inside and part.kind != "end")
        return messages

    def chat(self) -> list[ChatMessage]:
        """Return the messages, the open one last; a result of a tool follows the call that it answers.

        Calls without results in messages of the role "tool" are text. Raises RequestError unless a message of the
        assistant is open.
        """
        if self.open_role != "assistant":
            opened = "none" if self.open_role is None else repr(self.open_role)
            raise RequestError(
                f"in a chat only the assistant's messages can be generated, and {opened} is open: write "
                "assistant(gen(...))",
                param="role",
            )
        messages = self.messages()
        for index, message in enumerate(messages):
            if not message.calls and message.role == "assistant":
                message = messages[index] = _with_written_calls(messages, index)
            end = index + 1 + len(message.calls)
            results = messages[index + 1 : end]
            if message.calls and (len(results) < len(message.calls) or any(one.role != "tool" for one in results)):
                messages[index] = replace(message, said=message.content, calls=())
            elif message.calls:
                messages[index + 1 : end] = [
                    replace(result, call=call.id) for call, result in zip(message.calls, results, strict=True)
                ]
        return messages


def _with_written_calls(messages: list[ChatMessage], place: int) -> ChatMessage:
    """Return a message with the calls that its text has, if they are as many as the results of tools behind it.

    Text that was kept, as by a checkpoint, has lost the calls that the endpoint answered.
    """
    message, after = messages[place], messages[place + 1 :]
    results = next((index for index, one in enumerate(after) if one.role != "tool"), len(after))
    calls: list[NativeCall] = []
    begin, end = -1, 0
    for match in _CALL_BEGIN.finditer(message.content) if results else ():
        if match.start() < end:
            continue  # a part of an argument
        try:
            call, end = json.JSONDecoder().raw_decode(message.content, match.start())
            [arguments] = [value for key, value in call.items() if key != "name"]
        except (ValueError, RecursionError):
            continue
        begin = match.start() if not calls else begin
        text = json.dumps(arguments, ensure_ascii=False)
        calls.append(NativeCall(f"call_{place}_{len(calls)}", str(call["name"]), text))
    if not calls or len(calls) != results:
        return message
    said = _MARK_END.sub("", message.content[:begin])
    return replace(message, said=said.strip(), calls=tuple(calls))


def check_joinable(at_fork: str | None, now: str | None, *, has_begun: bool) -> None:
    """Raise RequestError unless the message that was open at a fork is open. `has_begun`: others have begun since."""
    if now is not None and (has_begun or at_fork is None):
        raise RequestError(f"a fork cannot be joined while its role {now!r} is open", param="role")
    if at_fork is not None and now is None:
        raise RequestError(f"a fork that ended role {at_fork!r} cannot be joined", param="role")
