"""Judges: each path of a tree run separately as a sequence of its own; the walk and the moves one by one in Python."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.kernels import (
    AttentionArgs,
    KvCache,
    RowSpan,
    attention_layout,
    compact_kv,
    for_device,
    paged_attention,
    store_kv,
    walk_trees,
)

PAGE_SIZE = 4
CPU = torch.device("cpu")
NEVER = -1


@st.composite
def trees(draw: st.DrawFn, max_size: int = 12) -> list[int]:
    """Parents before children."""
    return [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, max_size)))]


def path(tree: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*path(tree, tree[node]), node]


def attend(q_THD: torch.Tensor, spans: list[RowSpan], kv: KvCache, window: int | None) -> torch.Tensor:
    layout = attention_layout(spans, page_size=PAGE_SIZE, window=window, dtype=torch.float32, device=CPU)
    return paged_attention(q_THD, kv, layout, scale=0.3)


@pytest.mark.exhaustive
@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), trees()), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 40),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=80, deadline=None)
def test_a_node_sees_what_it_would_see_at_the_end_of_its_path(
    rows: list[tuple[int, int, list[int]]], window: int | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shuffled = random.Random(seed).sample(range(100), 100)
    kv = KvCache(*torch.full((2, 100 * PAGE_SIZE, 2, 6), float("nan")))
    spans, queries, want = [], [], []
    for first, count, tree in rows:
        length = first + count + len(tree)
        pages = np.array([shuffled.pop() for _ in range(-(-length // PAGE_SIZE))])
        k_LKD, v_LKD = torch.randn(2, length, 2, 6, generator=generator)
        q_NHD = torch.randn(count + len(tree), 4, 6, generator=generator)
        slots = [int(pages[p // PAGE_SIZE]) * PAGE_SIZE + p % PAGE_SIZE for p in range(length)]
        store_kv(k_LKD, v_LKD, kv, torch.tensor(slots))
        spans.append(RowSpan(first, count + len(tree), pages, tree))
        queries.append(q_NHD)
        for place in range(count + len(tree)):
            # A sequence of its own: the tokens before, then the nodes on the way, nothing else.
            way = path(tree, place - count)
            seen = [*range(first + min(place + 1, count)), *(first + count + node for node in way)]
            alone = KvCache(*torch.full((2, 20 * PAGE_SIZE, 2, 6), float("nan")))
            store_kv(k_LKD[seen], v_LKD[seen], alone, torch.arange(len(seen)))
            span = RowSpan(len(seen) - 1, 1, np.arange(-(-len(seen) // PAGE_SIZE)))
            want.append(attend(q_NHD[place : place + 1], [span], alone, window))
    got = attend(torch.cat(queries), spans, kv, window)
    torch.testing.assert_close(got, torch.cat(want), atol=1e-5, rtol=1e-4)
    args = AttentionArgs(spans, kv, 4, page_size=PAGE_SIZE, window=window, dtype=torch.float32)
    loops = for_device(CPU).attention(args)
    torch.testing.assert_close(loops.attend(torch.cat(queries), kv, 0.3), torch.cat(want), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@given(forest=st.lists(trees(), min_size=1, max_size=5), seed=st.integers(0, 1 << 20))
@settings(max_examples=100, deadline=None)
def test_the_walk_and_the_copies_equal_those_made_one_by_one(forest: list[list[int]], seed: int) -> None:
    draw = random.Random(seed)
    parents: list[int] = []
    guessed: list[int] = []
    sampled: list[int] = []
    on_way: list[bool] = []
    nodes: list[int] = []
    moves: list[int] = []
    targets: list[int] = []
    memory = torch.rand(2, 400, 3)
    slots = draw.sample(range(400), sum(map(len, forest)))
    naive = memory.clone()
    start = 0
    for tree in forest:
        root = len(parents)
        tokens = [NEVER, *(draw.randrange(3) + 10 * node for node in range(len(tree)))]  # siblings differ
        samples = [
            draw.choice([*(t for t, p in zip(tokens[1:], tree, strict=True) if p == n - 1), 5])
            for n in range(len(tokens))
        ]
        parents += [root, *(root + 1 + parent for parent in tree)]
        guessed += tokens
        sampled += samples
        way, at = [], -1
        while (
            child := next((n for n, p in enumerate(tree) if p == at and tokens[n + 1] == samples[at + 1]), None)
        ) is not None:
            way.append(child)
            at = child
        on_way += [True, *(node in way for node in range(len(tree)))]
        depth = [len(path(tree, node)) for node in range(len(tree))]
        own = slots[start : start + len(tree)]
        for place, node in enumerate(way):
            naive[:, own[place]] = memory[:, own[node]]
        nodes += range(root + 1, root + 1 + len(tree))
        moves += [len(targets) + d - 1 for d in depth]
        targets += own[: max(depth, default=0)]
        start += len(tree)
    columns = torch.tensor(sampled), torch.tensor(guessed), torch.tensor(parents)
    got = walk_trees(*columns, max_depth=12)
    assert got.tolist() == on_way
    assert for_device(CPU).walk_trees(*columns, max_depth=12).tolist() == on_way
    long = torch.int64
    compact_kv(
        [memory],
        got[torch.tensor(nodes, dtype=long)],
        torch.tensor(slots, dtype=long),
        torch.tensor(moves, dtype=long),
        torch.tensor(targets, dtype=long),
    )
    torch.testing.assert_close(memory, naive)
