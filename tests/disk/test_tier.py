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
