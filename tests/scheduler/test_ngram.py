"""N-gram drafts. Judge: a search through the whole sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.scheduler.drafts.ngram import MAX_MATCH, MIN_MATCH, NgramIndex


def latest_match(tokens: list[int]) -> int | None:
    """The latest earlier end of the longest n-gram that ends the sequence."""
    for length in range(min(MAX_MATCH, len(tokens) - 1), MIN_MATCH - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return end
    return None


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 40), max_size=4),
    steps=st.integers(1, 6),
    top_k=st.integers(1, 4),
)
def test_the_first_draft_is_what_followed_the_last_time(
    tokens: list[int], cuts: list[int], steps: int, top_k: int
) -> None:
    index = NgramIndex()
    for cut in sorted(cuts):  # asked before, when it was shorter
        index.propose(tokens[: min(cut, len(tokens))], steps=2, top_k=1, num_tokens=4)
    tree = index.propose(tokens, steps=steps, top_k=top_k, num_tokens=64)
    end = latest_match(tokens)
    assert (tree is None) == (end is None)
    if tree is None or end is None:
        return
    assert tokens[end : end + steps] in [tree.path(node) for node in range(len(tree))]
    assert max(tree.depths) <= steps
    assert tree.parents.count(-1) <= top_k
    siblings = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(set(siblings)) == len(siblings)
    assert len(tree.best(3)) == min(3, len(tree))


def test_a_text_that_never_repeats_gives_no_draft() -> None:
    assert NgramIndex().propose(list(range(50)), steps=4, top_k=2, num_tokens=8) is None
