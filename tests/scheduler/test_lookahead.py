"""Lookahead decoding: the window finds n-grams that the text has not, and outputs stay the model's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from ramiform.runtime.scheduler.drafts.lookahead import MAX_NGRAMS, Lookahead
from ramiform.runtime.scheduler.drafts.tree import DraftTree

VOCAB = 97
NextToken = Callable[[Sequence[int]], int]


def by_last_token(tokens: Sequence[int]) -> int:
    return (5 * tokens[-1] + 3) % VOCAB  # a cycle of 96 tokens


def by_two_tokens(tokens: Sequence[int]) -> int:
    return (7 * tokens[-1] + 11 * tokens[-2] + 1) % VOCAB


def verify(tree: DraftTree, tokens: list[int], model: NextToken) -> tuple[list[int], list[int]]:
    """Return the accepted tokens and the sampled one, and what the model says after each node."""
    after = [model([*tokens, *tree.path(node)]) for node in range(len(tree))]
    found, at = [model(tokens)], -1
    while True:
        children = [node for node, parent in enumerate(tree.parents) if parent == at and tree.tokens[node] == found[-1]]
        if not children:
            return found, after
        at = children[0]
        found.append(after[at])


def decode(
    model: NextToken, count: int, *, steps: int = 3, num_tokens: int = 24, top_k: int = 4
) -> tuple[list[int], int]:
    """Return the text and the number of passes."""
    tokens, passes = [1, 2], 0
    lookahead = Lookahead(tokens, steps=steps, num_tokens=num_tokens)
    while len(tokens) < count:
        tree = lookahead.propose(tokens, top_k=top_k, num_tokens=num_tokens)
        assert 0 < len(tree) <= num_tokens
        assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)
        for node, parent in enumerate(tree.parents):
            assert parent < node
            assert parent < 0 or tree.scores[node] <= tree.scores[parent]
        found, after = verify(tree, tokens, model)
        tokens += found
        lookahead.observe(tokens, len(found), tree.tokens, tree.parents, after)
        passes += 1
    return tokens, passes


@pytest.mark.parametrize("model", [by_last_token, by_two_tokens])
def test_texts_that_never_repeat_take_fewer_passes(model: NextToken) -> None:
    tokens, passes = decode(model, 90)
    expected = [1, 2]
    while len(expected) < len(tokens):
        expected.append(model(expected))
    assert tokens == expected
    assert len(set(pairwise(tokens))) > 80
    assert passes < 0.8 * len(tokens)


@pytest.mark.parametrize(("steps", "num_tokens", "top_k"), [(1, 1, 1), (7, 7, 4), (2, 40, 8), (32, 127, 32)])
def test_any_bounds_are_kept(steps: int, num_tokens: int, top_k: int) -> None:
    decode(by_two_tokens, 60, steps=steps, num_tokens=num_tokens, top_k=top_k)


def test_nodes_that_were_not_computed_or_not_finite_start_again() -> None:
    tokens = [1, 2, 3]
    lookahead = Lookahead(tokens, steps=2, num_tokens=12)
    for _ in range(5):
        tree = lookahead.propose(tokens, top_k=2, num_tokens=12).best(3)
        tokens.append(by_last_token(tokens))
        lookahead.observe(tokens, 1, tree.tokens, tree.parents, [-1] * len(tree))
        assert all(0 <= token < VOCAB for token in lookahead.propose(tokens, top_k=2, num_tokens=12).tokens)


def test_the_pool_is_bounded() -> None:
    draw = random.Random(1)
    tokens = [draw.randrange(1 << 17) for _ in range(3 * MAX_NGRAMS)]
    lookahead = Lookahead(tokens, steps=3, num_tokens=24)
    lookahead.propose(tokens, top_k=4, num_tokens=24)
    assert lookahead._num_pooled == sum(map(len, lookahead._pool.values())) <= MAX_NGRAMS
