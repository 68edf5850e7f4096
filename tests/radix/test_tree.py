"""Radix tree nodes: when they split, grow and join, and what a look-up costs."""

from __future__ import annotations

import random

import pytest

from ramiform.radix.cache import Lease, PrefixCache
from ramiform.radix.child_index import ParentNode
from ramiform.radix.packed_tokens import common_prefix_length, pack, unpack
from ramiform.radix.tree import TreeNode

from .invariants import check_invariants


def store(cache: PrefixCache, tokens: list[int]) -> None:
    lease = cache.acquire(tokens, num_tokens=len(tokens))
    assert lease is not None
    cache.release(lease, tokens)


def decode(cache: PrefixCache, lease: Lease, tokens: list[int], num_tokens: int) -> list[int]:
    """Extend and publish one token at a time."""
    for i in range(num_tokens):
        tokens = [*tokens, i]
        assert cache.extend(lease, len(tokens))
        cache.commit(lease, tokens)
    return tokens


def test_a_prefix_is_one_node_until_another_sequence_diverges_inside_it() -> None:
    cache = PrefixCache(100, 16)
    store(cache, list(range(100)))
    assert cache.tree.num_nodes == 1
    store(cache, [*range(40), 7])
    # [0, 32) shared, [32, 100) of the first sequence, [32, 41) of the second with its copy of [32, 40)
    assert cache.tree.num_nodes == 3
    assert sorted(len(node.pages) for node in cache.tree.nodes()) == [1, 2, 5]


def test_a_match_changes_nothing() -> None:
    cache = PrefixCache(100, 16)
    store(cache, list(range(100)))
    assert cache.match([*range(40), 7]) == 40
    assert cache.tree.num_nodes == 1


def test_a_long_decode_is_one_node() -> None:
    cache = PrefixCache(100, 16)
    tokens = list(range(500, 530))
    lease = cache.acquire(tokens, num_tokens=30)
    assert lease is not None
    cache.commit(lease, tokens)
    tokens = decode(cache, lease, tokens, 300)
    assert cache.tree.num_nodes == 1
    assert cache.match(tokens) == 330
    check_invariants(cache, [lease])


def test_a_leaf_that_another_lease_pins_does_not_grow() -> None:
    cache = PrefixCache(100, 16)
    prompt = list(range(500, 532))
    first = cache.acquire(prompt, num_tokens=32)
    assert first is not None
    cache.commit(first, prompt)
    second = cache.acquire(prompt, num_tokens=32)
    assert second is not None
    mine = decode(cache, first, prompt, 20)
    assert cache.tree.num_nodes == 2
    cache.release(first, mine)
    cache.flush()
    assert cache.match(mine) == 32, "only what the second one needs was pinned"
    check_invariants(cache, [second])


def test_a_split_keeps_what_every_lease_pins() -> None:
    cache = PrefixCache(12, 16)
    long = list(range(128))
    whole = cache.acquire(long, num_tokens=128)
    assert whole is not None
    cache.commit(whole, long)
    part = cache.acquire([*range(64), 7], num_tokens=64)
    assert part is not None
    check_invariants(cache, [whole, part])
    cache.release(whole, long)
    cache.flush()
    assert (cache.match(long), cache.num_cached) == (64, 4)
    cache.release(part, [])
    check_invariants(cache, [])


def test_a_split_is_undone_once_both_parts_have_the_same_key() -> None:
    cache = PrefixCache(13, 16)
    long = list(range(160))
    store(cache, long)
    store(cache, [*range(64), 7])
    assert cache.tree.num_nodes == 3
    store(cache, long)
    filler = cache.acquire([], "other", num_tokens=3 * 16)  # the branch that was left halfway has to go
    assert filler is not None
    store(cache, long)
    assert cache.match([*range(64), 7]) == 64
    assert [len(node.pages) for node in cache.tree.nodes()] == [10]
    check_invariants(cache, [filler])


def test_parts_with_different_keys_stay_apart() -> None:
    cache = PrefixCache(13, 16, strategy="lfu")
    long = list(range(160))
    store(cache, long)
    store(cache, [*range(64), 7])
    store(cache, long)
    filler = cache.acquire([], "other", num_tokens=3 * 16)
    assert filler is not None
    store(cache, long)
    assert [node.num_hits for node in cache.tree.nodes()] == [3, 2]


def test_a_leaf_loses_only_as_many_pages_as_are_needed() -> None:
    cache = PrefixCache(10, 16)
    long = list(range(160))
    store(cache, long)
    lease = cache.acquire([7], num_tokens=33)
    assert lease is not None
    assert (cache.match(long), cache.stats.num_evicted_pages) == (112, 3)


def test_an_unfinished_page_is_removed_when_a_sibling_covers_it() -> None:
    cache = PrefixCache(20, 16)
    slow = cache.acquire([1, 2, 3, 4], num_tokens=4)
    fast = cache.acquire([1, 2], num_tokens=2)
    assert slow is not None
    assert fast is not None
    cache.commit(fast, [1])
    cache.commit(slow, [1, 2, 3])
    cache.release(slow, [1, 2, 3])
    assert cache.num_cached == 2
    assert cache.extend(fast, 5)
    cache.commit(fast, [1, 2, 3, 4, 5])
    assert cache.num_cached == 1
    check_invariants(cache, [fast])


@pytest.mark.slow
def test_finding_a_prefix_costs_what_is_matched_not_what_is_cached() -> None:
    """Count the bytes compared or hashed, in a small and a large tree of forks."""
    read = 0

    class Counted(list[int]):
        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            nonlocal read
            found = super().__getitem__(at)
            read += len(found) if isinstance(at, slice) else 1
            return found

    def cost(num_prompts: int, num_matched: int) -> int:
        nonlocal read
        cache = PrefixCache(20 * num_prompts + 1000, 16)
        trunk = list(range(8000))
        store(cache, trunk)
        draw = random.Random(num_prompts)
        for i in range(num_prompts):
            store(cache, [*trunk[: draw.randrange(300)], 9000 + i, *range(draw.randrange(40))])
        read = 0
        assert cache.match(Counted([*trunk[:num_matched], -1 % 2**32, *trunk])) == num_matched
        return read

    assert cost(30, 1000) <= cost(3000, 1000) <= 2.2 * 1000 + 128
    assert cost(3000, 4000) <= 2.2 * 4000 + 128


@pytest.mark.slow
@pytest.mark.parametrize("num_siblings", [0, 1, 5, 3000])
def test_the_nearest_sibling_is_found_as_if_all_were_compared(num_siblings: int) -> None:
    draw = random.Random(num_siblings)
    branch = ParentNode()
    nodes: dict[bytes, TreeNode] = {}
    for _ in range(num_siblings):
        key = pack(draw.choices([0, 1, 2, 700, 2**31], k=draw.choice([2, 8, 8, 8])))
        if key not in nodes:
            nodes[key] = TreeNode(key, bytearray(key), [0], branch, on_host=False)
            branch.attach(nodes[key])
    for key in draw.sample(sorted(nodes), len(nodes) // 2):
        branch.detach(nodes.pop(key))
    assert branch.keys() == sorted(nodes)
    for _ in range(200):
        key = pack(draw.choices([0, 1, 2, 700, 2**31, 5], k=draw.choice([1, 4, 8])))
        most = max((naive_common(key, other) for other in nodes), default=0)
        nearest, num_shared = branch.nearest(key)
        assert num_shared == most
        assert nearest is None if not most else naive_common(key, nearest.key) == most  # type: ignore[union-attr]
        covering = branch.child_covering(key)
        assert (covering is not None) == any(other.startswith(key) for other in nodes)
        assert branch.first_key_after(key) == min((other for other in nodes if other > key), default=None)
        assert branch.last_key_before(key) == max((other for other in nodes if other < key), default=None)


def naive_common(a: bytes, b: bytes) -> int:
    pairs = list(zip(unpack(a), unpack(b), strict=False))
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))


def test_common_tokens_are_counted_from_any_place() -> None:
    draw = random.Random(0)
    for _ in range(500):
        other = draw.choices([1, 256, 65536], k=draw.randrange(30))
        at = draw.randrange(len(other) + 1)
        run = [*other[at : at + draw.randrange(30)], *draw.choices([1, 256, 65536], k=draw.randrange(4))]
        assert common_prefix_length(pack(run), pack(other), 4 * at) == naive_common(pack(run), pack(other[at:]))


def test_tokens_outside_32_bits_are_refused() -> None:
    assert unpack(pack([0, 2**32 - 1])) == [0, 2**32 - 1]
    for token in (-1, 2**32):
        with pytest.raises(OverflowError):
            pack([token])
