"""Serves prefixes to other runtimes: computes them with the requests of this one, and sends pages as they are ready.

Values in, values out: the socket is the caller's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ..engine.kv_pool import PAGE_SIZE
from ..protocol.core import Abort, FromCore, Generate, RequestFailed, ToCore, Tokens
from ..protocol.errors import ErrorInfo, RequestError, RuntimeFailed
from ..protocol.pictures import check_pictures
from ..protocol.sampling import SamplingParams
from ..scheduler.rows.pictures import with_ids
from .messages import MAX_PAYLOAD_BYTES, MAX_UNCONFIRMED_BYTES, FetchEnded, FetchPrefix, PagesSent, PagesTaken, ToClient
from .pages import CachePages

_SILENCE_SECONDS = 30.0  # for a receiver to confirm pages; longer than a fetcher waits for them
MAX_EXPORTS = 1024  # of all receivers
_OWNER = b"transfer"  # of the requests that compute prefixes, instead of a frontend


class SendSlots(Protocol):
    """Registered memory whose slots receivers read by themselves."""

    @property
    def num_free(self) -> int: ...
    def fill(self, bytes_PB: torch.Tensor) -> list[int]: ...
    def free(self, slots: list[int]) -> None: ...


@dataclass(eq=False)
class Export:
    """A prefix that is being sent. Pages below `sent` have left, those below `end` are due."""

    peer: bytes
    call: int
    rid: str
    tokens: list[int]  # of whole pages, as the cache knows them
    namespace: str
    sent: int
    last_message: float  # when the receiver last sent something
    is_computed: bool = False
    num_unconfirmed: int = 0  # pages
    slots: set[int] = field(default_factory=set)  # that the receiver may still read

    @property
    def end(self) -> int:
        return len(self.tokens) // PAGE_SIZE


class PrefixExporter:
    """Exports in progress.

    `submit` gives the scheduler a message from an owner and returns its answers; `num_computed` is how far it is with a
    request; `send` sends to a receiver, and returns False if that is gone.
    """

    def __init__(
        self,
        pages: CachePages,
        submit: Callable[[ToCore, bytes], list[FromCore]],
        num_computed: Callable[[str], int],
        send: Callable[[bytes, ToClient, torch.Tensor | None], bool],
    ) -> None:
        self._pages = pages
        self._submit = submit
        self._num_computed = num_computed
        self._send = send
        self._exports: dict[tuple[bytes, int], Export] = {}
        self._by_rid: dict[str, Export] = {}
        self._pages_per_message = max(1, MAX_PAYLOAD_BYTES // pages.shape.page_bytes)
        self._num_left = max(1, MAX_UNCONFIRMED_BYTES // pages.shape.page_bytes)  # pages to send

    @property
    def active(self) -> bool:
        return bool(self._exports)

    def begin(self, peer: bytes, message: FetchPrefix, now: float) -> None:
        """Begin an export; the prefix is computed as a prompt without output."""
        tokens = message.tokens[: len(message.tokens) // PAGE_SIZE * PAGE_SIZE]
        if (peer, message.call) in self._exports or message.first >= len(tokens) // PAGE_SIZE:
            error = RequestError("a fetch needs a number of its own and a whole page to send", param="first")
            self._send(peer, FetchEnded(message.call, ErrorInfo.of(error)), None)
            return
        if len(self._exports) >= MAX_EXPORTS:
            busy = RuntimeFailed(f"{MAX_EXPORTS} prefixes are being sent already")
            self._send(peer, FetchEnded(message.call, ErrorInfo.of(busy)), None)
            return
        try:
            check_pictures(message.pictures, len(tokens))
        except RequestError as error:
            self._send(peer, FetchEnded(message.call, ErrorInfo.of(error)), None)
            return
        known = with_ids(tokens, message.pictures)
        rid = f"transfer-{uuid.uuid4().hex}"
        export = Export(peer, message.call, rid, known, message.namespace, message.first, now)
        self._exports[peer, message.call] = self._by_rid[rid] = export
        if self._pages.num_cached(known, message.namespace) == export.end:
            export.is_computed = True
            return
        request = Generate(
            rid=rid,
            tokens=tokens,
            sampling=SamplingParams(max_new_tokens=0, temperature=0.0),
            namespace=message.namespace,
            priority=message.priority,
            pictures=message.pictures,
        )
        self.note_answers(self._submit(request, _OWNER))

    def note_answers(self, answers: list[FromCore]) -> None:
        """Take note of prefixes that the scheduler has finished."""
        for answer in answers:
            if not isinstance(answer, Tokens | RequestFailed) or answer.rid not in self._by_rid:
                continue
            export = self._by_rid[answer.rid]
            if isinstance(answer, RequestFailed):
                export.is_computed = True
                self._end(export, answer.error)
            elif answer.finish is not None:
                export.is_computed = True

    def confirm(self, peer: bytes, message: PagesTaken, slots: SendSlots | None, now: float) -> None:
        """Take note that the receiver has the pages of one message."""
        export = self._exports.get((peer, message.call))
        if export is None:
            return
        export.last_message = now
        count = min(message.count, export.num_unconfirmed)
        export.num_unconfirmed -= count
        self._num_left += count
        if slots is not None and (read := export.slots.intersection(message.slots or ())):
            export.slots -= read
            slots.free(list(read))

    def cancel(self, peer: bytes, call: int, slots: SendSlots | None) -> None:
        """Send nothing more of an export."""
        if (export := self._exports.get((peer, call))) is not None:
            self._drop(export, slots)

    def work(self, now: float, slots: SendSlots | None, readers: set[bytes]) -> None:
        """Send what has become ready, as far as receivers keep up. `readers` are receivers that read `slots`."""
        for export in list(self._exports.values()):
            if now - export.last_message > _SILENCE_SECONDS and export.num_unconfirmed:
                self._drop(export, slots)
                continue
            while self._send_ready(export, slots if export.peer in readers else None, now):
                pass
            # Until all is confirmed its slots may be read.
            is_done = export.is_computed and not export.num_unconfirmed and not self._has_more(export)
            if is_done and (export.peer, export.call) in self._exports:
                self._end(export, None)

    def _has_more(self, export: Export) -> bool:
        return export.sent < export.end and self._pages.num_cached(export.tokens, export.namespace) > export.sent

    def _send_ready(self, export: Export, slots: SendSlots | None, now: float) -> bool:
        """Send a message of pages, if any are ready. Returns False if not, or if the receiver is gone."""
        if export.sent >= export.end or not self._num_left:
            return False
        if not export.is_computed and self._num_computed(export.rid) < (export.sent + 1) * PAGE_SIZE:
            return False  # not a page more: the tree need not be looked at
        ready = self._pages.num_cached(export.tokens, export.namespace)
        # One that does not confirm leaves as much to the others as it holds.
        most = max(1, (self._num_left + export.num_unconfirmed) // 2) - export.num_unconfirmed
        end = min(ready, export.sent + min(self._pages_per_message, most, self._num_left))
        if slots is not None:
            end = min(end, export.sent + slots.num_free)
        if end <= export.sent:
            return False
        bytes_PB = self._pages.read(export.tokens[: end * PAGE_SIZE], export.namespace, export.sent)
        if bytes_PB is None:
            return False  # on the host, without room on the device now
        taken = None if slots is None else slots.fill(bytes_PB)
        count = end - export.sent
        message = PagesSent(export.call, export.sent, count, not export.is_computed, taken)
        if not export.num_unconfirmed:
            export.last_message = now  # the receiver's time begins
        export.slots.update(taken or ())
        export.num_unconfirmed += count
        self._num_left -= count
        export.sent = end
        if self._send(export.peer, message, None if taken is not None else bytes_PB):
            return True
        self._drop(export, slots)
        return False

    def _end(self, export: Export, error: ErrorInfo | None) -> None:
        self._forget(export)
        self._send(export.peer, FetchEnded(export.call, error), None)

    def _drop(self, export: Export, slots: SendSlots | None) -> None:
        """Forget an export, and stop computing it."""
        self._forget(export)
        if slots is not None:
            slots.free(list(export.slots))
        if not export.is_computed:
            self._submit(Abort(export.rid), _OWNER)

    def _forget(self, export: Export) -> None:
        self._num_left += export.num_unconfirmed
        export.num_unconfirmed = 0
        self._exports.pop((export.peer, export.call), None)
        self._by_rid.pop(export.rid, None)
