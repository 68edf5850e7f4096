"""Store of responses and of their events, bounded in number, size and age.

Finished responses, their inputs and events are kept as JSON, which takes a fifth of the memory of objects and whose
size is known.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any

import msgspec

MAX_STORED_RESPONSES = 4096
MAX_STORED_BYTES = 64 << 20
STORED_SECONDS = 3600.0
ENTRY_BYTES = 1100  # of an entry without its JSON
EVENT_BYTES = 8  # of the place of an event


class KeptEvents:
    """Events of a stream, numbered from 0, for readers that join later or go on after an event."""

    def __init__(self) -> None:
        self.is_ended = False
        self.num_bytes = 0
        self._events: list[bytes] = []
        self._changed = asyncio.Event()

    def add(self, event: dict[str, Any]) -> None:
        self._events.append(msgspec.json.encode(event))
        self.num_bytes += sys.getsizeof(self._events[-1]) + EVENT_BYTES
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


class StoredResponse:
    """A response, its own input, and its predecessor, which it keeps alive. Only the API key `owner` may see it.

    `response` and `input` of one that is packed are new objects at each access, so changes are assigned.
    """

    def __init__(
        self,
        response: dict[str, Any],
        input: list[dict[str, Any]],
        previous: StoredResponse | None = None,
        owner: str | None = None,
        events: KeptEvents | None = None,
    ) -> None:
        self.id: str = response["id"]
        self.previous = previous
        self.owner = owner
        self.task: asyncio.Task[None] | None = None  # generates a background response
        self.events = events  # of a response that is streamed in the background
        self.num_holders = 0  # in a store: its id, and the stored responses that continue it
        self.num_bytes = 0
        self.expires = 0.0
        self._response: dict[str, Any] | bytes = response
        self._input: list[dict[str, Any]] | bytes = input

    @property
    def response(self) -> dict[str, Any]:
        return _unpacked(self._response)

    @response.setter
    def response(self, value: dict[str, Any]) -> None:
        self._response = value

    @property
    def input(self) -> list[dict[str, Any]]:
        return _unpacked(self._input)

    @property
    def first(self) -> StoredResponse:
        """The response that the conversation began with."""
        entry = self
        while entry.previous is not None:
            entry = entry.previous
        return entry

    def pack(self) -> None:
        """Keep the response and its input as JSON."""
        self._response, self._input = _packed(self._response), _packed(self._input)

    def count(self) -> int:
        """Return the bytes that it takes, without its predecessor."""
        num_bytes = sum(sys.getsizeof(_packed(part)) for part in (self._response, self._input))
        return ENTRY_BYTES + num_bytes + (0 if self.events is None else self.events.num_bytes)

    def names_any(self, ids: Collection[bytes]) -> bool:
        """Return False if none of those strings, as JSON, is in it."""
        parts = _packed(self._input), _packed(self._response)
        return any(name in part for part in parts for name in ids)

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
        self.remove(entry.id)
        entry.expires = self._clock() + self._seconds
        self._entries[entry.id] = entry
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
        names = [msgspec.json.encode(name) for name in ids]
        return {
            item["id"]: item
            for entry in self._entries.values()
            if entry.owner == owner and entry.names_any(names)
            for item in (*entry.input, *entry.response["output"])
            if item.get("id") in ids
        }

    def remove(self, response_id: str) -> StoredResponse | None:
        entry = self._entries.pop(response_id, None)
        if entry is not None:
            self._release(entry)
        return entry

    def _hold(self, entry: StoredResponse | None) -> None:
        """Count one more holder of the entry and its predecessors, and pack those that are finished. Entries removed by
        id still take room while held."""
        while entry is not None:
            entry.num_holders += 1
            if entry.num_holders > 1:
                return
            if entry.response.get("status") not in ("queued", "in_progress"):
                entry.pack()
            entry.num_bytes = entry.count()
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
            self.remove(oldest.id)
            if oldest.task is not None:
                oldest.task.cancel()


def _packed(part: Any) -> bytes:
    return part if isinstance(part, bytes) else msgspec.json.encode(part)


def _unpacked(part: Any) -> Any:
    return msgspec.json.decode(part) if isinstance(part, bytes) else part
