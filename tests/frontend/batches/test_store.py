"""The folder of files and batches: whenever a server ends, each row has one result or none."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramiform.runtime.frontend.api.validation import NotFoundError
from ramiform.runtime.frontend.batches import store as store_module
from ramiform.runtime.frontend.batches.lines import LineAnswer, read_rows, result_line
from ramiform.runtime.frontend.batches.records import KEPT_SECONDS, LineResult, RowPlace, StoredBatch, StoredFile
from ramiform.runtime.frontend.batches.store import STORAGE_ERRORS, BatchStore
from ramiform.runtime.protocol.errors import BusyError, RequestError, RuntimeFailed

NOW = 1_000_000
URL = "/v1/completions"


def line(number: int, **changes: Any) -> bytes:
    return json.dumps({"custom_id": f"row {number}", "method": "POST", "url": URL, "body": {}} | changes).encode()


def opened(folder: Path, *, keeper: bool = True, now: float = NOW) -> BatchStore:
    return BatchStore(folder, keeper=keeper, clock=lambda: now)


def stored(store: BatchStore, data: bytes, owner: str = "a") -> StoredFile:
    return store.add_file(
        io.BytesIO(data), owner=owner, filename="in.jsonl", purpose="batch", expires_at=NOW + KEPT_SECONDS
    )


def batch_of(store: BatchStore, num: int, owner: str = "a") -> StoredBatch:
    """A batch in progress."""
    file = stored(store, b"\n".join(map(line, range(num))), owner)
    batch = StoredBatch(
        id=f"batch_{file.id}",
        owner=owner,
        kind="openai",
        endpoint=URL,
        input_file=file.id,
        output_file=f"{file.id}o",
        error_file=f"{file.id}e",
        expires_at=NOW + 60,
        times={"validating": NOW},
    )
    store.add_batch(batch)
    rows, errors = read_rows(store.path(file.id), [URL], URL)
    assert not errors
    return store.begin_rows(batch.id, rows, 4)


def results(store: BatchStore, batch: StoredBatch, rows: list[RowPlace]) -> list[LineResult]:
    """Answers of rows; every third is an error."""
    found = []
    for row in rows:
        custom_id = store.read_lines(batch, [row])[0].custom_id
        status = 400 if int(custom_id.split()[1]) % 3 == 0 else 200
        found.append(LineResult(row.position, *result_line("openai", custom_id, LineAnswer(status, {}))))
    return found


def finish(store: BatchStore, batch: StoredBatch) -> tuple[list[Any], list[Any]]:
    """Answer what is open, and return the lines of both files."""
    while rows := store.open_rows(batch.id, -1, 3):
        store.commit(batch.id, results(store, batch, rows))
    store.finish(batch.id, "completed")
    over = store.batch(batch.owner, "openai", batch.id)
    contents = [
        store.path(store.file(over.owner, name).id).read_bytes() for name in (over.output_file, over.error_file)
    ]
    assert [len(content) for content in contents] == [over.output_bytes, over.error_bytes]
    answered, failed = ([json.loads(part) for part in content.splitlines()] for content in contents)
    assert (over.status, over.num_completed, over.num_failed) == ("completed", len(answered), len(failed))
    return answered, failed


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("kind", [Killed, OSError, sqlite3.OperationalError])
def test_a_server_that_ends_anywhere_loses_no_row_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, kind: type[BaseException]
) -> None:
    store = opened(tmp_path / "a")
    batch = batch_of(store, 9)
    steps = 0

    def interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == step + 1:
                raise kind
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(store_module.os, "fsync", interrupted(os.fsync))
        patch.setattr(store_module.os, "ftruncate", interrupted(os.ftruncate))
        patch.setattr(store, "_is_open", interrupted(store._is_open))
        try:
            for _ in range(2):
                store.commit(batch.id, results(store, batch, store.open_rows(batch.id, -1, 3)))
        except kind:
            assert issubclass(kind, (*STORAGE_ERRORS, Killed))
        else:
            assert step >= 10
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # what a killed process leaves: nothing of it is closed
    for again in (opened(tmp_path / "b"), store):  # the next server, and this one after its disk has room again
        answered, failed = finish(again, batch)
        assert sorted(one["custom_id"] for one in answered) == [f"row {number}" for number in (1, 2, 4, 5, 7, 8)]
        assert sorted(one["custom_id"] for one in failed) == [f"row {number}" for number in (0, 3, 6)]
        again.close()


def test_half_a_line_is_cut_off_before_the_next_is_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    batch = batch_of(store, 9)
    store.commit(batch.id, results(store, batch, store.open_rows(batch.id, -1, 4)))
    for name in (batch.output_file, batch.error_file):
        with store.path(name).open("ab") as file:
            file.write(b'{"id": "batch_req_')
    store.close()
    answered, failed = finish(opened(tmp_path), batch)
    assert (len(answered), len(failed)) == (6, 3)


def test_a_result_that_is_written_twice_counts_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    batch = batch_of(store, 6)
    rows = store.open_rows(batch.id, -1, 6)
    for _ in range(2):
        store.commit(batch.id, results(store, batch, rows))
    answered, failed = finish(store, batch)
    assert (len(answered), len(failed)) == (4, 2)
    store.commit(batch.id, results(store, batch, rows))  # by a task that was late
    assert store.batch("a", "openai", batch.id).num_completed == 4


def test_a_full_disk_changes_nothing_and_the_batch_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    batch = batch_of(store, 9)
    [num_pages] = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count={num_pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.begin_rows(batch.id, [RowPlace(position, 0, 1) for position in range(9, 3000)], 4)
    store._database.execute("PRAGMA max_page_count=1000000")
    assert store.batch("a", "openai", batch.id) == batch
    assert [len(lines) for lines in finish(store, batch)] == [6, 3]

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(RuntimeFailed, match="cannot be stored"):
        stored(store, b"x")
    assert not list(tmp_path.rglob("*.part"))


def test_a_second_server_in_the_folder_is_refused_with_the_reason(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from ramiform.runtime.frontend.batches.store import BatchStore\n"
        "store = BatchStore(pathlib.Path(sys.argv[1]), keeper=True); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(RequestError, match=rf"another server, process {other.pid}, uses"):
            opened(tmp_path)
        opened(tmp_path, keeper=False).close()  # another frontend of the same server
        other.kill()
    opened(tmp_path).close()


def test_what_belongs_to_one_owner_is_invisible_to_another(tmp_path: Path) -> None:
    store = opened(tmp_path)
    batch = batch_of(store, 2)
    for ask in (
        lambda: store.file("b", batch.input_file),
        lambda: store.delete_file("b", batch.input_file),
        lambda: store.batch("b", "openai", batch.id),
        lambda: store.cancel("b", "openai", batch.id),
        lambda: store.delete_batch("b", "openai", batch.id),
        lambda: store.batch("a", "anthropic", batch.id),
    ):
        with pytest.raises(NotFoundError):
            ask()
    assert store.files("b", None, None, 10, "desc") == []
    assert store.batches("b", "openai", 10) == []
    with pytest.raises(RequestError, match="no 'file-"):
        store.files("b", None, batch.input_file, 10, "desc")


def test_limits_of_an_owner_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    monkeypatch.setattr(store_module, "MAX_OWNER_BYTES", 1000)
    monkeypatch.setattr(store_module, "MAX_OWNER_FILES", 2)
    monkeypatch.setattr(store_module, "MAX_OWNER_BATCHES", 1)
    with pytest.raises(RequestError, match="1000 bytes, and 0 are used"):
        stored(store, b"x" * 1001)
    first = stored(store, b"x" * 600)
    with pytest.raises(RequestError, match="600 are used"):
        stored(store, b"x" * 401)
    stored(store, b"x" * 900, "b")
    stored(store, b"x")
    with pytest.raises(RequestError, match="2 files"):
        stored(store, b"x")
    store.delete_file("a", first.id)
    batch = batch_of(store, 1)
    with pytest.raises(BusyError, match="not over yet"):
        store.add_batch(batch)
    with pytest.raises(RequestError, match=f"the batch {batch.id} reads the file"):
        store.delete_file("a", batch.input_file)
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == sorted(
        file.id for owner in "ab" for file in store.files(owner, None, None, 10, "asc")
    )


def test_pages_of_lists_are_complete_in_both_directions(tmp_path: Path) -> None:
    store = opened(tmp_path)
    ids = [batch_of(store, 1).id for _ in range(5)]
    files = [file.id for file in store.files("a", "batch", None, 10, "asc")]
    assert [file.id for file in store.files("a", None, files[1], 2, "asc")] == files[2:4]
    assert [file.id for file in store.files("a", None, files[3], 9, "desc")] == files[2::-1]
    newest = ids[::-1]
    assert [batch.id for batch in store.batches("a", "openai", 2)] == newest[:2]
    assert [batch.id for batch in store.batches("a", "openai", 2, after=newest[1])] == newest[2:4]
    assert [batch.id for batch in store.batches("a", "openai", 2, before=newest[3])] == newest[1:3]


def test_what_has_expired_is_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    batch, running = batch_of(store, 3), batch_of(store, 3)
    finish(store, batch)
    store.close()
    later = opened(tmp_path, now=NOW + KEPT_SECONDS + 1)
    with pytest.raises(NotFoundError):
        later.file("a", batch.input_file)
    later.remove_expired()
    assert [one.id for one in later.batches("a", "openai", 9)] == [running.id]
    assert [path.name for path in (tmp_path / "files").iterdir()] == [running.input_file]


def test_files_are_their_users_alone(tmp_path: Path) -> None:
    store = opened(tmp_path / "new")
    batch = batch_of(store, 3)
    store.commit(batch.id, results(store, batch, store.open_rows(batch.id, -1, 3)))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new/files").iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (line(1) + b"\n{", "invalid_json_line", 2),
        (b'{"custom_id": "\xff"}', "invalid_json_line", 1),
        (line(1, more=1), "invalid_json_line", 1),
        (b'{"custom_id": "a", "url": "/v1/completions"}', "invalid_json_line", 1),
        (b"[" * 100_000, "invalid_json_line", 1),
        (line(1, method="GET"), "invalid_method", 1),
        (line(1, custom_id=""), "invalid_custom_id", 1),
        (line(1, custom_id="a" * 513), "invalid_custom_id", 1),
        (line(1) + b"\n\n" + line(1), "duplicate_custom_id", 3),
        (line(1, url="/v1/score"), "mismatched_endpoint", 1),
        (line(1, body=[]), "invalid_body", 1),
    ],
)
def test_a_file_that_is_no_batch_is_refused_by_its_line(
    tmp_path: Path, data: bytes, code: str, number: int | None
) -> None:
    (tmp_path / "in").write_bytes(data)
    _, errors = read_rows(tmp_path / "in", [URL, "/v1/score"], URL)
    assert [(error.code, error.line) for error in errors] == [(code, number)]


def test_rows_may_name_any_route_where_the_batch_names_none(tmp_path: Path) -> None:
    lines = [line(1), line(2, url="/v1/score"), line(3, url="/v1/rerank")]
    (tmp_path / "in").write_bytes(b"\n".join(lines))
    rows, errors = read_rows(tmp_path / "in", [URL, "/v1/score"], None)
    assert [row.start for row in rows] == [0, len(lines[0]) + 1, len(lines[0]) + len(lines[1]) + 2]
    assert [(error.code, error.line) for error in errors] == [("invalid_url", 3)]
