"""Store of responses and of their events, bounded in number, size and age."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_STORED_RESPONSES = 4096
MAX_STORED_BYTES = 64 << 20
STORED_SECONDS = 3600.0


class KeptEvents:
    """Events of a stream, numbered from 0, for readers that join later or go on after an event."""

    def __init__(self) -> None:
        self.is_ended = False
        self.num_bytes = 0
        self._events: list[bytes] = []  # as JSON, which takes a tenth of the memory of objects
        self._changed = asyncio.Event()

    def add(self, event: dict[str, Any]) -> None:
        self._events.append(msgspec.json.encode(event))
        self.num_bytes += len(self._events[-1])
        self._wake()

    def end(self) -> None:
        self.is_ended = True
        self._wake()

    def after(self, number: int, most: int | None = None) -> list[dict[str, Any]]:
        """Return the events after event `number`, at most the first `most` of them."""
        end = None if most is None else number + 1 + most
        return [msgspec.json.decode(event) for event in self._events[number + 1 : end]]

    async def follow(self, number: int) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events after event `number` as they come, up to the last."""
        while True:
            changed = self._changed
            if number + 1 < len(self._events):
                [event] = self.after(number, 1)
                number += 1
                yield event
            elif self.is_ended:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class StoredResponse:
    """A response, its own input, and its predecessor, which it keeps alive."""

    response: dict[str, Any]
    input: list[dict[str, Any]]
    previous: StoredResponse | None = None
    owner: str | None = None  # API key that created it, the only one that may see it
    task: asyncio.Task[None] | None = None  # generates a background response
    events: KeptEvents | None = None  # of a response that is streamed in the background
    num_holders: int = 0  # in a store: its id, and the stored responses that continue it
    num_bytes: int = 0
    expires: float = field(default=0.0)

    @property
    def first(self) -> StoredResponse:
        """The response that the conversation began with."""
        entry = self
        while entry.previous is not None:
            entry = entry.previous
        return entry

    def conversation(self) -> list[dict[str, Any]]:
        """Return all items from the first response on, outputs included."""
        entries = [self]
        while (before := entries[-1].previous) is not None:
            entries.append(before)
        return [item for entry in reversed(entries) for item in (*entry.input, *entry.response["output"])]


class ResponseStore:
    """Bounded store of responses, oldest evicted first."""

    def __init__(
        self,
        *,
        max_entries: int = MAX_STORED_RESPONSES,
        max_bytes: int = MAX_STORED_BYTES,
        seconds: float = STORED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()  # oldest first
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: StoredResponse) -> None:
        """Insert or update an entry; evict the oldest when there is no room."""
        self.remove(entry.response["id"])
        entry.expires = self._clock() + self._seconds
        self._entries[entry.response["id"]] = entry
        self._hold(entry)
        self._evict()

    def get(self, response_id: str, owner: str | None = None) -> StoredResponse | None:
        """Return the response of that id if it belongs to `owner`."""
        self._evict()
        entry = self._entries.get(response_id)
        return entry if entry is not None and entry.owner == owner else None

    def items(self, ids: Collection[str], owner: str | None) -> dict[str, dict[str, Any]]:
        """Return the items of those ids, by id, of responses that belong to `owner`; the newest of one id."""
        self._evict()
        return {
            item["id"]: item
            for entry in self._entries.values()
            if entry.owner == owner
            for item in (*entry.input, *entry.response["output"])
            if item.get("id") in ids
        }

    def remove(self, response_id: str) -> StoredResponse | None:
        entry = self._entries.pop(response_id, None)
        if entry is not None:
            self._release(entry)
        return entry

    def _hold(self, entry: StoredResponse | None) -> None:
        """Count one more holder of the entry and its predecessors. Entries removed by id still take room while held."""
        while entry is not None:
            entry.num_holders += 1
            if entry.num_holders > 1:
                return
            entry.num_bytes = len(msgspec.json.encode((entry.response, entry.input)))
            entry.num_bytes += 0 if entry.events is None else entry.events.num_bytes
            self._num_bytes += entry.num_bytes
            entry = entry.previous

    def _release(self, entry: StoredResponse | None) -> None:
        while entry is not None:
            entry.num_holders -= 1
            if entry.num_holders:
                return
            self._num_bytes -= entry.num_bytes
            entry = entry.previous

    def _evict(self) -> None:
        now = self._clock()
        while self._entries:
            oldest = next(iter(self._entries.values()))
            full = len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes
            if not full and oldest.expires > now:
                return
            self.remove(oldest.response["id"])
            if oldest.task is not None:
                oldest.task.cancel()
