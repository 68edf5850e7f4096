"""The mirror of the radix tree against the tree itself, after any walk and with changes between its slices."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ramiform.radix.cache import PrefixCache
from ramiform.radix.eviction.strategies import STRATEGIES
from ramiform.radix.mirror import MirrorNode, TreeMirror
from ramiform.radix.tree import TreeNode

from .naive_cache import Model


def drain(work: Iterator[None]) -> None:
    for _ in work:
        pass


def sizes(node: TreeNode) -> tuple[int, int]:
    """Nodes and tokens of a subtree, by brute force."""
    below = [sizes(child) for child in node.children.values()]
    return 1 + sum(nodes for nodes, _ in below), node.num_tokens + sum(tokens for _, tokens in below)


def check(mirror: TreeMirror, cache: PrefixCache) -> None:
    nodes = list(cache.tree.nodes())
    copies = {id(copy.source): copy for copy in mirror.nodes.values()}
    roots = cache.tree.roots()
    assert set(copies) == {id(node) for node in nodes} | {id(root) for root in roots}
    assert {copy.source for copy in mirror.roots} == set(roots)
    for node in nodes:
        copy = copies[id(node)]
        assert copy.alive
        assert copy.parent is copies[id(node.parent)]
        assert {child.source for child in copy.children or ()} == set(node.children.values())
        assert copy.own_tokens == node.num_tokens
        assert (copy.num_nodes, copy.num_tokens) == sizes(node)
        assert (copy in mirror.in_use) == bool(node.ref_count or node.soft_pins)
    assert len(mirror.in_use) <= len(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_host_pages", [0, 12])
def test_a_mirror_is_equal_to_the_tree_after_any_walk(strategy: str, num_host_pages: int) -> None:
    for seed in range(12):
        random_walk(random.Random(seed), strategy, num_host_pages)


def random_walk(draw: random.Random, strategy: str, num_host_pages: int) -> None:
    model = Model(24, num_host_pages, strategy, True)
    mirror = TreeMirror(model.cache.tree)
    work: Iterator[None] | None = None
    for step in range(300):
        act(draw, model)
        if step == 40:
            work = mirror.follow()
        if work is not None and next(work, "over") == "over":  # one slice, then the tree changes again
            drain(mirror.catch_up())
            check(mirror, model.cache)
            work = iter(()) if draw.random() < 0.5 else mirror.catch_up()
        if step == 200:
            mirror.stop()
            assert model.cache.tree.changed is None
            numbers = {id(node): node.number for node in model.cache.tree.nodes()}
            drain(mirror.follow())
            drain(mirror.catch_up())
            check(mirror, model.cache)
            again = {id(node): node.number for node in model.cache.tree.nodes()}
            assert all(again[node] == number for node, number in numbers.items() if number is not None)
            work = iter(())


def act(draw: random.Random, model: Model) -> None:
    kind = draw.random()
    live = model.live
    if kind < 0.4 or not live:
        start = [0] * draw.randint(1, 30) + draw.choices([0, 1], k=draw.randint(0, 8))
        program = draw.choice([None, "one", "two"])
        model.acquire(start, draw.choice(["", "", "other"]), None, draw.randint(0, 6), 0, 0, program)
        return
    sequence = draw.choice(live)
    if kind < 0.6:
        model.compute(sequence, draw.randint(1, 24), draw.choices([0, 1], k=draw.randint(0, 6)))
        model.commit(sequence)
    elif kind < 0.8:
        model.release(sequence)
    elif kind < 0.9:
        model.set_soft_pin(sequence, draw.randint(0, 3), draw.randint(1, 40), draw.randint(0, 3))
    elif kind < 0.95:
        model.drop_soft_pin(draw.randint(0, 3))
    elif kind < 0.97:
        model.flush()


def served(cache: PrefixCache, tokens: list[int]) -> None:
    lease = cache.acquire(tokens, num_tokens=len(tokens))
    assert lease is not None
    cache.release(lease, tokens)


def wide_cache() -> PrefixCache:
    """A shared prefix of 32 tokens, below it one child each of 16, 32, ... 160 tokens; another prefix of 16."""
    cache = PrefixCache(512, 16)
    for number in range(10):
        served(cache, [1] * 32 + [100 + number] * 16 * (number + 1))
    served(cache, [2] * 16)
    return cache


def chosen(mirror: TreeMirror, limit: int, root: MirrorNode | None = None) -> list[MirrorNode]:
    work = mirror.select(root, limit)
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: list[MirrorNode] = end.value
            return result


def test_a_selection_is_of_the_largest_subtrees_and_closed_upwards() -> None:
    cache = wide_cache()
    mirror = TreeMirror(cache.tree)
    drain(mirror.follow())
    for limit in range(1, 14):
        nodes = chosen(mirror, limit)
        assert len(nodes) == min(limit, 13)
        for index, node in enumerate(nodes):
            assert node.parent is None or node.parent in nodes[:index]
    five = chosen(mirror, 5)
    assert [node.own_tokens for node in five] == [0, 32, 160, 144, 128]
    below = chosen(mirror, 3, five[1])
    assert [node.own_tokens for node in below] == [32, 160, 144]


def test_nodes_in_use_are_chosen_before_larger_ones() -> None:
    cache = wide_cache()
    mirror = TreeMirror(cache.tree)
    drain(mirror.follow())
    lease = cache.acquire([1] * 32 + [100] * 16, num_tokens=48)
    assert lease is not None
    drain(mirror.catch_up())
    assert [node.own_tokens for node in chosen(mirror, 4)] == [0, 32, 16, 160]
    cache.release(lease, [1] * 32 + [100] * 16)
    drain(mirror.catch_up())
    assert not mirror.in_use
    assert [node.own_tokens for node in chosen(mirror, 4)] == [0, 32, 160, 144]


def test_without_a_follower_nothing_is_noted() -> None:
    cache = wide_cache()
    assert cache.tree.changed is None
    assert all(node.number is None for node in cache.tree.nodes())


@pytest.mark.exhaustive
def test_a_long_chain_may_go_all_at_once() -> None:
    cache = PrefixCache(4096, 16)
    mirror = TreeMirror(cache.tree)
    drain(mirror.follow())
    tokens: list[int] = []
    for turn in range(1200):
        tokens += [turn] * 16
        served(cache, [*tokens, 7])
    drain(mirror.catch_up())
    check_sizes = max(node.num_tokens for node in mirror.nodes.values())
    assert check_sizes >= len(tokens)
    cache.flush()
    drain(mirror.catch_up())
    assert not mirror.nodes
    assert not mirror.roots
