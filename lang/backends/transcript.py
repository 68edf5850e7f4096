"""What a state holds where no runtime holds it: the parts it was made of, in order. A value; knows no endpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling import SamplingParams


@dataclass(frozen=True)
class TranscriptPart:
    """`text` is what `s.text()` shows. `ids` are those of generated text, where the endpoint tells them."""

    kind: Literal["text", "generated", "begin", "end"]
    text: str
    ids: tuple[int, ...] | None = None
    role: str | None = None  # that begins


@dataclass(frozen=True)
class SpeculatedText:
    """Text that the model has written beyond what was asked for, and how it was drawn. `ended`: it has said all."""

    text: str
    sampling: SamplingParams
    ended: bool


@dataclass(frozen=True)
class Transcript:
    parts: tuple[TranscriptPart, ...] = ()
    open_role: str | None = None
    foretold: SpeculatedText | None = None  # follows the parts, until something else does

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def has_roles(self) -> bool:
        return any(part.kind == "begin" for part in self.parts)

    def add_text(self, text: str) -> Transcript:
        ahead = self.foretold
        if ahead is not None:
            rest = ahead.text.removeprefix(text) if ahead.text.startswith(text) else None
            ahead = None if rest is None else replace(ahead, text=rest)
        return replace(self, parts=(*self.parts, TranscriptPart("text", text)), foretold=ahead)

    def add_generated(self, parts: tuple[TranscriptPart, ...], foretold: SpeculatedText | None = None) -> Transcript:
        return replace(self, parts=(*self.parts, *parts), foretold=foretold)

    def begin(self, role: str, text: str) -> Transcript:
        """Raises RequestError when a message is open."""
        if self.open_role is not None:
            raise RequestError(f"role {role!r} cannot begin inside role {self.open_role!r}", param="role")
        return Transcript((*self.parts, TranscriptPart("begin", text, role=role)), role)

    def end(self, text: str) -> Transcript:
        """Raises RequestError when no message is open."""
        if self.open_role is None:
            raise RequestError("no role to end: none is open", param="role")
        return Transcript((*self.parts, TranscriptPart("end", text)))

    def fork(self) -> Transcript:
        """What was foretold stays behind: two branches that both took it would not be two samples."""
        return replace(self, foretold=None)

    def since(self, start: Transcript) -> tuple[TranscriptPart, ...]:
        """What was appended to `start`. Raises RequestError unless the same message is open as was there."""
        parts = self.parts[len(start.parts) :]
        begins = [part for part in parts if part.kind == "begin"]
        if self.open_role is not None and (begins or start.open_role is None):
            raise RequestError(f"a fork cannot be joined while its role {self.open_role!r} is open", param="role")
        if start.open_role is not None and self.open_role is None:
            raise RequestError(f"a fork that ended role {start.open_role!r} cannot be joined", param="role")
        return parts

    def join(self, parts: tuple[TranscriptPart, ...]) -> Transcript:
        """Raises RequestError when they hold messages and one is open here."""
        if self.open_role is not None and any(part.kind == "begin" for part in parts):
            raise RequestError(f"a fork that wrote messages cannot be joined inside role {self.open_role!r}")
        return replace(self, parts=(*self.parts, *parts), foretold=None)

    def messages(self) -> list[dict[str, str]]:
        """As role and content, the open one last. Raises RequestError for text that is in no message."""
        messages: list[dict[str, str]] = []
        inside = False
        for part in self.parts:
            if part.kind == "begin":
                messages.append({"role": part.role or "", "content": ""})
            elif inside and part.kind != "end":
                messages[-1]["content"] += part.text
            elif part.kind != "end" and part.text.strip():
                raise RequestError(
                    f"text outside the chat's messages cannot be sent to a chat endpoint: {part.text[:80]!r}",
                    param="role",
                )
            inside = part.kind == "begin" or (inside and part.kind != "end")
        return messages
