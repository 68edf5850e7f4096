"""Published pages are on the disk five seconds later, by the tier's own clock, whenever its process is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ramiform.radix.cache import PrefixCache
from ramiform.radix.packed_tokens import pack
from ramiform.runtime.disk.page_keys import PAGE_TOKEN_BYTES, KvFormat, PageKeys
from ramiform.runtime.disk.segment import SegmentFormat
from ramiform.runtime.disk.store import MIN_RECORDS, PageStore
from ramiform.runtime.disk.tier import DiskTier
from ramiform.runtime.protocol.config import PAGE_SIZE
from ramiform.runtime.transfer.messages import KvLayout

LOST_SECONDS = 5.0  # at most
TICK = 0.1
NUM_PAGES = 512
PAGE_BYTES = 20_000
SECRET = b"secret" * 5
LAYOUT = KvLayout(
    protocol=1,
    model="model",
    dtype="float32",
    quantize=None,
    context_length=1 << 20,
    kv_dtype="fp32",
    kv_scales="",
    page_size=PAGE_SIZE,
    num_layers=1,
    num_kv_heads=1,
    head_bytes=1,
)
KEYS = PageKeys(SECRET, KvFormat(layout=LAYOUT, version="1", device="cpu", settings={}, weights_changed=[]))
FORM = SegmentFormat(SECRET, KEYS.format_digest, PAGE_BYTES)


class MadeUpPages:
    """Pages whose content tells their number in the pool, in the place of an engine's."""

    class shape:  # noqa: N801
        page_bytes = PAGE_BYTES

    def read_places(self, pages: list[int]) -> torch.Tensor:
        return torch.tensor(pages, dtype=torch.int64).remainder(251).to(torch.uint8)[:, None].repeat(1, PAGE_BYTES)


def tokens_of(sequence: int, num_pages: int) -> list[int]:
    return random.Random(sequence).choices(range(1 << 20), k=num_pages * PAGE_SIZE)


def publish(cache: PrefixCache, tokens: list[int]) -> None:
    lease = cache.acquire(tokens, num_tokens=len(tokens))
    assert lease is not None
    cache.commit(lease, tokens)
    cache.release(lease, tokens)


def write_until_killed(folder: Path) -> None:
    """Publish sequences that grow by a page, and say at each tick of the clock what is published and what time it is.

    The clock goes on when the disk has taken what it was given: a disk that is slower loses more.
    """
    folder.mkdir(exist_ok=True)
    now = 0.0
    pages: Any = MadeUpPages()
    cache = PrefixCache(NUM_PAGES, PAGE_SIZE)
    tier = DiskTier(PageStore(folder, FORM, 100 * MIN_RECORDS * FORM.record_bytes), KEYS, cache, pages, lambda: now)
    for sequence in range(1_000_000):
        for num_pages in range(1, 9):
            publish(cache, tokens_of(sequence, num_pages))
            print(sequence, num_pages, now, flush=True)
            tier.save()
            for written, _ in list(tier._writes):
                written.result()
            now += TICK


def on_disk(store: PageStore, sequence: int) -> int:
    """Count the first pages of a sequence that are read."""
    packed = pack(tokens_of(sequence, 8))
    return len(store.read(list(KEYS.following(KEYS.root(""), packed)), packed[: 8 * PAGE_TOKEN_BYTES]))


@pytest.mark.parametrize("num_lines", [77, 240])
def test_a_kill_loses_what_was_published_in_the_last_five_seconds_at_most(tmp_path: Path, num_lines: int) -> None:
    command = (
        "from pathlib import Path\nfrom ramiform.tests.disk.test_tier import write_until_killed\n"
        f"write_until_killed(Path({str(tmp_path)!r}))"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(num_lines):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        # What it had said until then, too: `num_lines` of them are read already.
        published = [line.split() for line in process.stdout]
    assert process.returncode == -signal.SIGKILL
    lines = num_lines + len(published)
    now = (lines - 1) * TICK
    store = PageStore(tmp_path, FORM, 100 * MIN_RECORDS * FORM.record_bytes)
    expected = found = 0
    for line in range(lines):
        sequence, num_pages = line // 8, line % 8 + 1
        if line * TICK <= now - LOST_SECONDS:
            expected += 1
            assert on_disk(store, sequence) >= num_pages
        found += on_disk(store, sequence) >= num_pages
    assert found >= expected > 0


class KeptPages(MadeUpPages):
    """Pages that are written and read, of a cache without an engine. Content tells the tokens."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    def num_cached(self, tokens: list[int], namespace: str) -> int:
        return self._cache.match(tokens, namespace) // PAGE_SIZE

    def write(self, tokens: list[int], namespace: str, first: int, bytes_PB: torch.Tensor, pin: Any = None) -> bool:
        assert len(bytes_PB) == len(tokens) // PAGE_SIZE - first
        lease = self._cache.acquire(tokens, namespace, limit=first * PAGE_SIZE, num_tokens=len(tokens))
        assert lease is not None
        assert lease.matched == first * PAGE_SIZE
        self._cache.commit(lease, tokens)
        self._cache.release(lease, tokens)
        return True


def go_on(folder: Path, num_pages: int) -> tuple[PrefixCache, DiskTier]:
    """Start on the folder of a process that has ended."""
    cache = PrefixCache(num_pages, PAGE_SIZE, strategy="program")
    pages: Any = KeptPages(cache)
    store = PageStore(folder, FORM, 100 * MIN_RECORDS * FORM.record_bytes)
    return cache, DiskTier(store, KEYS, cache, pages, lambda: 0.0)


def read_ahead(tier: DiskTier) -> None:
    while tier.is_fetching:
        tier.advance()


def wait_in(cache: PrefixCache, sequence: int, num_pages: int, kind: str) -> None:
    """Publish a sequence that its program is to continue, and let it wait."""
    tokens = tokens_of(sequence, num_pages)
    lease = cache.acquire(tokens, num_tokens=len(tokens))
    assert lease is not None
    cache.commit(lease, tokens)
    cache.set_soft_pin(lease, ("program", sequence), len(tokens), 0)
    cache.release(lease, tokens)
    cache.begin_wait(("program", sequence), kind)


def leave_waiting(folder: Path) -> None:
    """Save three sequences: of a program that has ended, of a user who has left, and of a tool that is under way."""
    folder.mkdir(exist_ok=True)
    cache, tier = go_on(folder, NUM_PAGES)
    publish(cache, tokens_of(1, 9))
    wait_in(cache, 2, 20, "user")
    cache.forecast.now = 3600.0
    wait_in(cache, 3, 30, "tool")
    tier.close()


def test_sequences_that_are_likely_to_go_on_are_read_before_a_request_comes(tmp_path: Path) -> None:
    leave_waiting(tmp_path)
    cache, tier = go_on(tmp_path, NUM_PAGES)
    assert tier.is_fetching
    read_ahead(tier)
    assert tier.num_ahead_tokens == 50 * PAGE_SIZE
    assert [cache.match(tokens_of(sequence, 30)) // PAGE_SIZE for sequence in (1, 2, 3)] == [0, 20, 30]
    assert cache.num_available == NUM_PAGES, "nothing of it is kept from requests"


def test_only_free_pages_are_read_into_and_the_likeliest_sequence_first(tmp_path: Path) -> None:
    leave_waiting(tmp_path)
    cache, tier = go_on(tmp_path, 40)
    publish(cache, tokens_of(4, 8))
    read_ahead(tier)
    assert [cache.match(tokens_of(sequence, 30)) // PAGE_SIZE for sequence in (2, 3, 4)] == [0, 30, 8]


def test_reading_ahead_ends_when_its_pages_are_needed(tmp_path: Path) -> None:
    leave_waiting(tmp_path)
    cache, tier = go_on(tmp_path, 40)
    tier._part = 4
    while not tier.num_ahead_tokens:
        tier.advance()
    publish(cache, tokens_of(4, 25))
    read_ahead(tier)
    assert tier.num_ahead_tokens < 20 * PAGE_SIZE
    assert cache.match(tokens_of(4, 25)) == 25 * PAGE_SIZE


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_note_of_sequences_is_not_read(tmp_path: Path, at: int) -> None:
    leave_waiting(tmp_path)
    (note,) = tmp_path.glob("*/sequences")
    data = bytearray(note.read_bytes())
    data[at] ^= 1
    note.write_bytes(data)
    cache, tier = go_on(tmp_path, NUM_PAGES)
    assert not tier.is_fetching
    assert cache.num_free == NUM_PAGES
