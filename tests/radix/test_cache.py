"""The prefix cache: reuse, eviction, publication and leases."""

from __future__ import annotations

import random

import pytest

from ramiform.radix.cache import Lease, PrefixCache
from ramiform.radix.lease import SparePages

from .invariants import check_invariants


def run(cache: PrefixCache, tokens: list[int], namespace: str = "") -> Lease:
    """Acquire and copy `tokens`, without releasing."""
    lease = cache.acquire(tokens, namespace, num_tokens=len(tokens))
    assert lease is not None
    cache.take_copies()
    return lease


def store(cache: PrefixCache, tokens: list[int], namespace: str = "") -> None:
    cache.release(run(cache, tokens, namespace), tokens)


def test_a_follow_up_turn_reuses_every_token_of_the_last_one() -> None:
    cache = PrefixCache(100, 16)
    turn = list(range(137))
    store(cache, turn)
    assert cache.match([*turn, 500, 501]) == 137


def test_a_prefix_that_ends_inside_a_page_is_copied_not_shared() -> None:
    cache = PrefixCache(100, 16)
    store(cache, list(range(40)))
    lease = cache.acquire([*range(37), 99, 98], num_tokens=39)
    assert lease is not None
    assert lease.matched == 37
    (copy,) = cache.take_copies()
    assert copy.num_tokens == 5
    assert copy.target == lease.pages[2]
    assert copy.source not in lease.pages


def test_the_source_of_a_copy_may_be_given_to_the_next_lease() -> None:
    cache = PrefixCache(4, 16)
    store(cache, list(range(20)))
    lease = cache.acquire([*range(18), 99], num_tokens=19)
    assert lease is not None
    (copy,) = cache.take_copies()
    # Of four pages the source is the last one available: it is written after the copy.
    assert cache.extend(lease, 64)
    assert copy.source in lease.pages


def test_a_pinned_prefix_survives_eviction_and_flush() -> None:
    cache = PrefixCache(8, 16)
    shared = list(range(48))
    lease = run(cache, shared)
    cache.commit(lease, shared)
    store(cache, list(range(1000, 1060)))
    store(cache, list(range(2000, 2060)))
    cache.flush()
    assert cache.match(shared) == 48
    assert cache.num_cached == 3
    cache.release(lease, shared)


def test_the_least_recently_used_prefix_goes_first_and_its_tail_before_its_head() -> None:
    cache = PrefixCache(6, 16)
    first, second = list(range(48)), list(range(100, 148))
    store(cache, first)
    store(cache, second)
    store(cache, [*first, 7][:48])  # used again
    lease = cache.acquire([9], num_tokens=16)
    assert lease is not None
    assert cache.match(first) == 48
    assert cache.match(second) == 32
    assert cache.extend(lease, 48)
    assert (cache.match(first), cache.match(second)) == (48, 0)


def test_nothing_is_shared_across_namespaces() -> None:
    cache = PrefixCache(8, 16)
    store(cache, list(range(40)), "one")
    assert cache.match(list(range(40)), "two") == 0
    assert cache.match(list(range(40)), "one") == 40


def test_pages_that_several_sequences_computed_are_kept_once() -> None:
    cache = PrefixCache(20, 16)
    tokens = list(range(70))
    leases = [run(cache, tokens) for _ in range(3)]
    assert cache.num_free == 5
    for lease in leases:
        cache.commit(lease, tokens)
    assert leases[0].pages[:4] == leases[1].pages[:4] == leases[2].pages[:4]
    assert len({lease.pages[4] for lease in leases}) == 3, "each goes on writing to its own last page"
    check_invariants(cache, leases)
    for lease in leases:
        cache.release(lease, tokens)
    check_invariants(cache, [])
    assert (cache.num_cached, cache.num_free) == (5, 15)


def test_a_published_unfinished_page_gives_way_to_a_whole_one_that_came_first() -> None:
    cache = PrefixCache(20, 16)
    tokens = list(range(16))
    slow, fast = run(cache, tokens), run(cache, tokens)
    cache.commit(slow, tokens[:10])
    cache.commit(fast, tokens)
    cache.commit(slow, tokens)
    assert slow.pages == fast.pages
    assert (cache.num_cached, cache.num_free) == (1, 19)
    check_invariants(cache, [slow, fast])


def test_an_unfinished_page_that_a_sibling_covers_is_removed_with_its_last_pin() -> None:
    cache = PrefixCache(20, 16)
    tokens = list(range(12))
    slow, fast = run(cache, tokens), run(cache, tokens)
    cache.commit(slow, tokens[:10])
    cache.commit(fast, tokens)
    assert cache.num_cached == 2
    cache.release(slow, tokens[:10])
    assert cache.num_cached == 1
    check_invariants(cache, [fast])


def test_a_lease_that_is_refused_changes_nothing() -> None:
    cache = PrefixCache(4, 16)
    store(cache, list(range(40)))
    lease = run(cache, list(range(1000, 1032)))
    stats = (cache.num_free, cache.num_cached, cache.stats.num_evicted_pages)
    assert cache.acquire(list(range(40)), num_tokens=49) is None
    assert cache.acquire(list(range(40)), num_tokens=32, spare=SparePages(1)) is None
    assert (cache.num_free, cache.num_cached, cache.stats.num_evicted_pages) == stats
    cache.release(lease, [])


def test_a_boundary_page_is_given_up_rather_than_the_lease() -> None:
    cache = PrefixCache(3, 16)
    store(cache, list(range(40)))
    # The copy would need a fourth page: its source, pinned, and its target.
    lease = cache.acquire([*range(38), 99], num_tokens=39)
    assert lease is not None
    assert not cache.take_copies()
    assert lease.matched == 32
    cache.release(lease, list(range(32)))


def test_a_disabled_cache_shares_nothing_and_loses_nothing() -> None:
    cache = PrefixCache(8, 16, enabled=False)
    store(cache, list(range(40)))
    assert cache.match(list(range(40))) == 0
    assert (cache.num_free, cache.num_cached) == (8, 0)


def test_evicted_namespaces_leave_nothing_behind() -> None:
    cache = PrefixCache(4, 16)
    for i in range(100):
        store(cache, list(range(20)), f"user {i}")
    assert len(cache.tree.roots()) <= 4
    cache.flush()
    assert cache.tree.roots() == []


def test_the_eviction_heap_stays_as_small_as_the_tree() -> None:
    cache = PrefixCache(50, page_size=2)
    rng = random.Random(0)
    for _ in range(3000):
        store(cache, [rng.randrange(3) for _ in range(rng.randrange(1, 9))])
        assert len(cache.tiers.device_heap) <= 2 * 50 + 128
    check_invariants(cache, [])


@pytest.mark.slow
def test_the_cost_of_a_match_does_not_depend_on_the_number_of_siblings() -> None:
    """Count the token look-ups of one match among a hundred and ten thousand siblings."""

    class Counted(list[int]):
        reads = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            Counted.reads += 1
            return super().__getitem__(at)

    def reads(num_siblings: int) -> int:
        cache = PrefixCache(2 * num_siblings + 8, 16)
        for i in range(num_siblings):
            store(cache, [*range(16), i, *range(5)])
        Counted.reads = 0
        assert cache.match(Counted([*range(16), num_siblings // 2, *range(15)])) == 22
        return Counted.reads

    assert reads(100) == reads(10_000)


def test_a_discarded_prefix_leaves_the_tree_with_all_that_continues_it() -> None:
    cache = PrefixCache(100, 16)
    store(cache, [*range(40), 99, 98])
    lease = run(cache, list(range(60)))
    cache.commit(lease, list(range(50)))
    store(cache, list(range(1000, 1010)))
    cache.discard(lease)
    assert cache.match([*range(40), 99, 98]) == 0
    assert cache.match(list(range(60))) == 0
    assert cache.match(list(range(1000, 1010))) == 10
    assert cache.num_free == 99
    check_invariants(cache, [])


def test_what_another_lease_holds_outlives_a_discarded_one() -> None:
    cache = PrefixCache(100, 16)
    store(cache, list(range(40)))
    bad = run(cache, list(range(60)))
    cache.commit(bad, list(range(60)))
    other = run(cache, [*range(32), *range(500, 520)])
    cache.discard(bad)
    check_invariants(cache, [other])
    assert cache.match(list(range(60))) == 32
    cache.release(other, [])
    check_invariants(cache, [])


def test_pages_have_one_owner_after_any_leases_are_discarded() -> None:
    draw = random.Random(3)
    for num_host_pages in (0, 8):
        cache = PrefixCache(24, 4, num_host_pages=num_host_pages)
        live: list[tuple[Lease, list[int]]] = []
        for _ in range(600):
            tokens = [draw.randrange(2) for _ in range(draw.randint(1, 30))]
            if live and draw.random() < 0.5:
                lease, held = live.pop(draw.randrange(len(live)))
                if draw.random() < 0.5:
                    cache.discard(lease)
                else:
                    cache.release(lease, held)
            elif (acquired := cache.acquire(tokens, num_tokens=len(tokens))) is not None:
                cache.take_copies()
                live.append((acquired, tokens))
                cache.commit(acquired, tokens[: draw.randint(0, len(tokens))])
            check_invariants(cache, [lease for lease, _ in live])
