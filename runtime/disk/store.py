"""The segments of one format in a folder: which pages there are, who writes, what is removed for room.

One thread appends, strikes and clears; others may find and read meanwhile. Other processes read the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from .segment import HEAD_BYTES, DiskPage, DiskSegment, SegmentFormat

logger = logging.getLogger("ramiform.disk")

_MAX_SEGMENT_BYTES = 1 << 30
_SEGMENTS = 32  # that a full store has, if they are not larger than that
MIN_RECORDS = 4 * _SEGMENTS  # that the limit must hold
_FILE_NAME = re.compile(r"([0-9]{10})\.(index|pages)")
_FORMAT_NAME = re.compile(r"[0-9a-f]{32}")
_CHECK_BYTES = 16
_MAX_NOTE_BYTES = 64 << 20  # of sequences that are likely to go on
_SLOTS = 1 << 32  # a place is segment number * _SLOTS + number of the record


@dataclass
class StoreCounters:
    """Totals since start, in pages."""

    num_saved: int = 0
    num_evicted: int = 0  # removed for want of room
    num_damaged: int = 0  # that were not what they should be, and what was behind them


class _OtherFormat(NamedTuple):
    last_used: float
    folder: Path
    num_bytes: int


class PageStore:
    """Pages on disk, by key, in `root / digest of the format`."""

    def __init__(self, root: Path, form: SegmentFormat, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        """Raises OSError."""
        assert max_bytes >= MIN_RECORDS * form.record_bytes
        self.counters = StoreCounters()
        self.is_writer = False
        self.has_failed = False  # nothing more is written
        self._root, self._folder = root, root / form.digest.hex()
        self._form = form
        self._max_bytes = max_bytes
        self._segment_bytes = min(_MAX_SEGMENT_BYTES, max_bytes // _SEGMENTS)
        self._clock = clock
        self._changing = Lock()  # of places and segments
        self._places: dict[bytes, int] = {}
        self._segments: dict[int, DiskSegment] = {}
        self._last: DiskSegment | None = None  # that is appended to
        self._highest = 0  # number that a segment has had
        self._others: list[_OtherFormat] = []  # the one used last first
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.refresh()

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    @property
    def num_pages(self) -> int:
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        """Bytes of all segments of the format."""
        return sum(segment.num_bytes for segment in list(self._segments.values()))

    def refresh(self) -> None:
        """Follow what another process has written since, and write from now on if none does. Not for the writer."""
        assert not self.is_writer
        # The lock first: nobody appends to what is read after it.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_writer = True
        found = [_FILE_NAME.fullmatch(name) for name in os.listdir(self._folder)]
        numbers = sorted({int(match[1]) for match in found if match is not None})
        self._highest = max(numbers, default=0)
        for segment in [each for number, each in self._segments.items() if number not in numbers]:
            self._forget(segment)
        for number in numbers:  # a later segment has the page again that an earlier one had damaged
            self._read_index(number)
        if self.is_writer:
            self._others = _other_formats(self._root, self._folder)

    def read(self, keys: Sequence[bytes], tokens: bytes) -> NDArray[np.uint8]:
        """Return the first pages of `keys`, whose packed tokens these are, [P, page_bytes]: up to the first that is
        not there, or damaged."""
        size = len(tokens) // len(keys)
        found = np.empty((len(keys), self._form.page_bytes), dtype=np.uint8)
        done = 0
        while done < len(keys) and (place := self._places.get(keys[done])) is not None:
            count = 1
            while done + count < len(keys) and self._places.get(keys[done + count]) == place + count:
                count += 1
            segment, slot = self._segments.get(place // _SLOTS), place % _SLOTS
            if segment is None:
                break
            try:
                records = segment.read(slot, count)
            except FileNotFoundError:  # another process has removed it for want of room
                self._forget(segment)
                break
            except OSError as error:
                self._drop(segment, 0, str(error))
                break
            good = 0
            for record, key in zip(records, keys[done:], strict=False):
                if not self._form.agrees(record, key, tokens[done * size : (done + 1) * size]):
                    break
                found[done] = record[HEAD_BYTES:]
                good, done = good + 1, done + 1
            if good < count:
                is_struck = good < len(records) and not records[good, :HEAD_BYTES].any()
                self._drop(segment, slot + good, "it is not what was written", only_one=is_struck)
                break
            segment.note_use(self._clock())
        return found[:done]

    def read_sequences(self) -> list[tuple[str, bytes]]:
        """Return what `note_sequences` wrote last; nothing if that is damaged."""
        try:
            with open(self._folder / "sequences", "rb") as file:
                check, data = file.read(_CHECK_BYTES), file.read(_MAX_NOTE_BYTES)
        except OSError:
            return []
        if check != self._form.check(data, _CHECK_BYTES):
            return []
        return msgspec.msgpack.decode(data, type=list[tuple[str, bytes]])

    def note_use(self, keys: Sequence[bytes]) -> None:
        """Note that a sequence is in use that has these pages."""
        numbers = {place // _SLOTS for key in keys if (place := self._places.get(key)) is not None}
        for segment in filter(None, map(self._segments.get, numbers)):
            segment.note_use(self._clock())

    def close(self) -> None:
        """Let another process write."""
        self.is_writer = False
        os.close(self._lock)

    # By one thread

    def append(self, pages: Sequence[DiskPage]) -> None:
        """Write pages that are not there yet. When that fails, nothing is written any more."""
        new = {page.key: page for page in pages if page.key not in self._places}
        left = list(new.values())
        while left and self.is_writer and not self.has_failed:
            try:
                segment = self._segment_to_append()
                count = max(1, (self._segment_bytes - segment.num_bytes) // self._form.record_bytes)
                part, left = left[:count], left[count:]
                self._make_room(len(part) * self._form.record_bytes)
                first = len(segment.keys)
                segment.append(part)
            except OSError as error:
                self.has_failed = True
                logger.error("nothing more is written to the disk cache %s: %s", self._folder, error)
                return
            with self._changing:
                for slot, page in enumerate(part, first):
                    self._places[page.key] = segment.number * _SLOTS + slot
            self.counters.num_saved += len(part)

    def note_sequences(self, sequences: Sequence[tuple[str, bytes]]) -> None:
        """Replace the note of sequences that are likely to go on: namespace and packed tokens of each."""
        if not self.is_writer or self.has_failed:
            return
        data = msgspec.msgpack.encode(sequences)
        new = self._folder / "sequences.new"
        with contextlib.suppress(OSError):  # without it, nothing is read ahead
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(self._form.check(data, _CHECK_BYTES) + data)
            new.replace(self._folder / "sequences")

    def strike(self, keys: Sequence[bytes]) -> None:
        """Remove pages for good that may be wrong."""
        for key in keys:
            with self._changing:
                place = self._places.pop(key, None)
            segment = None if place is None else self._segments.get(place // _SLOTS)
            if place is not None and segment is not None and self.is_writer:
                try:
                    segment.strike(place % _SLOTS)
                except OSError:
                    self._remove(segment)

    def clear(self) -> None:
        """Remove all pages; a process that does not write forgets them only."""
        for segment in list(self._segments.values()):
            if self.is_writer:
                self._remove(segment)
        self.note_sequences([])
        with self._changing:
            self._places.clear()

    def _segment_to_append(self) -> DiskSegment:
        last = self._last
        if last is None or last.is_broken or last.num_bytes + self._form.record_bytes > self._segment_bytes:
            self._highest += 1
            last = DiskSegment(self._folder, self._highest, self._form)
            last.create()
            with self._changing:
                self._segments[last.number] = last
            self._last = last
        return last

    def _make_room(self, num_bytes: int) -> None:
        """Remove other formats that nobody uses, then segments, those used last at the end."""
        while self.num_bytes + num_bytes + sum(other.num_bytes for other in self._others) > self._max_bytes:
            if self._others:
                _remove_unused(self._others.pop().folder)
                continue
            olds = [segment for segment in self._segments.values() if segment is not self._last]
            if not olds:
                return
            oldest = min(olds, key=lambda segment: segment.last_used)
            self.counters.num_evicted += len(oldest.keys)
            self._remove(oldest)

    def _remove(self, segment: DiskSegment) -> None:
        self._forget(segment)
        if segment is self._last:
            self._last = None
        with contextlib.suppress(OSError):
            segment.remove()

    # By any thread

    def _read_index(self, number: int) -> None:
        segment = self._segments.get(number)
        if segment is None:
            segment = DiskSegment(self._folder, number, self._form)
        keys = []
        try:
            keys = segment.read_index()
        except OSError:  # there is no index, or it was removed meanwhile
            segment.is_broken = True
        first = len(segment.keys) - len(keys)
        with self._changing:
            self._segments[number] = segment
            self._places.update(
                zip(keys, range(number * _SLOTS + first, number * _SLOTS + len(segment.keys)), strict=True)
            )
        if self.is_writer and not segment.keys:
            self._remove(segment)  # a process ended before it wrote more

    def _forget(self, segment: DiskSegment) -> None:
        """Serve nothing more of a segment."""
        with self._changing:
            self._segments.pop(segment.number, None)
            self._drop_places(segment, 0)

    def _drop(self, segment: DiskSegment, slot: int, reason: str, *, only_one: bool = False) -> None:
        """Serve nothing more of a segment from a record on; `only_one`: not that record, which was struck."""
        with self._changing:
            segment.is_broken |= not only_one
            num_dropped = self._drop_places(segment, slot, slot + 1 if only_one else None)
        self.counters.num_damaged += num_dropped
        logger.warning(
            "dropped %d pages of segment %d of the disk cache, from page %d on: %s",
            *(num_dropped, segment.number, slot, reason),
        )

    def _drop_places(self, segment: DiskSegment, slot: int, end: int | None = None) -> int:
        num_dropped = 0
        for at, key in enumerate(segment.keys[slot:end], segment.number * _SLOTS + slot):
            if self._places.get(key) == at:
                del self._places[key]
                num_dropped += 1
        return num_dropped


def _other_formats(root: Path, own: Path) -> list[_OtherFormat]:
    """List the folders of other formats, as of other models or versions of the package."""
    found = []
    for folder in root.iterdir():
        if folder != own and _FORMAT_NAME.fullmatch(folder.name) and folder.is_dir():
            stats = [file.stat() for file in folder.iterdir()]
            last_used = max((stat.st_mtime for stat in stats), default=0.0)
            found.append(_OtherFormat(last_used, folder, sum(stat.st_size for stat in stats)))
    return sorted(found, reverse=True)


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a format, unless a process writes to it."""
    with contextlib.suppress(OSError):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
