"""Content of a program's state: token ids, text that is not tokenised yet, and the open chat message.

Text is tokenised when a request needs ids, so that neighbouring pieces are tokenised as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import msgspec

from ...protocol.errors import RequestError
from ...protocol.pictures import Picture, PictureRun
from ...protocol.session import OfferedTools
from ...tokenizer.image_processors import PreparedPicture
from ...tokenizer.interface import Tokenizer
from ..chat.template_forms import picture_text
from ..text.encoding import Encoder, PromptSegment, merge_segments
from ..text.pictures import placed
from .roles import ROLE_MARK, ChatState

MAX_HEALED = 8  # tokens that longer ones may replace


@dataclass(frozen=True)
class HealedText:
    """Text at the end of the content that the ids after it contain."""

    text: str


LogEntry = PromptSegment | tuple[int, ...] | HealedText | PreparedPicture


@dataclass(frozen=True)
class AppendedContent:
    """Content that a forked state appended since its fork; the state that it joins appends it again.

    `log` holds texts, and ids that were generated after them; empty ids mark a place where the text before was
    tokenised without the text after. `roles` are those of the messages it wrote, `tail` is the text after the last.
    """

    log: list[LogEntry]
    roles: tuple[str, ...]
    tail: str
    tools: str | None = None


@dataclass(frozen=True)
class ContentSnapshot:
    """Content at one point: it began with the first `num_ids` ids and `num_logged` entries of the log."""

    num_ids: int
    pending: tuple[PromptSegment, ...]
    chat: ChatState
    num_logged: int


class TokenContent:
    """Ids, which are fixed, and the `pending` text after them, which `flush` tokenises. `pictures` are in the ids."""

    def __init__(self, tokenizer: Tokenizer, encoder: Encoder) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self.ids: list[int] = []
        self.pictures: list[Picture] = []
        self.pending: list[PromptSegment] = []
        self.num_pending_bytes = 0
        self.chat = ChatState()
        self._log: list[LogEntry] | None = None  # since the fork; None without one
        self._roles_at_fork = self.chat
        self._num_restored = 0

    @property
    def mark(self) -> tuple[int, ...]:
        """A value that changes whenever something is appended, tokenised or restored."""
        return self._num_restored, len(self.ids), len(self.pending)

    def snapshot(self) -> ContentSnapshot:
        """Return what `restore` needs to return to this content."""
        return ContentSnapshot(len(self.ids), tuple(self.pending), self.chat, len(self._log or ()))

    def restore(self, snapshot: ContentSnapshot) -> None:
        """Return to the content at `snapshot`. What was tokenised since then is pending text again."""
        self.ids = self.ids[: snapshot.num_ids]  # a new list: a request may still hold the old one
        self.pictures = [each for each in self.pictures if each.runs[-1].first < snapshot.num_ids]
        self.pending = list(snapshot.pending)
        self.num_pending_bytes = sum(len(segment.text.encode()) for segment in self.pending)
        self.chat = snapshot.chat
        if self._log is not None:
            del self._log[snapshot.num_logged :]
        self._num_restored += 1

    def fork(self) -> TokenContent:
        child = TokenContent(self._tokenizer, self._encoder)
        child.ids, child.pictures = self.ids.copy(), self.pictures.copy()
        # Joined, like the log of `since_fork`: forks of forks would else pass on a list that grows at each level.
        child.pending = merge_segments(self.pending)
        child.num_pending_bytes = self.num_pending_bytes
        child.chat = child._roles_at_fork = self.chat
        child._log = []
        return child

    def begin_role(self, role: str, tools: OfferedTools | None = None) -> str:
        """Append the template's text before the content of a message, and return it.

        `tools` are offered by the template if it takes tools, else at the beginning of the content. Raises RequestError
        for a role that the template refuses here.
        """
        schemas = None if tools is None else self._read_tools(tools.schemas)
        self.chat, text = self.chat.begin(self._tokenizer.chat, role, schemas)
        if self.ids or self.pending:
            text = text.removeprefix(self._bos_text())  # the template renders a first message
        self._append(PromptSegment(text, trusted=True))
        if tools is None or self.chat.tools is not None:
            return text
        return text + self.append_text(f"{tools.text}\n\n")

    def end_role(self) -> str:
        """Append the template's text after the content, and return it. Raises RequestError when no role is open."""
        self.chat, text = self.chat.end(self._tokenizer.chat)
        self._append(PromptSegment(text, trusted=True))
        return text

    def append_text(self, text: str) -> str:
        """Append a program's text and return it, with the template's lead of an assistant's given text before it."""
        lead = self.take_lead() if text else ""
        self._append(PromptSegment(text, trusted=not self.chat.is_open))
        return lead + text

    async def append_picture(self, prepared: PreparedPicture) -> str:
        """Append a picture, with what the chat template writes around one, and return its mark."""
        self.take_lead()
        own = None if self._tokenizer.chat is None else picture_text(self._tokenizer.chat, "user")
        around = prepared.replaces if own is None or prepared.replaces not in own else own
        text = around.replace(prepared.replaces, prepared.text, 1)
        # What follows its last special token is text, which is tokenised with the text after it.
        names = self._tokenizer.special_ids
        end = max((at + len(name) for name in names if name and (at := text.rfind(name)) >= 0), default=len(text))
        begin = len(self.ids)
        self.pending.append(PromptSegment(text[:end], trusted=True))
        await self.flush()
        [placed_one] = placed([prepared], self.ids[begin:], self._tokenizer)
        runs = [PictureRun(begin + run.first, run.count) for run in placed_one.runs]
        self.pictures = [*self.pictures, msgspec.structs.replace(placed_one, runs=runs)]
        if self._log is not None:
            self._log.append(prepared)
        if rest := text[end:]:
            self.pending.append(PromptSegment(rest, trusted=True))
            self.num_pending_bytes += len(rest.encode())
        return prepared.replaces

    def _read_tools(self, schemas: str) -> list[Any]:
        """Return the tools. Raises RequestError for text that is no JSON list, and where it has special tokens' names,
        which the template would write as such.
        """
        try:
            tools = json.loads(schemas)
            text = json.dumps(tools, ensure_ascii=False)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the tools are not JSON: {error}", param="tools") from None
        if not isinstance(tools, list):
            raise RequestError(f"the tools must be a list, got {schemas[:80]!r}", param="tools")
        names = [name for name in self._tokenizer.special_ids if len(name) > 1]
        for name in (*names, ROLE_MARK):
            if name in text:
                raise RequestError(f"a tool's description has the special token {name!r}", param="tools")
        return tools

    def take_lead(self) -> str:
        """Append and return the lead of an assistant's given text, once. A generated text has none: `drop_lead`."""
        lead = self.chat.lead
        if lead:
            self._append(PromptSegment(lead, trusted=True))
            self.drop_lead()
        return lead

    def drop_lead(self) -> None:
        """Forget the lead: the model generates the assistant's text."""
        self.chat = self.chat.without_lead()

    async def flush(self) -> list[int]:
        """Tokenise the pending text and return all ids."""
        if self.pending or not self.ids:
            self.ids += await self._encoder.encode_async(self.pending, at_start=not self.ids)
            self.pending, self.num_pending_bytes = [], 0
        return self.ids

    async def take_open_word(self, stops: Sequence[str]) -> str:
        """Remove the text of the last tokens that begin longer ones, so that it is generated again; return it.

        It is text of the program's own that has not been tokenised and was written since the fork, and has no beginning
        of `stops`. The ids before it stay those of the text as a whole.
        """
        segments = merge_segments(self.pending)
        own = segments[-1].text if segments and (not segments[-1].trusted or not self.chat.roles) else ""
        if self._log is not None:
            since = list(takewhile(lambda entry: isinstance(entry, PromptSegment), reversed(self._log)))
            own = own[max(0, len(own) - sum(len(entry.text) for entry in since if isinstance(entry, PromptSegment))) :]
        if not own:
            return ""
        at_start = not self.ids
        ids = await self._encoder.encode_async(segments, at_start=at_start)
        healed, found = b"", [(0, "")]
        for number, token in enumerate(reversed(ids[-MAX_HEALED:]), 1):
            data = self._tokenizer.token_bytes[token]
            if data is None:
                break
            healed = data + healed
            if own.encode().endswith(healed) and self._tokenizer.begins_longer_token(healed):
                with suppress(UnicodeDecodeError):  # within a character
                    found.append((number, healed.decode()))
        for number, text in reversed(found[1:]):
            if any(stop[:1] in text for stop in stops):
                continue
            kept = [*segments[:-1], segments[-1]._replace(text=segments[-1].text.removesuffix(text))]
            before = await self._encoder.encode_async(merge_segments(kept), at_start=at_start)
            if before == ids[:-number] and (before or self.ids):
                self.remove_tail(text)
                return text
        return ""

    def remove_tail(self, text: str) -> None:
        """Remove a text from the end of the pending text."""
        segments = merge_segments(self.pending)
        assert segments[-1].text.endswith(text)
        self.pending = [*segments[:-1], segments[-1]._replace(text=segments[-1].text.removesuffix(text))]
        self.num_pending_bytes -= len(text.encode())
        if self._log is not None:
            self._log.append(HealedText(text))

    def open_text(self) -> str:
        """Return the pending text."""
        return "".join(segment.text for segment in self.pending)

    async def append_chosen(self, text: str) -> None:
        """Append a choice, tokenised as it was scored: with the text before it, not with the text after."""
        self._append(PromptSegment(text, trusted=not self.chat.is_open))
        await self._append_ids(())

    async def append_generated(self, ids: list[int], leftover: str) -> None:
        """Append generated ids, and the kept part of the text of a token that a stop string cut."""
        await self._append_ids(tuple(ids))
        self._append(PromptSegment(leftover, trusted=False))

    def with_pending(self, text: str) -> list[PromptSegment]:
        """Return the pending text followed by `text`, to see how it would be tokenised."""
        return [*self.pending, PromptSegment(text, trusted=not self.chat.is_open)]

    def since_fork(self) -> AppendedContent:
        """Return what was appended since the fork.

        Raises RequestError when a role that began since is open, or the one that was open at the fork is not.
        """
        assert self._log is not None
        roles = self.chat.roles[len(self._roles_at_fork.roles) :]
        if self.chat.is_open and (roles or not self._roles_at_fork.is_open):
            raise RequestError(f"a fork cannot be joined while its role {self.chat.roles[-1]!r} is open", param="role")
        if self._roles_at_fork.is_open and not self.chat.is_open:
            raise RequestError(
                f"a fork that ended role {self._roles_at_fork.roles[-1]!r}, opened before it, cannot be joined",
                param="role",
            )
        return AppendedContent(_merged(self._log), roles, self.chat.tail, self.chat.tools)

    async def join(self, appended: AppendedContent) -> str:
        """Append what a fork appended: the same text and the same generated ids. Return the text.

        Raises RequestError when the fork wrote messages and one is open here.
        """
        if appended.roles and self.chat.is_open:
            raise RequestError(
                f"a fork that wrote messages cannot be joined inside role {self.chat.roles[-1]!r}", param="role"
            )
        texts = []
        for item in appended.log:
            if isinstance(item, PromptSegment):
                self._append(item)
                texts.append(item.text)
            elif isinstance(item, PreparedPicture):
                texts.append(await self.append_picture(item))
            elif isinstance(item, HealedText):
                self.remove_tail(item.text)
                texts = ["".join(texts).removesuffix(item.text)]
            else:
                await self._append_ids(item)
                texts.append(self._tokenizer.decode(list(item)))
        if appended.roles:
            roles = (*self.chat.roles, *appended.roles)
            self.chat = replace(self.chat, roles=roles, tail=appended.tail, tools=appended.tools)
        return "".join(texts)

    def _append(self, segment: PromptSegment) -> None:
        if segment.text:
            self.pending.append(segment)
            self.num_pending_bytes += len(segment.text.encode())
            if self._log is not None:
                self._log.append(segment)

    async def _append_ids(self, ids: tuple[int, ...]) -> None:
        await self.flush()
        self.ids += ids
        if self._log is not None:
            self._log.append(ids)

    def _bos_text(self) -> str:
        bos = self._tokenizer.bos_id
        return next((text for text, token in self._tokenizer.special_ids.items() if token == bos), "")


def _merged(log: Iterable[LogEntry]) -> list[LogEntry]:
    """Join neighbouring texts of equal trust."""
    merged: list[LogEntry] = []
    texts: list[PromptSegment] = []
    for item in log:
        if isinstance(item, PromptSegment):
            texts.append(item)
        else:
            merged += merge_segments(texts)
            merged.append(item)
            texts = []
    return merged + merge_segments(texts)
