"""Leases and matches with window pages; `tests/scheduler/test_any_schedule.py` checks their contents."""

from __future__ import annotations

from ramiform.radix.cache import Lease, PrefixCache
from ramiform.radix.tiers import Copy
from ramiform.radix.window_pages import WindowPages, WindowSizes

from .invariants import check_invariants

PAGE, WINDOW = 4, 10


def make_cache(num_window_pages: int, num_sinks: int = 0) -> PrefixCache:
    return PrefixCache(64, PAGE, windows=WindowPages(WindowSizes(num_window_pages, WINDOW, num_sinks), PAGE))


def compute(cache: PrefixCache, tokens: list[int], *, chunk: int = PAGE) -> Lease:
    """Compute a sequence in chunks, as a scheduler does."""
    assert cache.windows is not None
    lease = cache.acquire(tokens, limit=len(tokens) - 1)
    assert lease is not None
    for end in range(lease.matched + chunk, len(tokens) + chunk, chunk):
        assert cache.extend(lease, min(end, len(tokens)))
        cache.commit(lease, tokens[: min(end, len(tokens))])
        cache.windows.slide(lease, min(end, len(tokens)))
        check_invariants(cache, [lease])
    return lease


def test_a_lease_holds_the_pages_of_its_window_and_one_more() -> None:
    cache = make_cache(16)
    assert cache.windows is not None
    lease = compute(cache, list(range(80)))
    # The next token, number 80, looks at 71 to 79: pages 17 to 19.
    assert lease.window_start == 16
    assert cache.windows.num_held == 4
    assert len(lease.pages) == 20


def test_sinks_stay_held() -> None:
    cache = make_cache(16, num_sinks=5)
    assert cache.windows is not None
    lease = compute(cache, list(range(80)))
    assert cache.windows.num_held == 4 + 2
    table = cache.windows.table(lease, 20)
    assert len(set(table)) == 6
    assert len(set(table[2:17])) == 1, "places that are not read name the window's first page"


def test_a_prefix_is_reused_up_to_where_its_window_is_whole() -> None:
    cache = make_cache(8)
    tokens = list(range(80))
    cache.release(compute(cache, tokens), tokens)
    assert cache.match(tokens) == 80
    # Of twenty pages eight have a window page, the last ones: a window that ends earlier than page 14 lacks some.
    assert cache.match([*tokens[:61], 99]) == 61
    assert cache.match([*tokens[:57], 99]) == 57
    assert cache.match([*tokens[:56], 99]) == 0, "token 56 looks at 47, in page 11"
    check_invariants(cache, [])


def test_a_match_inside_a_page_copies_its_window_page_too() -> None:
    cache = make_cache(8)
    assert cache.windows is not None
    tokens = list(range(40))
    first = compute(cache, tokens)
    old = cache.windows.table(first, 10)
    cache.release(first, tokens)
    lease = cache.acquire([*tokens[:38], 99], limit=38, num_tokens=39)
    assert lease is not None
    assert lease.matched == 38
    assert cache.windows.copies == [Copy(old[9], cache.windows.table(lease, 10)[9], 2)]
    check_invariants(cache, [lease])


def test_window_pages_where_sequences_ended_go_last() -> None:
    cache = make_cache(12)
    short, long = list(range(100, 120)), list(range(200, 300))
    cache.release(compute(cache, short), short)
    cache.release(compute(cache, long), long)
    assert cache.match(short) == 20, "the long sequence took the window pages that it left behind itself"
    assert cache.match([*long[:50], 0]) == 0


def test_window_pages_where_another_sequence_left_the_prefix_go_last() -> None:
    cache = make_cache(12)
    system = list(range(40))
    for question in (100, 200):
        own = [*system, *range(question, question + 60)]
        cache.release(compute(cache, own), own)
    assert cache.match([*system, 300]) == 40, "the second sequence kept the window before the fork"


def test_equal_tokens_heal_a_prefix_that_lost_its_window_pages() -> None:
    cache = make_cache(12)
    assert cache.windows is not None
    tokens = list(range(80))
    cache.release(compute(cache, tokens), tokens)
    again = tokens[:40]
    assert cache.match(again) == 0
    lease = cache.acquire(again, limit=39, num_tokens=40)
    assert lease is not None
    pages, own = list(lease.pages), cache.windows.table(lease, 10)
    cache.commit(lease, again)
    assert not set(pages) & set(lease.pages), "the pages are the cached ones"
    assert cache.windows.table(lease, 10) == own, "what was computed is in the lease's own window pages"
    check_invariants(cache, [lease])
    cache.release(lease, again)
    assert cache.match(again) == 40
    assert cache.num_cached == 20
