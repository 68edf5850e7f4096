"""Order of eviction under each strategy, and the effect of soft pins."""

from __future__ import annotations

from typing import Any, get_args

from ramiform.radix.cache import PrefixCache
from ramiform.radix.eviction.strategies import STRATEGIES
from ramiform.radix.lease import LeaseUser
from ramiform.runtime.protocol.config import EvictionName

from .invariants import check_invariants


def prefix(name: int, num_pages: int = 3) -> list[int]:
    return [name * 1000 + i for i in range(num_pages * 16)]


def store(cache: PrefixCache, tokens: list[int], **user: Any) -> None:
    lease = cache.acquire(tokens, num_tokens=len(tokens), user=LeaseUser(**user))
    assert lease is not None
    cache.release(lease, tokens)


def store_soft_pinned(cache: PrefixCache, tokens: list[int], owner: str, num_tokens: int, rank: int = 0) -> None:
    lease = cache.acquire(tokens, num_tokens=len(tokens), user=LeaseUser(owner))
    assert lease is not None
    cache.commit(lease, tokens)
    cache.set_soft_pin(lease, owner, num_tokens, rank)
    cache.release(lease, tokens)


def victims(cache: PrefixCache, *prefixes: list[int]) -> list[int]:
    """The prefixes in the order in which they lose pages to a sequence that grows page by page."""
    lease = cache.acquire([], "newcomer")
    assert lease is not None
    order = []
    sizes = [cache.match(tokens) for tokens in prefixes]
    while cache.num_available:
        assert cache.extend(lease, 16 * (len(lease.pages) + 1))
        check_invariants(cache, [lease])
        now = [cache.match(tokens) for tokens in prefixes]
        order += [i for i, (before, after) in enumerate(zip(sizes, now, strict=True)) if after < before]
        sizes = now
    return [name for at, name in enumerate(order) if at == 0 or order[at - 1] != name]


def test_the_strategies_are_the_choices_of_the_setting() -> None:
    assert STRATEGIES.keys() == set(get_args(EvictionName))


def test_lru_takes_what_was_not_used_for_longest() -> None:
    cache = PrefixCache(9, 16)
    for name in (1, 2, 3, 1):
        store(cache, prefix(name))
    assert victims(cache, prefix(1), prefix(2), prefix(3)) == [1, 2, 0]


def test_lfu_takes_what_was_hit_least_and_of_that_the_oldest() -> None:
    cache = PrefixCache(9, 16, strategy="lfu")
    for name in (1, 2, 1, 3):
        store(cache, prefix(name))
    assert victims(cache, prefix(1), prefix(2), prefix(3)) == [1, 2, 0]


def test_priority_takes_what_only_requests_of_low_priority_used() -> None:
    cache = PrefixCache(9, 16, strategy="priority")
    for name, priority in ((1, 1), (2, 5), (3, 2), (1, 9)):
        store(cache, prefix(name), priority=priority)
    assert victims(cache, prefix(1), prefix(2), prefix(3)) == [2, 1, 0]


def test_program_takes_what_one_ended_program_used_first_and_then_what_is_shared() -> None:
    cache = PrefixCache(12, 16, strategy="program")
    store(cache, prefix(1), program_id="one")
    store(cache, prefix(1), program_id="two")
    store(cache, prefix(2))
    store_soft_pinned(cache, prefix(3), "three", 48)
    store(cache, prefix(4), program_id="four")
    assert victims(cache, prefix(1), prefix(2), prefix(3), prefix(4)) == [3, 0, 1, 2]


def test_a_prefix_that_two_programs_compute_at_once_is_shared() -> None:
    cache = PrefixCache(9, 16, strategy="program")
    leases = [cache.acquire(prefix(1), num_tokens=48, user=LeaseUser(program)) for program in ("one", "two")]
    for lease in leases:
        assert lease is not None
        cache.release(lease, prefix(1))
    store(cache, prefix(2), program_id="one")
    assert victims(cache, prefix(1), prefix(2)) == [1, 0]


def test_of_soft_pinned_prefixes_the_most_junior_program_s_goes_first() -> None:
    cache = PrefixCache(9, 16, strategy="program")
    for name, rank in ((1, 5), (2, 9), (3, 1)):
        store_soft_pinned(cache, prefix(name), str(name), 48, rank)
    assert victims(cache, prefix(1), prefix(2), prefix(3)) == [1, 0, 2]


def test_a_prefix_is_as_senior_as_the_most_senior_of_its_owners() -> None:
    cache = PrefixCache(6, 16, strategy="program")
    store_soft_pinned(cache, prefix(1), "junior", 48, 9)
    store_soft_pinned(cache, prefix(1), "senior", 48, 1)
    store_soft_pinned(cache, prefix(2), "between", 48, 5)
    assert victims(cache, prefix(1), prefix(2)) == [1, 0]


def test_a_soft_pin_protects_its_prefix_up_to_the_page_it_ends_in_and_no_more() -> None:
    cache = PrefixCache(9, 16, strategy="program")
    store_soft_pinned(cache, prefix(1, 6), "one", 33)
    store(cache, prefix(2))
    lease = cache.acquire([], "newcomer")
    assert lease is not None
    assert cache.extend(lease, 6 * 16)
    assert (cache.match(prefix(1, 6)), cache.match(prefix(2))) == (48, 0)


def test_a_soft_pin_replaces_the_owner_s_earlier_one() -> None:
    cache = PrefixCache(6, 16, strategy="program")
    store_soft_pinned(cache, prefix(1), "one", 48)
    store_soft_pinned(cache, prefix(2), "one", 48)
    assert victims(cache, prefix(1), prefix(2)) == [0, 1]


def test_a_dropped_soft_pin_protects_nothing() -> None:
    cache = PrefixCache(6, 16, strategy="program")
    store_soft_pinned(cache, prefix(1), "one", 48)
    store(cache, prefix(2))
    cache.drop_soft_pin("one")
    cache.drop_soft_pin("nobody")
    assert victims(cache, prefix(1), prefix(2)) == [0, 1]


def test_when_a_soft_pinned_leaf_goes_the_rest_of_its_prefix_stays_soft_pinned() -> None:
    cache = PrefixCache(9, 16, strategy="program")
    store(cache, prefix(1))
    store_soft_pinned(cache, [*prefix(1), *prefix(4)], "one", 96, rank=3)
    store_soft_pinned(cache, prefix(2), "two", 48, rank=2)
    # All soft-pinned pages of the junior program go before the first one of the senior's.
    assert victims(cache, [*prefix(1), *prefix(4)], prefix(2)) == [0, 1]


def test_what_a_lease_computes_later_is_not_covered_by_its_soft_pin() -> None:
    cache = PrefixCache(9, 16, strategy="program")
    tokens = prefix(1, 5)
    lease = cache.acquire(tokens, num_tokens=80, user=LeaseUser("one"))
    assert lease is not None
    cache.commit(lease, tokens[:40])
    cache.set_soft_pin(lease, "one", 40, 0)
    cache.commit(lease, tokens)
    cache.release(lease, tokens)
    store(cache, prefix(2))
    newcomer = cache.acquire([], "newcomer", num_tokens=5 * 16)
    assert newcomer is not None
    assert cache.match(tokens) == 48
    check_invariants(cache, [newcomer])


def test_a_strategy_without_soft_pins_does_not_split_nodes_for_them() -> None:
    cache = PrefixCache(6, 16)
    store_soft_pinned(cache, prefix(1), "one", 16)
    assert cache.tree.num_nodes == 1
    cache.drop_soft_pin("one")
