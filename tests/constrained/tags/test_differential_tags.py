"""Random structural tags and texts, judged by a naive reader and by xgrammar."""

from __future__ import annotations

import json

import pytest

from ramiform.constrained import StructuralTag, compile_constraint
from ramiform.tests.constrained.tags.naive_tags import NaiveTags, RandomTags
from ramiform.tests.constrained.walks import accepts, byte_vocabulary

NUM_TEXTS = 4  # of each tag


def judge(seed: int) -> None:
    """Compare a random tag with the naive reader on random texts."""
    made = RandomTags(seed)
    spec = made.format()
    grammar = compile_constraint(StructuralTag({"format": spec}), byte_vocabulary(), whitespace="compact")
    for _ in range(NUM_TEXTS):
        text = made.text(spec)
        expected = len(text) in NaiveTags(text).ends_of(spec)
        assert accepts(grammar, text.encode()) == expected, (seed, text, json.dumps(spec))


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_random_tags_agree_with_a_naive_reader(first: int) -> None:
    for seed in range(first, first + 500):
        judge(seed)
