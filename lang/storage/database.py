"""The file of a cache: answers by key in SQLite, shared by threads and processes, bounded in number and bytes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from ...runtime.protocol.errors import RequestError

APPLICATION_ID = 0x52414D49  # marks the file as ours
FORMAT = 1
BUSY_SECONDS = 30.0  # how long another process may keep the file locked
_TABLES = """
CREATE TABLE answers (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL, draw INTEGER NOT NULL,
                      answer BLOB NOT NULL, UNIQUE (key, draw));
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
"""


class AnswerDatabase:
    """Answers by key and number of the draw. Any thread may use it.

    Raises RequestError if the file is not one of these, is corrupt, or stays locked.
    """

    def __init__(self, path: Path, max_entries: int, max_bytes: int) -> None:
        self._path = path
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        with self._open():
            return  # so that a wrong file is refused at once

    def get(self, key: bytes, draw: int) -> bytes | None:
        """Return an answer, or None."""
        with self._open() as connection:
            row = connection.execute("SELECT answer FROM answers WHERE key = ? AND draw = ?", (key, draw)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, key: bytes, draw: int, answer: bytes) -> None:
        """Add an answer unless there is one; remove the oldest ones that no longer fit."""
        if len(answer) > self._max_bytes:
            return
        with self._open() as connection, _transaction(connection):
            added = connection.execute(
                "INSERT OR IGNORE INTO answers (key, draw, answer) VALUES (?, ?, ?)", (key, draw, answer)
            ).rowcount
            if added > 0:
                connection.execute("UPDATE totals SET entries = entries + 1, bytes = bytes + ?", (len(answer),))
                self._evict(connection)

    def totals(self) -> tuple[int, int]:
        """Return the number of answers and their bytes."""
        with self._open() as connection:
            entries, size = connection.execute("SELECT entries, bytes FROM totals").fetchone()
        return entries, size

    def clear(self) -> None:
        """Remove every answer."""
        with self._open() as connection:
            with _transaction(connection):
                connection.execute("DELETE FROM answers")
                connection.execute("UPDATE totals SET entries = 0, bytes = 0")
            connection.execute("VACUUM")

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may end
            self.close()

    def _evict(self, connection: sqlite3.Connection) -> None:
        while True:
            entries, size = connection.execute("SELECT entries, bytes FROM totals").fetchone()
            if entries <= self._max_entries and size <= self._max_bytes:
                return
            number, length = connection.execute("SELECT id, length(answer) FROM answers ORDER BY id LIMIT 1").fetchone()
            connection.execute("DELETE FROM answers WHERE id = ?", (number,))
            connection.execute("UPDATE totals SET entries = entries - 1, bytes = bytes - ?", (length,))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection of this process, and turn SQLite's errors into RequestError."""
        with self._lock:
            try:
                if self._connection is None or self._pid != os.getpid():  # SQLite's connections do not survive a fork
                    self._connection, self._pid = self._connect(), os.getpid()
                yield self._connection
            except (sqlite3.Error, TypeError) as error:  # TypeError: a table lacks the row that it always has
                raise RequestError(
                    f"{str(self._path)!r} cannot be used as a cache: {error}", param="path", code="invalid_cache"
                ) from None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            with _transaction(connection):
                [(mark,)] = connection.execute("PRAGMA application_id")
                [(version,)] = connection.execute("PRAGMA user_version")
                [(num_tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
                if num_tables == 0:
                    for statement in filter(str.strip, _TABLES.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                elif (mark, version) != (APPLICATION_ID, FORMAT):
                    raise sqlite3.DatabaseError(f"it is a database of another kind (format {version})")
        except BaseException:
            connection.close()
            raise
        return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
