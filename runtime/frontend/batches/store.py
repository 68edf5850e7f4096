"""The folder of files and batches: a SQLite database beside the files. Knows nothing of models and requests.

A result is appended to its file and synced before the transaction that counts it: lines behind the counted length are
cut off before the next are written. So whenever the process ends, each row is either in its file once, or still open.
Methods block; they may be called from any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from ...protocol.errors import BusyError, RequestError, RuntimeFailed
from ..api.validation import NotFoundError
from .lines import BatchLine, batch_line
from .records import Ending, FilePurpose, LineError, LineResult, RowPlace, StoredBatch, StoredFile, new_name

MAX_OWNER_BYTES = 4 << 30  # of an owner's files
MAX_OWNER_FILES = 10_000
MAX_OWNER_BATCHES = 100  # that are not over
STORAGE_ERRORS = (OSError, sqlite3.OperationalError)  # a full disk, or one that fails: the same may succeed later
_VERSION = 1
_COPIED = 1 << 20  # bytes at once
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, purpose TEXT NOT NULL,
    num_bytes INTEGER NOT NULL, expires_at INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS batches (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, kind TEXT NOT NULL,
    is_over INTEGER NOT NULL, input_file TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rows (
    batch TEXT NOT NULL, position INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    state TEXT NOT NULL, PRIMARY KEY (batch, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, seq);
CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner, kind, seq);
CREATE INDEX IF NOT EXISTS open_batches ON batches (seq) WHERE NOT is_over;
"""


class BatchStore:
    """Files and batches in `folder`. One server uses it: its first frontend is the `keeper`, who holds the lock."""

    def __init__(self, folder: Path, *, keeper: bool, clock: Callable[[], float] = time.time) -> None:
        """Open or make the folder. Raises RequestError when another server uses it, or it cannot be used."""
        self._clock = clock
        self._files = folder / "files"
        self._mutex = threading.RLock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.mkdir(mode=0o700, exist_ok=True)
            self._lock = _locked(folder / "lock") if keeper else None
            self._database = sqlite3.connect(
                folder / "batches.sqlite", timeout=60, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except (OSError, sqlite3.DatabaseError) as error:
            raise RequestError(f"{folder} cannot be used for batches: {error}", param="batch_dir") from None
        if keeper:
            self._remove_unknown_files()

    def close(self) -> None:
        with self._mutex:
            self._database.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        with self._transaction():
            [version] = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise OSError("it was written by another version of ramiform")
            for statement in _SCHEMA.split(";"):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version={_VERSION}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    # Files

    def add_file(
        self, source: BinaryIO, *, owner: str, filename: str, purpose: FilePurpose, expires_at: int
    ) -> StoredFile:
        """Copy a file. Raises RequestError beyond the owner's limits, RuntimeFailed on a full disk."""
        name = new_name("file-")
        part = self._files / f"{name}.part"
        try:
            with open(part, "xb", opener=_private) as target:
                shutil.copyfileobj(source, target, _COPIED)
                target.flush()
                os.fsync(target.fileno())
                num_bytes = target.tell()
            file = StoredFile(
                id=name,
                owner=owner,
                filename=filename,
                purpose=purpose,
                num_bytes=num_bytes,
                created_at=int(self._clock()),
                expires_at=expires_at,
            )
            with self._transaction():
                self._check_room(owner, num_bytes)
                part.rename(self.path(name))
                self._insert_file(file)
        except STORAGE_ERRORS as error:
            raise RuntimeFailed(f"the file cannot be stored: {error}") from None
        finally:
            part.unlink(missing_ok=True)
        return file

    def _check_room(self, owner: str, num_bytes: int) -> None:
        query = "SELECT count(*), coalesce(sum(num_bytes), 0) FROM files WHERE owner=?"
        num_files, used = self._database.execute(query, (owner,)).fetchone()
        if num_files >= MAX_OWNER_FILES:
            raise RequestError(f"a key may store {MAX_OWNER_FILES} files: delete some", param="file", code="too_large")
        if used + num_bytes > MAX_OWNER_BYTES:
            message = f"a key may store {MAX_OWNER_BYTES} bytes, and {used} are used: delete files"
            raise RequestError(message, param="file", code="too_large")

    def _insert_file(self, file: StoredFile) -> None:
        self._database.execute(
            "INSERT INTO files (id, owner, purpose, num_bytes, expires_at, data) VALUES (?, ?, ?, ?, ?, ?)",
            (file.id, file.owner, file.purpose, file.num_bytes, file.expires_at, msgspec.json.encode(file)),
        )

    def path(self, name: str) -> Path:
        """Return where a file's content is."""
        return self._files / name

    def file(self, owner: str, name: str, *, param: str = "file_id") -> StoredFile:
        """Return an owner's file. Raises NotFoundError."""
        found = self._row("SELECT data FROM files WHERE id=? AND owner=? AND expires_at>?", name, owner, self._clock())
        if found is None:
            message = f"there is no file {name!r}: it was deleted, or has expired"
            raise NotFoundError(message, param=param, code="not_found")
        return msgspec.json.decode(found[0], type=StoredFile)

    def files(
        self, owner: str, purpose: str | None, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> list[StoredFile]:
        """Return a page of an owner's files, of `limit` files at most. Raises RequestError for an unknown `after`."""
        purposes = ("batch", "batch_output") if purpose is None else (purpose,)
        seq = self._place("files", owner, after, "after")
        compare = ">" if order == "asc" else "<"
        rows = self._rows(
            f"SELECT data FROM files WHERE owner=? AND purpose IN ({','.join('?' * len(purposes))}) AND expires_at>? "
            f"AND (? IS NULL OR seq {compare} ?) ORDER BY seq {order} LIMIT ?",
            *(owner, *purposes, self._clock(), seq, seq, limit),
        )
        return [msgspec.json.decode(data, type=StoredFile) for [data] in rows]

    def delete_file(self, owner: str, name: str) -> None:
        """Delete a file. Raises NotFoundError, and RequestError while a batch reads it."""
        self.file(owner, name)
        with self._transaction() as database:
            reader = database.execute("SELECT id FROM batches WHERE input_file=? AND NOT is_over", (name,)).fetchone()
            if reader is not None:
                message = f"the batch {reader[0]} reads the file {name!r}: cancel it first"
                raise RequestError(message, param="file_id", code="file_in_use")
            database.execute("DELETE FROM files WHERE id=?", (name,))
        self.path(name).unlink(missing_ok=True)

    # Batches

    def add_batch(self, batch: StoredBatch) -> None:
        """Store a new batch. Raises RequestError when too many of its owner's are not over."""
        with self._transaction() as database:
            query = "SELECT count(*) FROM batches WHERE owner=? AND NOT is_over"
            if database.execute(query, (batch.owner,)).fetchone()[0] >= MAX_OWNER_BATCHES:
                raise BusyError(f"{MAX_OWNER_BATCHES} batches of this key are not over yet")
            database.execute(
                "INSERT INTO batches (id, owner, kind, is_over, input_file, data) VALUES (?, ?, ?, 0, ?, ?)",
                (batch.id, batch.owner, batch.kind, batch.input_file, msgspec.json.encode(batch)),
            )

    def batch(self, owner: str, kind: str, name: str) -> StoredBatch:
        """Return an owner's batch. Raises NotFoundError."""
        found = self._row("SELECT data FROM batches WHERE id=? AND owner=? AND kind=?", name, owner, kind)
        if found is None:
            raise NotFoundError(f"there is no batch {name!r}", param="batch_id", code="not_found")
        return msgspec.json.decode(found[0], type=StoredBatch)

    def batches(
        self, owner: str, kind: str, limit: int, *, after: str | None = None, before: str | None = None
    ) -> list[StoredBatch]:
        """Return a page of an owner's batches, newest first: those older than `after`, or the next newer ones than
        `before`. Raises RequestError for an unknown one."""
        older, newer = self._place("batches", owner, after, "after"), self._place("batches", owner, before, "before")
        rows = self._rows(
            "SELECT data FROM batches WHERE owner=? AND kind=? AND (? IS NULL OR seq<?) AND (? IS NULL OR seq>?) "
            f"ORDER BY seq {'DESC' if newer is None else 'ASC'} LIMIT ?",
            *(owner, kind, older, older, newer, newer, limit),
        )
        found = [msgspec.json.decode(data, type=StoredBatch) for [data] in rows]
        return found if newer is None else found[::-1]

    def cancel(self, owner: str, kind: str, name: str) -> StoredBatch:
        """Ask for the end of a batch, unless it is over or ending. Raises NotFoundError."""
        self.batch(owner, kind, name)

        def change(batch: StoredBatch) -> None:
            if batch.status in ("validating", "in_progress"):
                batch.begin("cancelling", self._clock())

        return self._update(name, change)

    def delete_batch(self, owner: str, kind: str, name: str) -> None:
        """Delete a batch that is over, with its results. Raises NotFoundError, and RequestError for one that runs."""
        batch = self.batch(owner, kind, name)
        if not batch.is_over:
            raise RequestError(f"the batch {name!r} is not over: cancel it first", param="batch_id")
        self._forget([batch])

    # The keeper's

    def open_batches(self) -> list[StoredBatch]:
        """Return the batches of all owners that are not over, oldest first."""
        rows = self._rows("SELECT data FROM batches WHERE NOT is_over ORDER BY seq")
        return [msgspec.json.decode(data, type=StoredBatch) for [data] in rows]

    def begin_rows(self, name: str, rows: Sequence[RowPlace], num_abreast: int) -> StoredBatch:
        """Store the order of a batch's rows; it is in progress, unless it was cancelled meanwhile."""

        def change(batch: StoredBatch) -> None:
            values = ((name, row.position, row.start, row.size) for row in rows)
            self._database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, 'open')", values)
            batch.has_order, batch.num_rows, batch.num_abreast = True, len(rows), num_abreast
            if batch.status == "validating":
                batch.begin("in_progress", self._clock())

        return self._update(name, change)

    def refuse(self, name: str, errors: Sequence[LineError]) -> None:
        """End a batch whose input file is wrong."""

        def change(batch: StoredBatch) -> None:
            batch.errors = list(errors)
            batch.begin("failed", self._clock())

        self._update(name, change)

    def open_rows(self, name: str, after: int, limit: int) -> list[RowPlace]:
        """Return the next rows of a batch without a result, in their order, behind a position."""
        query = "SELECT position, start, size FROM rows WHERE batch=? AND position>? AND state='open' LIMIT ?"
        return [RowPlace(*row) for row in self._rows(query, name, after, limit)]

    def read_lines(self, batch: StoredBatch, rows: Sequence[RowPlace]) -> list[BatchLine]:
        """Return the lines of rows."""
        found = []
        with self.path(batch.input_file).open("rb") as lines:
            for row in rows:
                lines.seek(row.start)
                found.append(batch_line(lines.read(row.size)))
        return found

    def commit(self, name: str, results: Sequence[LineResult]) -> StoredBatch:
        """Write results of rows, once each. Raises STORAGE_ERRORS, with nothing changed."""

        def change(batch: StoredBatch) -> None:
            if batch.is_over:
                return
            fresh = [result for result in results if self._is_open(name, result.position)]
            is_error = [batch.kind == "openai" and result.state != "completed" for result in fresh]
            outputs = [result.line for result, wrong in zip(fresh, is_error, strict=True) if not wrong]
            faults = [result.line for result, wrong in zip(fresh, is_error, strict=True) if wrong]
            batch.output_bytes = self._append(batch.output_file, batch.output_bytes, outputs)
            batch.error_bytes = self._append(batch.error_file, batch.error_bytes, faults)
            for state in ("completed", "failed", "cancelled", "expired"):
                count = getattr(batch, f"num_{state}") + sum(result.state == state for result in fresh)
                setattr(batch, f"num_{state}", count)
            values = ((result.state, name, result.position) for result in fresh)
            self._database.executemany("UPDATE rows SET state=? WHERE batch=? AND position=?", values)

        return self._update(name, change)

    def _is_open(self, name: str, position: int) -> bool:
        query = "SELECT 1 FROM rows WHERE batch=? AND position=? AND state='open'"
        return self._database.execute(query, (name, position)).fetchone() is not None

    def _append(self, name: str, length: int, lines: Sequence[bytes]) -> int:
        """Write lines at the end of the first `length` bytes of a file; return its new length."""
        if not lines:
            return length
        data = b"".join(line + b"\n" for line in lines)
        with open(self.path(name), "ab", opener=_private) as file:
            os.ftruncate(file.fileno(), length)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return length + len(data)

    def finish(self, name: str, ending: Ending) -> None:
        """End a batch all of whose results are written; its result files get their names."""

        def change(batch: StoredBatch) -> None:
            if batch.is_over:
                return
            now = self._clock()
            if ending == "completed":
                batch.begin("finalizing", now)
            batch.begin(ending, now)
            purpose: FilePurpose = "batch_output" if batch.kind == "openai" else "messages"
            for file, role, num_bytes in (
                (batch.output_file, "output", batch.output_bytes),
                (batch.error_file, "error", batch.error_bytes),
            ):
                if num_bytes:
                    os.truncate(self.path(file), num_bytes)
                    self._insert_file(
                        StoredFile(
                            id=file,
                            owner=batch.owner,
                            filename=f"{batch.id}_{role}.jsonl",
                            purpose=purpose,
                            num_bytes=num_bytes,
                            created_at=int(now),
                            expires_at=int(now) + batch.results_seconds,
                        )
                    )
            self._database.execute("DELETE FROM rows WHERE batch=?", (name,))

        batch = self._update(name, change)
        if batch.kind == "anthropic":  # nothing names its file of requests
            with self._transaction() as database:
                database.execute("DELETE FROM files WHERE id=?", (batch.input_file,))
            self.path(batch.input_file).unlink(missing_ok=True)

    def remove_expired(self) -> None:
        """Delete expired files, and batches that have long been over."""
        now = int(self._clock())
        with self._transaction() as database:
            expired = database.execute(
                "SELECT id FROM files WHERE expires_at<=? AND id NOT IN "
                "(SELECT input_file FROM batches WHERE NOT is_over)",
                (now,),
            ).fetchall()
            database.executemany("DELETE FROM files WHERE id=?", expired)
        for [name] in expired:
            self.path(name).unlink(missing_ok=True)
        rows = self._rows("SELECT data FROM batches WHERE is_over")
        over = [msgspec.json.decode(data, type=StoredBatch) for [data] in rows]
        self._forget([batch for batch in over if max(batch.times.values()) + batch.results_seconds <= now])

    def _forget(self, batches: Sequence[StoredBatch]) -> None:
        names = [(name,) for batch in batches for name in (batch.output_file, batch.error_file)]
        with self._transaction() as database:
            database.executemany("DELETE FROM batches WHERE id=?", [(batch.id,) for batch in batches])
            database.executemany("DELETE FROM files WHERE id=?", names)
        for [name] in names:
            self.path(name).unlink(missing_ok=True)

    def _update(self, name: str, change: Callable[[StoredBatch], None]) -> StoredBatch:
        """Change a batch in one transaction, as other processes see it."""
        with self._transaction() as database:
            [data] = database.execute("SELECT data FROM batches WHERE id=?", (name,)).fetchone()
            batch = msgspec.json.decode(data, type=StoredBatch)
            change(batch)
            values = (msgspec.json.encode(batch), batch.is_over, name)
            database.execute("UPDATE batches SET data=?, is_over=? WHERE id=?", values)
        return batch

    def _row(self, query: str, *values: object) -> tuple[bytes, ...] | None:
        return next(iter(self._rows(query, *values)), None)

    def _rows(self, query: str, *values: object) -> list[tuple[bytes, ...]]:
        with self._mutex:
            return self._database.execute(query, values).fetchall()

    def _place(self, table: Literal["files", "batches"], owner: str, name: str | None, param: str) -> int | None:
        if name is None:
            return None
        found = self._row(f"SELECT seq FROM {table} WHERE id=? AND owner=?", name, owner)
        if found is None:
            raise RequestError(f"there is no {name!r} in the list", param=param)
        return int(found[0])

    def _remove_unknown_files(self) -> None:
        """Delete what a server that was killed had begun to write."""
        known = {name for [name] in self._rows("SELECT id FROM files")}
        known |= {name for batch in self.open_batches() for name in (batch.output_file, batch.error_file)}
        for path in self._files.iterdir():
            if path.name not in known:
                path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _locked(path: Path) -> int:
    """Lock a folder for the life of this process. Raises RequestError naming the process that holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace") or "?"
        os.close(lock)
        message = f"another server, process {holder}, uses the batches of {path.parent}: give each a folder of its own"
        raise RequestError(message, param="batch_dir") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
