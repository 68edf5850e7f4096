"""One segment: a file of records, each a page with what names it, and a file that indexes them.

Both files only grow, and a record is there before its line in the index. So a process may end at any byte: what is
behind the last whole line is not read. A record is served if its key, its tokens and its checksums agree.

Knows bytes and files; nothing of which segments there are.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .page_keys import KEY_BYTES, PAGE_TOKEN_BYTES

_VERSION = 1
_HEADER = struct.Struct("<8sII16s")  # magic, version, bytes of a record, digest of the format
_MAGIC = b"RAMIKV\r\n"
_CHECK_BYTES = 16
HEADER_BYTES = _HEADER.size + _CHECK_BYTES
_LINE = struct.Struct(f"<{KEY_BYTES}sII")  # key, number of the record, zero
_LINE_CHECK = 8
LINE_BYTES = _LINE.size + _LINE_CHECK
_HEAD = struct.Struct(f"<{KEY_BYTES}s{PAGE_TOKEN_BYTES}sI")  # key, packed tokens, CRC-32 of the page
HEAD_BYTES = 112  # of a record before its page: _HEAD, its checksum, zeros
assert _HEAD.size + _CHECK_BYTES <= HEAD_BYTES
_FILE_MODE = 0o600
_NOTE_SECONDS = 10.0  # between two notes of a segment's use


class DiskPage(NamedTuple):
    """A page on its way to the disk."""

    key: bytes
    tokens: bytes  # packed
    content: NDArray[np.uint8]  # [page_bytes]


class SegmentFormat(NamedTuple):
    """Format of a store's segments: it makes and checks what stands in their files."""

    secret: bytes
    digest: bytes  # of the pages' format
    page_bytes: int

    @property
    def record_bytes(self) -> int:
        return HEAD_BYTES + self.page_bytes

    def header(self) -> bytes:
        """Return the first bytes of both files of a segment."""
        fields = _HEADER.pack(_MAGIC, _VERSION, self.record_bytes, self.digest)
        return fields + self.check(fields, _CHECK_BYTES)

    def check(self, data: bytes, size: int) -> bytes:
        return blake2b(data, digest_size=size, key=self.secret).digest()

    def line(self, key: bytes, slot: int) -> bytes:
        fields = _LINE.pack(key, slot, 0)
        return fields + self.check(fields, _LINE_CHECK)

    def head(self, page: DiskPage) -> bytes:
        fields = _HEAD.pack(page.key, page.tokens, zlib.crc32(page.content))
        return (fields + self.check(fields, _CHECK_BYTES)).ljust(HEAD_BYTES, b"\0")

    def agrees(self, record: NDArray[np.uint8], key: bytes, tokens: bytes) -> bool:
        """Return True if a record is whole, and is the page of `key` with these tokens."""
        head = record[:HEAD_BYTES].tobytes()
        fields = head[: _HEAD.size]
        if head[_HEAD.size : _HEAD.size + _CHECK_BYTES] != self.check(fields, _CHECK_BYTES):
            return False
        found, own, crc = _HEAD.unpack(fields)
        return (found, own) == (key, tokens) and zlib.crc32(record[HEAD_BYTES:]) == crc


class DiskSegment:
    """DiskSegment `number` of a folder. `keys` are those of its records, in order, as far as they have been read.

    Threads may read records while another one appends, or removes the files: an open file is closed by whoever is the
    last to use it.
    """

    def __init__(self, folder: Path, number: int, form: SegmentFormat) -> None:
        self.number = number
        self.keys: list[bytes] = []
        self.num_bytes = 0  # of both files, as of what was read of the index or written
        self.is_broken = False  # nothing more is read of its index
        self._index_path, self._records_path = folder / f"{number:010}.index", folder / f"{number:010}.pages"
        self._form = form
        self._records: _File | None = None
        self._index: _File | None = None
        self._noted = 0.0

    @property
    def last_used(self) -> float:
        """Time, in seconds since the epoch, at which any process noted that its pages are of use."""
        try:
            return self._index_path.stat().st_mtime
        except OSError:
            return 0.0

    # Reading

    def read_index(self) -> list[bytes]:
        """Read the lines that the index has got since the last call, up to the first that is damaged. Returns their
        keys; the first record without a line is number `len(keys)`. Raises OSError."""
        if self._index is None:
            index = _File(self._index_path, os.O_RDONLY)
            header = _pread(index, HEADER_BYTES, 0)
            if len(header) < HEADER_BYTES:
                return []  # it is being made
            self.is_broken = header != self._form.header()
            self._index = index
        first = len(self.keys)
        data = b"" if self.is_broken else _pread(self._index, None, HEADER_BYTES + first * LINE_BYTES)
        for at in range(0, len(data) // LINE_BYTES * LINE_BYTES, LINE_BYTES):
            fields = data[at : at + _LINE.size]
            key, slot, _ = _LINE.unpack(fields)
            check = data[at + _LINE.size : at + LINE_BYTES]
            if slot != len(self.keys) or check != self._form.check(fields, _LINE_CHECK):
                self.is_broken = True
                break
            self.keys.append(key)
        self.num_bytes = sum(_size_of(path) for path in (self._index_path, self._records_path))
        return self.keys[first:]

    def read(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return records [first, first + count), [R, record_bytes], fewer if the file ends before. Raises OSError."""
        records = self._records
        if records is None:
            records = self._records = _File(self._records_path, os.O_RDONLY)
        size = self._form.record_bytes
        buffer = np.empty(count * size, dtype=np.uint8)
        view, at, start = memoryview(buffer), 0, HEADER_BYTES + first * size
        while at < len(buffer) and (done := os.preadv(records.fileno(), [view[at:]], start + at)):
            at += done
        return buffer[: at // size * size].reshape(-1, size)

    def note_use(self, now: float) -> None:
        """Note, on disk too, that pages of it are of use."""
        if now - self._noted > _NOTE_SECONDS:
            self._noted = now
            with contextlib.suppress(OSError):  # another process has removed it
                os.utime(self._index_path, (now, now))

    # Writing

    def create(self) -> None:
        """Make the files of a segment that is written here. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._records = _File(self._records_path, flags)
        self._index = _File(self._index_path, flags)
        header = self._form.header()
        _pwrite(self._records, [header], 0)
        _pwrite(self._index, [header], 0)
        self.num_bytes = 2 * HEADER_BYTES

    def append(self, pages: Sequence[DiskPage]) -> None:
        """Append pages, the records before their lines. After an OSError nothing more is appended to it."""
        assert self._records is not None
        assert self._index is not None
        first = len(self.keys)
        parts: list[bytes | NDArray[np.uint8]] = []
        for page in pages:
            parts += (self._form.head(page), page.content)
        _pwrite(self._records, parts, HEADER_BYTES + first * self._form.record_bytes)
        lines = b"".join(self._form.line(page.key, first + at) for at, page in enumerate(pages))
        _pwrite(self._index, [lines], HEADER_BYTES + first * LINE_BYTES)
        self.keys += [page.key for page in pages]
        self.num_bytes += len(pages) * (self._form.record_bytes + LINE_BYTES)

    def strike(self, slot: int) -> None:
        """Overwrite the head of a record with zeros, so that it is never read again. Raises OSError."""
        _pwrite(
            _File(self._records_path, os.O_WRONLY),
            [bytes(HEAD_BYTES)],
            HEADER_BYTES + slot * self._form.record_bytes,
        )

    def remove(self) -> None:
        """Delete the files. Threads and processes that read them go on."""
        for path in (self._index_path, self._records_path):
            path.unlink(missing_ok=True)


class _File:
    """An open file that is no link, readable for nobody else if it is new. Closed when nobody refers to it."""

    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _pread(file: _File, size: int | None, at: int) -> bytes:
    """Read `size` bytes from `at` on, fewer at the file's end; None: all there are."""
    left = max(0, os.fstat(file.fileno()).st_size - at) if size is None else size
    parts = []
    while left > 0 and (part := os.pread(file.fileno(), left, at)):
        parts.append(part)
        left -= len(part)
        at += len(part)
    return b"".join(parts)


_MAX_PARTS = 512  # of one call; the system allows 1,024


def _pwrite(file: _File, parts: Sequence[bytes | NDArray[np.uint8]], at: int) -> None:
    """Write all parts, one after the other."""
    left = [memoryview(part).cast("B") for part in parts]
    while left:
        done = os.pwritev(file.fileno(), left[:_MAX_PARTS], at)
        at += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left and done:
            left[0] = left[0][done:]
