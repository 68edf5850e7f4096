"""Judge: the same query at the end of a sequence that holds its path in order, alone. Compared bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ramiform.kernels import AttentionArgs, KvCache, Ops, RowSpan, for_device, store_kv
from ramiform.kernels.reference.attention_layout import tree_paths

PAGE_SIZE = 16
CPU = torch.device("cpu")
H, K, D = 4, 2, 8
NUM_PAGES = 90


def siblings(topk: int, depth: int, draw: random.Random) -> list[int]:
    """Make a tree of `topk` children at each depth, one of which has the next ones."""
    tree: list[int] = []
    parent = -1
    for _ in range(depth):
        first = len(tree)
        tree += [parent] * topk
        parent = first + draw.randrange(topk)
    return tree


def path(tree: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*path(tree, tree[node]), node]


def attend(ops: Ops, q_THD: torch.Tensor, spans: list[RowSpan], kv: KvCache, window: int | None) -> torch.Tensor:
    args = AttentionArgs(spans, kv, H, page_size=PAGE_SIZE, window=window, dtype=torch.float32)
    return ops.attention(args).attend(q_THD, kv, 0.3)


def check_paths(ops: Ops, rows: list[tuple[int, int, list[int]]], window: int | None, seed: int) -> None:
    """Compare each token of rows (first position, committed tokens, tree) with its own path, decoded alone."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shuffled = draw.sample(range(NUM_PAGES), NUM_PAGES)
    kv = KvCache(*torch.full((2, NUM_PAGES * PAGE_SIZE, K, D), float("nan")))
    spans, queries, alone = [], [], []
    for first, count, tree in rows:
        length = first + count + len(tree)
        pages = np.array([shuffled.pop() for _ in range(-(-length // PAGE_SIZE))])
        k_LKD, v_LKD = torch.randn(2, length, K, D, generator=generator)
        q_NHD = torch.randn(count + len(tree), H, D, generator=generator)
        place_L = np.arange(length)
        slots = torch.from_numpy(pages[place_L // PAGE_SIZE] * PAGE_SIZE + place_L % PAGE_SIZE)
        store_kv(k_LKD, v_LKD, kv, slots)
        spans.append(RowSpan(first, count + len(tree), pages, tree))
        queries.append(q_NHD)
        for index in range(count + len(tree)):
            seen = [*range(first + min(index + 1, count)), *(first + count + n for n in path(tree, index - count))]
            own = KvCache(*torch.full((2, (length // PAGE_SIZE + 1) * PAGE_SIZE, K, D), float("nan")))
            store_kv(k_LKD[seen], v_LKD[seen], own, torch.arange(len(seen)))
            span = RowSpan(len(seen) - 1, 1, np.arange(-(-len(seen) // PAGE_SIZE)))
            alone.append(attend(ops, q_NHD[index : index + 1], [span], own, window))
    together = attend(ops, torch.cat(queries), spans, kv, window)
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("topk", [1, 2, 4])
@pytest.mark.parametrize("first", [0, 58, 61, 63, 64, 124, 127])
def test_a_node_has_the_bits_of_plain_decoding(first: int, topk: int, window: int | None) -> None:
    draw = random.Random(first)
    rows = [(first, 1, siblings(topk, 5, draw)), (3, 40, []), (first + 5, 9, siblings(topk, 3, draw))]
    check_paths(for_device(CPU, "reference", deterministic=True), rows, window, seed=first)


def test_paths_cover_every_node_once() -> None:
    draw = random.Random(7)
    for _ in range(50):
        tree = [draw.randrange(-1, node) for node in range(draw.randrange(1, 20))]
        new = [int(node) for nodes, num_new in tree_paths(tree) for node in nodes[-num_new:]]
        assert sorted(new) == list(range(len(tree)))
        assert all(list(nodes) == path(tree, int(nodes[-1])) for nodes, _ in tree_paths(tree))
