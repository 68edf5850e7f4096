"""Keeps the records of the latest programs and requests, within bounds. Views are built when someone looks.

To record costs little: messages and answers are noted with their time. Everything else is derived from them later.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from ...programs.records.view import ProgramRow, ProgramView

MAX_RECORDS = 10_000
MAX_LOG_BYTES = 64 << 20  # estimated, of all records together
MAX_RECORD_BYTES = 8 << 20  # of one: later operations of it are not recorded
RECORD_BYTES = 1600  # of a record without operations or samples


class Owner(msgspec.Struct, frozen=True):
    """Owner of a record: the API key of an HTTP request, None if it had none; or a program over ZMQ, of this machine's
    user (`local`) or with a program key (`remote`)."""

    way: Literal["http", "local", "remote"] = "http"
    api_key: str | None = None


SeesOwner = Callable[[Owner], bool]  # tells whether that owner's records may be shown
ShowsTexts = Callable[[Owner], bool]  # tells whether texts of that owner's records may be shown


class OwnedRow(msgspec.Struct, frozen=True):
    """A row, and who may see it."""

    owner: Owner
    row: ProgramRow


class OwnedView(msgspec.Struct, frozen=True):
    """A view, and who may see it. `version` grows with its changes."""

    owner: Owner
    version: int
    view: ProgramView


class LogChanges(msgspec.Struct, frozen=True):
    """Changes since a version: rows, those that changed last first, and the ids of removed records."""

    version: int
    rows: list[OwnedRow]
    removed: list[str]


class Record(Protocol):
    """The record of one program or request."""

    entry: LogEntry

    def row(self, now: float) -> ProgramRow:
        """Return the row, as of `now` on the monotonic clock."""
        ...

    def view(self, now: float, texts: bool) -> ProgramView: ...


class LogEntry:
    """The place of a record in the log. `touch` it at every change."""

    __slots__ = (
        "_log",
        "began",
        "began_at",
        "id",
        "is_final",
        "is_kept",
        "is_running",
        "num_bytes",
        "on_drop",
        "owner",
        "record",
        "seq",
        "version",
    )

    def __init__(self, log: ProgramLog, id: str, seq: int, owner: Owner, record: Record) -> None:
        self._log = log
        self.id = id
        self.seq = seq
        self.owner = owner
        self.record = record
        self.began = time.monotonic()
        self.began_at = time.time()
        self.num_bytes = RECORD_BYTES
        self.version = 0
        self.is_running = True
        self.is_final = False
        self.is_kept = True  # the log still has it
        self.on_drop: Callable[[], None] | None = None  # of who keeps the record too

    @property
    def has_room(self) -> bool:
        """Return whether more of it may be recorded."""
        return self.is_kept and self.num_bytes < MAX_RECORD_BYTES

    def touch(self, num_bytes: int = 0) -> None:
        """Note a change that takes so many bytes more."""
        if self.is_kept:
            self.num_bytes += num_bytes
            self._log._touch(self, num_bytes)

    def end(self, *, is_final: bool = True) -> None:
        """Note that it has ended; unless `is_final` it may go on, and the log's `on_end` are not called."""
        self.is_running = False
        self.touch()
        if is_final:
            self.finish()

    def finish(self) -> None:
        """Call the log's `on_end`, once."""
        if not self.is_final:
            self.is_final = True
            self._log._ended(self.record)
            self._release()

    def drop(self) -> None:
        """Note that the log has it no longer."""
        self.is_kept = False
        self._release()
        if (on_drop := self.on_drop) is not None:
            self.on_drop = None
            on_drop()

    def _release(self) -> None:
        """Let go of a record that nothing asks for: it refers to this entry, and would wait for a full collection."""
        if self.is_final and not self.is_kept:
            del self.record


class ProgramLog:
    """The records of one frontend, whose number makes their ids unique. `on_end` are called with each that has ended.

    `decode` returns the text of token ids. All methods are called in the frontend's event loop.
    """

    def __init__(
        self,
        index: int = 0,
        decode: Callable[[list[int]], str] | None = None,
        *,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        self.version = 0  # grows with every change
        self.decode = decode
        self.on_end: list[Callable[[Record], None]] = []
        self.trace_context: Callable[[], Any] = lambda: None  # returns the caller's, for exports
        self.num_dropped = 0  # records that had to go for newer ones
        self._index = index
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._last_seq = 0
        self._by_id: dict[str, LogEntry] = {}  # in the order of their begin
        self._by_change: OrderedDict[str, LogEntry] = OrderedDict()  # the one that changed last is the last
        self._removed: deque[tuple[int, str]] = deque(maxlen=max_records)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_bytes(self) -> int:
        """Return the estimated size of all records."""
        return self._num_bytes

    def add(self, owner: Owner, record: Record) -> LogEntry:
        """Return the entry of a new record, for which older ones may have to go."""
        # Microseconds since the epoch, so that records of several frontends have one order.
        self._last_seq = max(self._last_seq + 1, time.time_ns() // 1000)
        entry = LogEntry(self, f"{self._index:x}-{self._last_seq:x}", self._last_seq, owner, record)
        self._by_id[entry.id] = entry
        self._num_bytes += entry.num_bytes
        self._touch(entry, 0)
        return entry

    def rows(self, limit: int = 200, before: int | None = None, sees: SeesOwner = lambda owner: True) -> list[OwnedRow]:
        """Return rows, newest first: those that began before the one with the number `before`."""
        now = time.monotonic()
        entries = (
            entry
            for entry in reversed(self._by_id.values())
            if (before is None or entry.seq < before) and sees(entry.owner)
        )
        return [OwnedRow(entry.owner, entry.record.row(now)) for entry in itertools.islice(entries, limit)]

    def rows_since(self, version: int, limit: int = 200, sees: SeesOwner = lambda owner: True) -> LogChanges:
        """Return what has changed since `version`, of rows at most `limit`."""
        now = time.monotonic()
        changed = itertools.takewhile(lambda entry: entry.version > version, reversed(self._by_change.values()))
        changed = (entry for entry in changed if sees(entry.owner))  # type: ignore[assignment]
        rows = [OwnedRow(entry.owner, entry.record.row(now)) for entry in itertools.islice(changed, limit)]
        removed = itertools.takewhile(lambda one: one[0] > version, reversed(self._removed))
        return LogChanges(self.version, rows, [id for _, id in removed])

    def version_of(self, id: str) -> int | None:
        """Return the version of a record's last change; None if there is none with that id."""
        entry = self._by_id.get(id)
        return None if entry is None else entry.version

    def view(self, id: str, shows_texts: ShowsTexts = lambda owner: True) -> OwnedView | None:
        """Return the view of a record; None if there is none with that id."""
        if (entry := self._by_id.get(id)) is None:
            return None
        view = entry.record.view(time.monotonic(), shows_texts(entry.owner))
        return OwnedView(entry.owner, entry.version, view)

    def close(self) -> None:
        """Call `on_end` for those records that have ended and might have gone on."""
        for entry in list(self._by_id.values()):
            if not entry.is_running and not entry.is_final:
                entry.end()

    def _touch(self, entry: LogEntry, num_bytes: int) -> None:
        self.version += 1
        entry.version = self.version
        self._by_change[entry.id] = entry
        self._by_change.move_to_end(entry.id)
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes or len(self._by_id) > self._max_records:
            self._make_room()

    def _ended(self, record: Record) -> None:
        for callback in self.on_end:
            callback(record)

    def _make_room(self) -> None:
        """Drop the oldest records that have ended; if there are none, the oldest."""
        while len(self._by_id) > 1 and (self._num_bytes > self._max_bytes or len(self._by_id) > self._max_records):
            oldest = itertools.islice(self._by_id.values(), 64)  # of a few: looking at all would take long
            entry = next((one for one in oldest if not one.is_running), next(iter(self._by_id.values())))
            del self._by_id[entry.id]
            self._by_change.pop(entry.id, None)
            self._num_bytes -= entry.num_bytes
            self._removed.append((self.version, entry.id))
            self.num_dropped += 1
            entry.drop()
