"""Rows in the order of a trie of their prompts, against a naive trie."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ramiform.radix.packed_tokens import pack
from ramiform.runtime.frontend.batches.order import num_abreast, trie_order

Prompts = list[list[int]]
PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12)


def trie_size(prompts: Sequence[Sequence[int]]) -> int:
    """The least number of tokens that have to be computed: each distinct prefix once."""
    return len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})


def prefilled(prompts: Sequence[Sequence[int]], pool: int) -> int:
    """Tokens that a cache of `pool` tokens computes, one prompt after the other: a naive tree by recency of use."""
    cached: OrderedDict[tuple[int, ...], None] = OrderedDict()
    computed = 0
    for prompt in prompts:
        path = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
        for prefix in path:
            computed += prefix not in cached
            cached[prefix] = None
        for prefix in reversed(path):  # a prefix outlives what continues it
            cached.move_to_end(prefix)
        while len(cached) > pool:
            cached.popitem(last=False)
    return computed


def ordered(prompts: Prompts, limits: list[int]) -> list[int]:
    return trie_order([pack(prompt) for prompt in prompts], limits)


@given(PROMPTS, st.data())
def test_every_prefix_is_computed_once_in_the_smallest_pool(prompts: Prompts, data: st.DataObject) -> None:
    limits = data.draw(st.lists(st.integers(0, 3), min_size=len(prompts), max_size=len(prompts)))
    order = ordered(prompts, limits)
    assert sorted(order) == list(range(len(prompts)))
    longest = max((len(prompt) for prompt in prompts), default=0)
    assert prefilled([prompts[number] for number in order], longest) == trie_size(prompts)


@given(PROMPTS, st.data())
def test_the_longest_output_goes_first_where_the_trie_leaves_a_choice(prompts: Prompts, data: st.DataObject) -> None:
    """Judged at each node: a branch whose longest output is longer than another's is never behind it."""
    limits = data.draw(st.lists(st.integers(0, 3), min_size=len(prompts), max_size=len(prompts)))
    order = ordered(prompts, limits)
    for prefix in {tuple(prompt[:end]) for prompt in prompts for end in range(len(prompt) + 1)}:
        below = [number for number in order if tuple(prompts[number][: len(prefix)]) == prefix]
        branches: dict[int | str, int] = {}
        for number in below:
            prompt = prompts[number]
            branch = prompt[len(prefix)] if len(prompt) > len(prefix) else f"row {number}"
            branches[branch] = max(branches.get(branch, 0), limits[number])
        assert list(branches.values()) == sorted(branches.values(), reverse=True)


@given(PROMPTS, st.data())
def test_as_many_rows_go_abreast_as_fit_into_the_pool_wherever_they_begin(
    prompts: Prompts, data: st.DataObject
) -> None:
    limits = data.draw(st.lists(st.integers(0, 3), min_size=len(prompts), max_size=len(prompts)))
    pool = data.draw(st.integers(1, 40))
    rows = [(prompts[number], limits[number]) for number in ordered(prompts, limits)]
    packed, tokens = [pack(prompt) for prompt, _ in rows], [limit for _, limit in rows]

    def fit(width: int) -> bool:
        windows = [rows[first : first + width] for first in range(len(rows))]
        return all(trie_size([row for row, _ in w]) + sum(limit for _, limit in w) <= pool for w in windows)

    width = num_abreast(packed, tokens, pool, 20)
    assert width == 1 or fit(width)
    assert width == 20 or not fit(width + 1)


def test_five_hundred_shuffled_rows_over_twenty_prefixes_compute_each_prefix_once() -> None:
    dice = random.Random(1)
    prefixes = [[dice.randrange(1 << 31) for _ in range(100)] for _ in range(20)]
    prompts = [[*dice.choice(prefixes), *(dice.randrange(1 << 31) for _ in range(6))] for _ in range(500)]
    order = ordered(prompts, [8] * len(prompts))
    assert prefilled([prompts[number] for number in order], 300) == trie_size(prompts)
    assert prefilled(prompts, 300) > 4 * trie_size(prompts)
