"""EAGLE-2's tree. Judge: a naive one."""

from __future__ import annotations

import pytest
import torch

from ramiform.runtime.speculation.eagle.tree_growth import Frontier, TreeShape, draft_temperature, grow_trees

from .naive_eagle import naive_tree, paths


class Oracle:
    """Log-probabilities of a path's children: random, but reproducible."""

    def __init__(self, seed: int, vocab_size: int, sharpness: float) -> None:
        self.seed, self.vocab_size, self.sharpness = seed, vocab_size, sharpness

    def __call__(self, path: tuple[int, ...]) -> torch.Tensor:
        number = self.seed
        for token in path:
            number = (number * 1_000_003 + token + 1) % (1 << 31)
        logits = torch.randn(self.vocab_size, generator=torch.Generator().manual_seed(number))
        return (logits * self.sharpness).log_softmax(-1)


def grown_paths(oracles: list[Oracle], shapes: list[TreeShape]) -> list[tuple[list[tuple[int, ...]], list[float]]]:
    fronts: list[list[tuple[int, ...]]] = [[()] for _ in oracles]

    def expand(front: Frontier) -> torch.Tensor:
        nonlocal fronts
        columns = zip(fronts, front.tokens_BK.tolist(), front.parents_BK.tolist(), strict=True)
        fronts = [[(*old[p], t) for t, p in zip(ts, ps, strict=True)] for old, ts, ps in columns]
        return torch.stack([torch.stack([o(path) for path in row]) for o, row in zip(oracles, fronts, strict=True)])

    roots = torch.arange(len(oracles))
    trees = grow_trees(roots, torch.stack([oracle(()) for oracle in oracles]), expand, shapes)
    assert trees.tokens_BM[:, 0].tolist() == roots.tolist()
    assert trees.parents_BM[:, 0].tolist() == [-1] * len(oracles)
    found = []
    for b, size in enumerate(trees.sizes):
        tokens, parents = trees.tokens_BM[b, 1:size].tolist(), trees.parents_BM[b, 1:size].tolist()
        found.append((paths(tokens, [p - 1 for p in parents]), trees.scores_BM[b, 1:size].tolist()))
    return found


def check(oracles: list[Oracle], shapes: list[TreeShape]) -> None:
    for oracle, shape, (found, scores) in zip(oracles, shapes, grown_paths(oracles, shapes), strict=True):
        wanted = naive_tree(oracle, *shape)
        # Within a layer nodes are looked at in the order of the front, best first, in both.
        assert found == [node.path for node in wanted]
        assert scores == pytest.approx([node.score for node in wanted], abs=1e-4)


def test_the_golden_tree_of_two_rows() -> None:
    shape = TreeShape(num_steps=4, top_k=4, num_tokens=8)
    check([Oracle(1, 50, 2.0), Oracle(2, 50, 2.0)], [shape, shape])


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("shape", [(1, 1, 2), (5, 1, 6), (3, 10, 60), (2, 3, 100), (7, 2, 5)], ids=str)
def test_any_shape_is_grown_as_the_naive_tree_is(shape: tuple[int, int, int], sharpness: float) -> None:
    check([Oracle(seed, 40, sharpness) for seed in range(3)], [TreeShape(*shape)] * 3)


def test_rows_of_one_batch_may_ask_for_different_trees() -> None:
    shapes = [TreeShape(4, 2, 30), TreeShape(1, 2, 9), TreeShape(6, 1, 4), TreeShape(3, 5, 40)]
    check([Oracle(seed, 30, 1.5) for seed in range(4)], shapes)


def test_a_width_beyond_the_vocabulary_is_the_vocabularys() -> None:
    oracle = Oracle(5, 3, 1.0)
    [wide], [fitting] = grown_paths([oracle], [TreeShape(3, 8, 30)]), grown_paths([oracle], [TreeShape(3, 3, 30)])
    assert wide == fitting
    check([oracle], [TreeShape(3, 3, 30)])


def test_where_a_child_is_certain_its_parent_is_kept_before_it() -> None:
    """A child's score then equals its parent's."""
    certain = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf])
    trees = grow_trees(torch.tensor([7]), certain[None], lambda front: certain.expand(1, 2, 4), [TreeShape(4, 2, 3)])
    assert (trees.tokens_BM[0].tolist(), trees.parents_BM[0].tolist()) == ([7, 0, 0], [-1, 0, 1])


def test_greedy_requests_are_ranked_at_a_temperature_of_their_own() -> None:
    assert [draft_temperature(t) for t in (0.0, 0.3, 1.0, 2.0)] == [0.3, 0.3, 1.0, 2.0]
