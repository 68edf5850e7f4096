"""Copies cached prefixes to another runtime, which takes them as long as it has free pages.

Values in, values out: the sockets are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..engine.kv_pool import PAGE_SIZE
from ..protocol.core import MovedPrefixes
from ..protocol.errors import ErrorInfo, RuntimeFailed
from .messages import (
    MAX_PAYLOAD_BYTES,
    MAX_UNCONFIRMED_BYTES,
    PagesSent,
    PagesTaken,
    PagesWanted,
    PrefixStored,
    StorePrefix,
    StoreSessions,
    ToClient,
    ToServer,
)
from .pages import CachePages

_SILENCE_SECONDS = 20.0  # for the other runtime to answer
MAX_STORES = 64  # at once; the oldest, whose sender may be gone, is forgotten


class PrefixSender:
    """Sends every cached sequence to one runtime, the one used last first, each after the other has taken the last.

    `send` sends to that runtime. When `result` is there, all is over.
    """

    def __init__(
        self,
        pages: CachePages,
        send: Callable[[ToServer, torch.Tensor | None], None],
        sessions: bytes | None,
        now: float,
    ) -> None:
        self._pages = pages
        self._send = send
        self._sequences = pages.sequences()
        self._pages_per_message = max(1, MAX_PAYLOAD_BYTES // pages.shape.page_bytes)
        self._call = 0
        self._next = 0  # of the sequence that is offered next
        self._namespace, self._tokens = "", list[int]()  # of the current one
        self._sent = self._end = 0  # pages of the current one
        self._num_unconfirmed = 0  # pages
        self._last_answer = now
        self._num_sequences = self._num_sent_tokens = 0
        self.result: MovedPrefixes | ErrorInfo | None = None
        if sessions is not None:
            self._send(StoreSessions(self._call, sessions), None)
        else:
            self._offer()

    def take(self, message: ToClient, now: float) -> None:
        """Go on after an answer."""
        match message:
            case PagesWanted(call=call, first=first) if call == self._call and self._next:
                self._sent, self._end = first, len(self._tokens) // PAGE_SIZE
            case PagesTaken(call=call) if call == self._call:
                self._num_unconfirmed -= message.count
            case PrefixStored(call=call) if call == self._call:
                self._num_sequences += message.error is None and call > 0
                if message.error is not None and message.error.code == "no_room":
                    self._finish()  # the sequences used last are there
                elif message.error is not None:
                    self.fail(message.error)
                else:
                    self._offer()
            case _:
                return
        self._last_answer = now

    def work(self, now: float) -> None:
        """Send pages, one message in a turn."""
        if self.result is not None:
            return
        if now - self._last_answer > _SILENCE_SECONDS:
            self.fail(ErrorInfo.of(RuntimeFailed(f"the other runtime was silent for {_SILENCE_SECONDS:g} s")))
        elif self._sent < self._end and self._num_unconfirmed * self._pages.shape.page_bytes < MAX_UNCONFIRMED_BYTES:
            end = min(self._end, self._sent + self._pages_per_message)
            bytes_PB = self._pages.read(self._tokens[: end * PAGE_SIZE], self._namespace, self._sent)
            if bytes_PB is None:
                self._end = 0  # evicted since: the rest of this one stays
                self._offer()
                return
            self._send(PagesSent(self._call, self._sent, end - self._sent, False), bytes_PB)
            self._num_sent_tokens += (end - self._sent) * PAGE_SIZE
            self._num_unconfirmed += end - self._sent
            self._sent = end

    def fail(self, error: ErrorInfo) -> None:
        """End with an error. What was taken stays there."""
        self.result = self.result or error

    def _offer(self) -> None:
        self._sent = self._end = self._num_unconfirmed = 0
        self._call += 1
        while self._next < len(self._sequences):
            self._namespace, self._tokens = self._pages.tokens(self._sequences[self._next])
            self._next += 1
            if self._tokens:
                self._send(StorePrefix(self._call, self._tokens, self._namespace), None)
                return
        self._finish()

    def _finish(self) -> None:
        self.result = self.result or MovedPrefixes(
            num_sequences=self._num_sequences,
            num_sent_tokens=self._num_sent_tokens,
            num_left=len(self._sequences) - self._num_sequences,
        )


@dataclass
class _Store:
    call: int
    tokens: list[int]
    namespace: str
    first: int


class PrefixReceiver:
    """Takes prefixes from senders, each one at a time, into free pages: nothing is evicted for them.

    `send` sends to a sender.
    """

    def __init__(
        self, pages: CachePages, send: Callable[[bytes, ToClient], object], num_free: Callable[[], int]
    ) -> None:
        self._pages = pages
        self._send = send
        self._num_free = num_free
        self._stores: dict[bytes, _Store] = {}

    def begin(self, peer: bytes, message: StorePrefix) -> None:
        """Ask for the pages that are not cached yet."""
        tokens = message.tokens[: len(message.tokens) // PAGE_SIZE * PAGE_SIZE]
        first, end = self._pages.num_cached(tokens, message.namespace), len(tokens) // PAGE_SIZE
        if first >= end:
            self._send(peer, PrefixStored(message.call, end))
            return
        if len(self._stores) >= MAX_STORES:
            del self._stores[next(iter(self._stores))]
        self._stores[peer] = _Store(message.call, tokens, message.namespace, first)
        self._send(peer, PagesWanted(message.call, first))

    def take(self, peer: bytes, message: PagesSent, bytes_PB: torch.Tensor) -> None:
        """Cache pages that have come."""
        store = self._stores.get(peer)
        if store is None or message.call != store.call:
            return
        until = message.first + message.count
        fits = message.first == store.first and len(bytes_PB) == message.count
        fits = fits and until * PAGE_SIZE <= len(store.tokens) and message.count <= self._num_free()
        if not fits or not self._pages.write(
            store.tokens[: until * PAGE_SIZE], store.namespace, message.first, bytes_PB
        ):
            del self._stores[peer]
            error = ErrorInfo(kind="busy", message="no free pages are left", code="no_room")
            self._send(peer, PrefixStored(store.call, store.first, error))
            return
        store.first = until
        self._send(peer, PagesTaken(store.call, message.count))
        if until * PAGE_SIZE == len(store.tokens):
            del self._stores[peer]
            self._send(peer, PrefixStored(store.call, until))
