"""File of what a frontend remembers of conversations, from which it goes on after a restart. Knows no conversations.

Records are appended every second, so a kill loses that much. Each is checked together with those before it: what does
not agree ends the file there. Once the file has twice what is still remembered, it is written anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from ...protocol.config import CoreConfig
from ...protocol.errors import RequestError
from ...protocol.saved_state import SavedRecord, decode_record, encode_record
from ...tokenizer.interface import Tokenizer

logger = logging.getLogger("ramiform.frontend")

FLUSH_SECONDS = 1.0  # between two writes
MIN_REWRITE_BYTES = 16 << 20  # a smaller file is not written anew
MAX_FILE_BYTES = 1 << 30  # of which the rest is not read
MAX_SLOTS = 64  # frontends that share a folder
MAX_FOLDERS = 16  # of other models; the one used least recently is removed
_CHECK_BYTES = 16
_HEAD = struct.Struct(f"<I{_CHECK_BYTES}s")  # of a record: its bytes, and the check of it and all before it
_SUFFIX = ".journal"


class Journal:
    """The file of one frontend in `root / identity`: the first one from `slot` on that no process holds.

    `identity` names what records depend on. `rewrites` return all that is remembered, for a file that is written anew.
    """

    def __init__(
        self, root: Path, identity: str, slot: int = 0, *, seconds: float = FLUSH_SECONDS, rewrite: int | None = None
    ) -> None:
        """`seconds` lie between two writes; `rewrite` is the least size of a file that is written anew, in bytes.

        Raises OSError when the folder cannot be used, also when others may read it.
        """
        self.rewrites: list[Callable[[], Iterable[SavedRecord]]] = []
        self._folder = root / identity
        self._seed = blake2b(identity.encode(), digest_size=_CHECK_BYTES).digest()
        self._seconds = seconds
        self._rewrite_bytes = self._least_bytes = MIN_REWRITE_BYTES if rewrite is None else rewrite
        self._pending: list[SavedRecord] = []
        self._task: asyncio.Task[None] | None = None
        for folder in (root, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(folder.lstat(), folder)
        os.utime(self._folder)
        _remove_excess(root)
        self._path, self._lock = self._take_slot(slot)
        self._file: int | None = None
        self._size, self._check = 0, self._seed
        self.records = self._read()  # from before the restart, in order; none once it is started

    def read_others(self) -> list[list[SavedRecord]]:
        """Return the records of the other frontends' files, each in order."""
        paths = sorted(self._folder.glob(f"*{_SUFFIX}"))
        return [[record for record, *_ in self._records(path)] for path in paths if path != self._path]

    def _read(self) -> list[SavedRecord]:
        """Return this file's records, up to the first that is damaged; the next ones take its place."""
        records = []
        for record, end, check in self._records(self._path):
            records.append(record)
            self._size, self._check = end, check
        self._file = _open(self._path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._file, self._size)
        self._rewrite_bytes = max(self._least_bytes, 2 * self._size)
        return records

    def note(self, record: SavedRecord) -> None:
        """Have a record written with the next ones."""
        if self._file is not None:
            self._pending.append(record)

    def start(self) -> None:
        """Write from now on, on the current loop."""
        self.records = []
        self._task = asyncio.create_task(self._run(), name="journal")

    async def stop(self) -> None:
        """Write what is new, and let another process have the file."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def flush(self) -> None:
        """Write what is new."""
        self._write(*self._encode())

    async def _run(self) -> None:
        while self._file is not None:
            await asyncio.sleep(self._seconds)
            data = self._encode()
            writing = asyncio.ensure_future(asyncio.to_thread(self._write, *data))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await writing  # nothing else may write meanwhile
                raise

    def _encode(self) -> tuple[bytes, bytes, bool]:
        """Return the bytes to be written, the check after them, and whether they are the whole file."""
        records, self._pending = self._pending, []
        is_whole = self._size > self._rewrite_bytes
        if is_whole:
            records = [record for rewrite in self.rewrites for record in rewrite()]
        check, parts = (self._seed if is_whole else self._check), []
        for record in records:
            payload = encode_record(record)
            check = blake2b(payload, key=check, digest_size=_CHECK_BYTES).digest()
            parts += [_HEAD.pack(len(payload), check), payload]
        return b"".join(parts), check, is_whole

    def _write(self, data: bytes, check: bytes, is_whole: bool) -> None:
        """Write the bytes of records. When that fails, nothing is written any more."""
        if self._file is None or not (data or is_whole):
            return
        try:
            if is_whole:
                new = self._path.with_suffix(".new")
                file = _open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                _write_all(file, data, 0)
                new.replace(self._path)
                os.close(self._file)
                self._file, self._size = file, 0
            else:
                _write_all(self._file, data, self._size)
        except OSError as error:
            logger.error("conversations are not kept for a restart any more: %s: %s", self._path, error)
            os.close(self._file)
            self._file = None
            return
        self._size, self._check = self._size + len(data), check
        if is_whole:
            self._rewrite_bytes = max(self._least_bytes, 2 * self._size)

    def _records(self, path: Path) -> Iterator[tuple[SavedRecord, int, bytes]]:
        """Yield the whole records of a file, each with its end and its check."""
        try:
            file = _open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        check, at = self._seed, 0
        with os.fdopen(file, "rb") as data:
            left = min(MAX_FILE_BYTES, os.fstat(data.fileno()).st_size)
            while left - at >= _HEAD.size:
                num_bytes, found = _HEAD.unpack(data.read(_HEAD.size))
                at += _HEAD.size + num_bytes
                if at > left:
                    return
                payload = data.read(num_bytes)
                check = blake2b(payload, key=check, digest_size=_CHECK_BYTES).digest()
                record = decode_record(payload) if check == found else None
                if record is None:
                    logger.warning("%s is damaged: what comes after byte %d is forgotten", path, at - num_bytes)
                    return
                yield record, at, check

    def _take_slot(self, first: int) -> tuple[Path, int]:
        for slot in range(first, first + MAX_SLOTS):
            lock = _open(self._folder / f"{slot}.lock", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            return self._folder / f"{slot}{_SUFFIX}", lock
        raise OSError(errno.EBUSY, f"{MAX_SLOTS} frontends hold files in {self._folder}")


def open_journal(config: CoreConfig, tokenizer: Tokenizer, slot: int) -> Journal | None:
    """Open the file of the frontend `slot` in the folder of the disk cache; None without one.

    Raises RequestError when the folder cannot be used.
    """
    if config.disk_cache is None:
        return None
    identity = blake2b(repr(config.model).encode("utf-8", "surrogateescape"), digest_size=_CHECK_BYTES)
    names = {token: name.encode() for name, token in tokenizer.special_ids.items()}
    for token, data in enumerate(tokenizer.token_bytes):
        each = data or names.get(token, b"")
        identity.update(b"%d %d " % (token in names, len(each)) + each)
    try:
        return Journal(Path(config.disk_cache).expanduser().resolve() / "conversations", identity.hexdigest(), slot)
    except OSError as error:
        reason = error.strerror or "it is not usable"
        raise RequestError(f"cannot use the folder {config.disk_cache!r}: {reason}", param="disk_cache") from None


def _open(path: Path, flags: int) -> int:
    """Open a file that is no link and that nobody else may read. Raises OSError."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _check_private(os.fstat(file), path)
    except OSError:
        os.close(file)
        raise
    return file


def _check_private(found: os.stat_result, path: Path) -> None:
    forbidden = 0o022 if stat.S_ISDIR(found.st_mode) else 0o077
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & forbidden:
        raise PermissionError(errno.EPERM, f"{path} must belong to this user, and be closed to others")


def _write_all(file: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(file, left, at)
        left, at = left[done:], at + done


def _remove_excess(root: Path) -> None:
    """Remove the folders of models used least recently, but those that a process holds."""
    folders = sorted(root.iterdir(), key=lambda folder: folder.lstat().st_mtime, reverse=True)
    for folder in folders[MAX_FOLDERS:]:
        with contextlib.suppress(OSError), contextlib.ExitStack() as locks:
            for path in folder.glob("*.lock"):
                lock = _open(path, os.O_RDWR)
                locks.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
