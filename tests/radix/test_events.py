"""Cache events, as routers and viewers receive them."""

from __future__ import annotations

import subprocess
import sys

from ramiform.radix.cache import PrefixCache
from ramiform.radix.events import Cleared, Removed, Stored, page_hash
from ramiform.radix.packed_tokens import pack

from .event_mirror import Mirror, cached

TOKENS = list(range(100, 140))


def store(cache: PrefixCache, tokens: list[int], namespace: str = "") -> None:
    lease = cache.acquire(tokens, namespace, num_tokens=len(tokens))
    assert lease is not None
    cache.release(lease, tokens)


def test_whole_pages_are_reported_with_their_tokens_and_their_parent() -> None:
    cache = PrefixCache(8, 16, events=True)
    store(cache, TOKENS, "mine")
    first = page_hash(None, pack(TOKENS[:16]), "mine")
    second = page_hash(first, pack(TOKENS[16:32]), "mine")
    assert cache.take_events() == [Stored("mine", None, [first, second], TOKENS[:32], "device")]
    longer = [*TOKENS, *range(8)]
    store(cache, longer, "mine")
    third = page_hash(second, pack(longer[32:48]), "mine")
    assert cache.take_events() == [Stored("mine", second, [third], longer[32:48], "device")]
    assert cache.take_events() == []


def test_a_page_s_hash_stands_for_all_before_it() -> None:
    page = pack(TOKENS[:16])
    hashes = [
        page_hash(None, page, ""),
        page_hash(None, page, "other"),
        page_hash(None, pack(TOKENS[1:17]), ""),
        page_hash(1, page, ""),
        page_hash(2, page, ""),
    ]
    assert len(set(hashes)) == len(hashes)
    assert all(0 <= value < 2**64 for value in hashes)


def test_hashes_are_the_same_in_every_process() -> None:
    code = (
        "from ramiform.radix.events import page_hash; from ramiform.radix.packed_tokens import pack;"
        "print(page_hash(page_hash(None, pack(range(16)), 'a'), pack(range(16)), 'a'))"
    )
    other = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(other) == page_hash(page_hash(None, pack(range(16)), "a"), pack(range(16)), "a")


def test_a_demoted_page_is_stored_on_the_host_before_it_is_removed_from_the_device() -> None:
    cache = PrefixCache(2, 16, num_host_pages=2, events=True)
    store(cache, TOKENS[:32])
    (stored,) = cache.take_events()
    assert isinstance(stored, Stored)
    store(cache, list(range(32)))
    down, gone, _ = cache.take_events()
    assert down == Stored("", None, stored.hashes, TOKENS[:32], "host")
    assert gone == Removed(stored.hashes, "device")


def test_a_flush_of_everything_is_one_event() -> None:
    cache = PrefixCache(8, 16, events=True)
    store(cache, TOKENS)
    cache.flush()
    assert cache.take_events() == [Cleared()]


def test_a_flush_beside_a_pin_reports_what_is_removed() -> None:
    cache = PrefixCache(8, 16, events=True)
    mirror = Mirror(16)
    lease = cache.acquire(TOKENS, num_tokens=40)
    assert lease is not None
    cache.commit(lease, TOKENS)
    store(cache, list(range(40)), "other")
    cache.flush()
    mirror.apply(cache.take_events())
    assert mirror.cached == cached(cache)
    assert {namespace for _, namespace, _ in mirror.cached} == {""}


def test_without_events_no_hashes_are_computed() -> None:
    cache = PrefixCache(8, 16)
    store(cache, TOKENS)
    assert cache.take_events() == []
    assert not any(node.hashes for node in cache.tree.nodes())
