"""Draft trees. Judge: paths as lists of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.scheduler.drafts.tree import DraftTree, is_chain


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    for node in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, node - 1))
        tokens.append(10 * node + draw(st.integers(0, 3)))  # siblings differ
        scores.append((scores[parent] if parent >= 0 else 0.0) - draw(st.sampled_from([0.0, 0.1, 0.5, 2.0])))
        parents.append(parent)
    return DraftTree(tokens, parents, scores)


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tuple(tree.path(node)) for node in range(len(tree))}


@pytest.mark.slow
@given(trees())
def test_depths_and_ancestors_are_those_of_the_paths(tree: DraftTree) -> None:
    for node, (depth, bits) in enumerate(zip(tree.depths, tree.ancestors, strict=True)):
        on_way = [other for other in range(len(tree)) if bits >> other & 1]
        assert [tree.tokens[other] for other in on_way] == tree.path(node)
        assert depth == len(on_way)


@pytest.mark.exhaustive
@given(trees(), st.integers(0, 14))
def test_the_best_nodes_are_a_tree_and_no_other_is_better(tree: DraftTree, size: int) -> None:
    best = tree.best(size)
    assert len(best) == min(size, len(tree))
    assert paths(best) <= paths(tree)  # no child without its parent
    assert all(parent < node for node, parent in enumerate(best.parents))
    assert sorted(best.scores, reverse=True) == sorted(tree.scores, reverse=True)[:size]


@pytest.mark.slow
@given(trees(), st.data())
def test_the_subtree_after_tokens_is_the_rest_of_every_path_through_them(tree: DraftTree, data: st.DataObject) -> None:
    before = data.draw(st.sampled_from([[], [1], *map(list, paths(tree))]))
    left = tree.after(before)
    rest = {p[len(before) :] for p in paths(tree) if list(p[: len(before)]) == before} - {()}
    assert (set() if left is None else paths(left)) == rest
    assert left is None or all(score <= 0 for score in left.scores)


def test_a_chain_is_one() -> None:
    chain = DraftTree.chain([5, 6, 7])
    assert (chain.parents, chain.depths, chain.path(2)) == ([-1, 0, 1], [1, 2, 3], [5, 6, 7])
    assert is_chain(chain.parents)
    assert not is_chain([-1, -1])
    assert is_chain([])
