"""Pages that leave the device go to the host and are found there."""

from __future__ import annotations

from ramiform.radix.cache import Copy, PrefixCache
from ramiform.radix.lease import LeaseUser

from .invariants import check_invariants


def store(cache: PrefixCache, tokens: list[int]) -> None:
    lease = cache.acquire(tokens, num_tokens=len(tokens))
    assert lease is not None
    cache.release(lease, tokens)


def prefix(name: int, num_tokens: int) -> list[int]:
    return [name * 1000 + i for i in range(num_tokens)]


def test_an_evicted_prefix_is_copied_to_the_host_and_a_hit_copies_back_what_it_matches() -> None:
    cache = PrefixCache(4, 16, num_host_pages=8)
    store(cache, prefix(1, 60))
    store(cache, prefix(2, 64))
    down = cache.take_copies()
    assert [copy.num_tokens for copy in down] == [16, 16, 16, 12]
    assert all(copy.source < 4 <= copy.target < 12 for copy in down)
    assert cache.match(prefix(1, 60)) == 60
    lease = cache.acquire([*prefix(1, 32), 7], num_tokens=33)
    assert lease is not None
    assert lease.matched == 32
    copies = cache.take_copies()
    up = [copy for copy in copies if copy.target < 4]
    assert [(copy.source, copy.num_tokens) for copy in up] == [(down[0].target, 16), (down[1].target, 16)]
    assert [copy.target for copy in up] == lease.pages[:2]
    assert cache.stats.num_promoted_pages == 2
    assert cache.stats.num_host_hit_tokens == 32
    assert cache.match(prefix(1, 60)) == 60, "the rest stays on the host"
    check_invariants(cache, [lease])


def test_a_prefix_that_ends_inside_a_host_page_is_copied_straight_from_there() -> None:
    cache = PrefixCache(4, 16, num_host_pages=8)
    store(cache, prefix(1, 60))
    store(cache, prefix(2, 64))
    (source,) = [copy.target for copy in cache.take_copies()][:1]
    lease = cache.acquire([*prefix(1, 5), 7], num_tokens=6)
    assert lease is not None
    assert cache.take_copies()[-1] == Copy(source, lease.pages[0], 5)
    assert cache.stats.num_promoted_pages == 0
    assert cache.stats.num_host_hit_tokens == 5


def test_pages_that_are_demoted_one_by_one_become_one_node_on_the_host() -> None:
    cache = PrefixCache(8, 16, num_host_pages=8)
    store(cache, prefix(1, 128))
    lease = cache.acquire([], "newcomer")
    assert lease is not None
    for num_pages in range(1, 7):
        assert cache.extend(lease, 16 * num_pages)
        check_invariants(cache, [lease])
    assert cache.tree.num_nodes == 2
    assert cache.match(prefix(1, 128)) == 128


def test_a_full_host_drops_what_was_unused_for_longest() -> None:
    cache = PrefixCache(2, 16, num_host_pages=4)
    for name in (1, 2, 3, 4):
        store(cache, prefix(name, 32))
    assert [cache.match(prefix(name, 32)) for name in (1, 2, 3, 4)] == [0, 32, 32, 32]
    assert (cache.stats.num_demoted_pages, cache.stats.num_evicted_pages) == (6, 2)


def test_the_host_keeps_what_is_soft_pinned_rather_than_what_comes_later() -> None:
    cache = PrefixCache(2, 16, num_host_pages=2, strategy="program")
    soft_pinned = prefix(1, 32)
    lease = cache.acquire(soft_pinned, num_tokens=32, user=LeaseUser("one"))
    assert lease is not None
    cache.commit(lease, soft_pinned)
    cache.set_soft_pin(lease, "one", 32, 0)
    cache.release(lease, soft_pinned)
    for name in (2, 3, 4):
        store(cache, prefix(name, 32))
    assert cache.match(soft_pinned) == 32
    cache.drop_soft_pin("one")
    store(cache, prefix(5, 32))
    assert cache.match(soft_pinned) == 0
    assert cache.match(prefix(4, 32)) == 32


def test_a_prefix_computed_again_replaces_the_host_s_without_a_copy() -> None:
    cache = PrefixCache(4, 16, num_host_pages=4)
    tokens = prefix(1, 32)
    again = cache.acquire(tokens, num_tokens=32)  # before anything is cached
    assert again is not None
    store(cache, tokens)
    cache.release(cache_fill(cache), [])
    assert cache.num_host_cached == 2
    cache.take_copies()
    cache.commit(again, tokens)
    assert cache.take_copies() == []
    assert (cache.num_host_cached, cache.num_cached) == (0, 2)
    check_invariants(cache, [again])


def cache_fill(cache: PrefixCache):  # type: ignore[no-untyped-def]
    """A lease on every page that is available."""
    lease = cache.acquire([], "newcomer", num_tokens=16 * cache.num_available)
    assert lease is not None
    return lease


def test_flush_empties_both_tiers() -> None:
    cache = PrefixCache(2, 16, num_host_pages=8)
    for name in (1, 2, 3):
        store(cache, prefix(name, 32))
    assert cache.flush() == 6
    assert (cache.num_free, cache.num_host_cached, cache.tree.num_nodes) == (2, 0, 0)
