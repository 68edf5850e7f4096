"""The store of pages on disk: what is read is what was written, or nothing."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ramiform.radix.packed_tokens import pack
from ramiform.runtime.disk import segment as segment_module
from ramiform.runtime.disk.page_keys import PAGE_TOKEN_BYTES
from ramiform.runtime.disk.segment import HEADER_BYTES, DiskPage, SegmentFormat
from ramiform.runtime.disk.store import MIN_RECORDS, PageStore

from .damage import damage, files

PAGE_BYTES = 3000
FORM = SegmentFormat(b"secret" * 5, bytes(16), PAGE_BYTES)
LEAST = MIN_RECORDS * FORM.record_bytes


def page(number: int) -> DiskPage:
    luck = np.random.default_rng(number)
    tokens = pack(luck.integers(1 << 20, size=16).tolist())
    return DiskPage(number.to_bytes(16, "big"), tokens, luck.integers(256, size=PAGE_BYTES, dtype=np.uint8))


def store(folder: Path, max_bytes: int = 100 * LEAST) -> PageStore:
    return PageStore(folder, FORM, max_bytes)


def kill(opened: PageStore) -> None:
    """Leave a store as a process does that is killed."""
    os.close(opened._lock)


def found(opened: PageStore, pages: Sequence[DiskPage]) -> int:
    """Count the first of the pages that are read. Raises AssertionError for one that is not what was written."""
    read = opened.read([each.key for each in pages], b"".join(each.tokens for each in pages))
    for own, each in zip(read, pages, strict=False):
        assert (own == each.content).all(), "a page is not what was written"
    return len(read)


def test_pages_are_there_after_a_kill(tmp_path: Path) -> None:
    pages = [page(number) for number in range(100)]
    first = store(tmp_path)
    first.append(pages[:60])
    first.append(pages[40:])
    assert found(first, pages) == 100
    kill(first)
    second = store(tmp_path)
    assert second.is_writer
    assert found(second, pages) == 100
    assert second.counters.num_saved == 0
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in (*files(tmp_path, "index"), *files(tmp_path, "pages")))


def test_the_tokens_are_compared_not_only_the_key(tmp_path: Path) -> None:
    opened = store(tmp_path)
    opened.append([page(1)])
    assert len(opened.read([page(1).key], page(2).tokens)) == 0


def test_one_process_writes_and_another_follows_and_takes_over(tmp_path: Path) -> None:
    writer = store(tmp_path)
    writer.append([page(1)])
    reader = store(tmp_path)
    assert (writer.is_writer, reader.is_writer) == (True, False)
    assert found(reader, [page(1)]) == 1
    writer.append([page(2)])
    assert found(reader, [page(2)]) == 0
    reader.refresh()
    assert found(reader, [page(1), page(2)]) == 2
    reader.append([page(3)])
    assert found(reader, [page(3)]) == 0, "only one writes"
    kill(writer)
    reader.refresh()
    assert reader.is_writer
    reader.append([page(3)])
    assert found(reader, [page(1), page(2), page(3)]) == 3


def test_the_segment_used_least_recently_makes_room(tmp_path: Path) -> None:
    opened = store(tmp_path, LEAST)
    groups = [[page(100 * group + at) for at in range(3)] for group in range(60)]
    for group, pages in enumerate(groups):
        opened.append(pages)
        for at, file in enumerate(files(tmp_path, "index")):
            os.utime(file, (at, at) if at else (10**6, 10**6))  # the oldest is in use
        assert opened.num_bytes <= LEAST, group
    assert found(opened, groups[0]) == 3
    assert found(opened, groups[1]) == 0
    assert found(opened, groups[-1]) == 3
    assert opened.counters.num_evicted > 0
    assert sum(file.stat().st_size for file in tmp_path.glob("*/*")) <= LEAST


def test_use_is_noted_on_disk(tmp_path: Path) -> None:
    opened = store(tmp_path)
    opened.append([page(1)])
    (index,) = files(tmp_path, "index")
    os.utime(index, (0, 0))
    opened.note_use([page(1).key, page(2).key])
    assert index.stat().st_mtime > time.time() - 60


def test_formats_that_nobody_uses_make_room_first(tmp_path: Path) -> None:
    old = PageStore(tmp_path, FORM._replace(digest=b"1" * 16), LEAST)
    used = PageStore(tmp_path, FORM._replace(digest=b"2" * 16), LEAST)
    for other in (old, used):
        other.append([page(number) for number in range(100)])
    kill(old)
    opened = store(tmp_path, LEAST + MIN_RECORDS)
    opened.append([page(number) for number in range(100)])
    assert not (tmp_path / (b"1" * 16).hex()).exists()
    assert found(used, [page(0)]) == 1, "a format that another process writes is left alone"
    assert found(opened, [page(number) for number in range(100)]) == 100


def test_a_full_disk_stops_the_writing_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = store(tmp_path)
    opened.append([page(1)])

    def no_space(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segment_module.os, "pwritev", no_space)
    opened.append([page(2)])
    opened.append([page(3)])
    monkeypatch.undo()
    assert opened.has_failed
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left" in caplog.text
    assert found(opened, [page(1)]) == 1
    assert found(opened, [page(2)]) == found(opened, [page(3)]) == 0
    kill(opened)
    assert found(store(tmp_path), [page(1)]) == 1


def test_struck_pages_never_come_back(tmp_path: Path) -> None:
    pages = [page(number) for number in range(5)]
    first = store(tmp_path)
    first.append(pages)
    first.strike([pages[2].key, page(9).key])
    assert found(first, pages) == 2
    kill(first)
    second = store(tmp_path)
    assert found(second, pages) == 2
    assert found(second, pages[3:]) == 2, "the others of the segment stay"
    second.append([pages[2]])
    assert found(second, pages) == 5


def test_clearing_removes_the_files(tmp_path: Path) -> None:
    opened = store(tmp_path)
    opened.append([page(1)])
    reader = store(tmp_path)
    reader.clear()
    assert found(reader, [page(1)]) == 0
    assert found(opened, [page(1)]) == 1
    opened.clear()
    assert not files(tmp_path, "pages") + files(tmp_path, "index")
    assert found(opened, [page(1)]) == 0
    opened.append([page(1)])
    assert found(opened, [page(1)]) == 1


def check_damage(folder: Path, seed: int) -> int:
    """Damage a store, and read everything from it; write again, and read again. Returns the pages compared."""
    luck = random.Random(seed)
    pages = [page(number) for number in range(24)]
    first = store(folder)
    for at in range(0, 24, 6):
        first.append(pages[at : at + 6])
    is_live = luck.random() < 0.3  # damaged while it is open
    if not is_live:
        kill(first)
    for _ in range(luck.randint(1, 3)):
        damage(folder, FORM.record_bytes, luck)
    opened = first if is_live else store(folder)
    count = sum(found(opened, [each]) for each in pages)
    opened.append(pages)
    count += sum(found(opened, [each]) for each in pages)
    kill(opened)
    again = store(folder)
    count += sum(found(again, [each]) for each in pages)
    kill(again)
    return count


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_give_the_right_pages_or_none(tmp_path: Path, seed: int) -> None:
    assert check_damage(tmp_path, seed) > 24, "what was dropped can be written again"


def test_a_page_that_was_dropped_is_written_again(tmp_path: Path) -> None:
    pages = [page(number) for number in range(8)]
    opened = store(tmp_path)
    opened.append(pages)
    (file,) = files(tmp_path, "pages")
    data = bytearray(file.read_bytes())
    data[HEADER_BYTES + 3 * FORM.record_bytes + 500] ^= 1
    file.write_bytes(data)
    assert found(opened, pages) == 3
    assert opened.counters.num_damaged == 5, "from that place on"
    opened.append(pages)
    assert found(opened, pages) == 8


def test_a_million_tokens_are_indexed_in_a_second(tmp_path: Path) -> None:
    form = FORM._replace(page_bytes=16)
    count = 62_500
    first = PageStore(tmp_path, form, 1 << 30)
    content = np.zeros(16, dtype=np.uint8)
    tokens = bytes(PAGE_TOKEN_BYTES)
    first.append([DiskPage(number.to_bytes(16, "big"), tokens, content) for number in range(count)])
    kill(first)
    start = time.process_time()
    second = PageStore(tmp_path, form, 1 << 30)
    assert second.num_pages == count
    assert time.process_time() - start < 1.0


def check_kill(folder: Path, luck: random.Random) -> int:
    """Kill a process that writes pages, at a random time; return how many of them are there afterwards."""
    child = os.fork()
    if not child:
        opened = store(folder, 3 * LEAST)
        for number in range(0, 1 << 20, 4):  # pages that come again were removed meanwhile, to make room
            opened.append([page(at % 2000) for at in range(number, number + 4)])
        os._exit(0)
    time.sleep(luck.uniform(0.0, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    opened = store(folder, 3 * LEAST)
    assert opened.is_writer
    count = sum(found(opened, [page(number)]) for number in range(2000))
    assert count == opened.num_pages
    kill(opened)
    return count


def test_a_kill_at_any_time_leaves_right_pages(tmp_path: Path) -> None:
    luck = random.Random(3)
    assert max(check_kill(tmp_path, luck) for _ in range(8)) > 0
