"""Judge: common prefixes found by comparing all pairs of rows, page by page."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.kernels.attention_groups import (
    LEVELS,
    PIECE_TOKENS,
    SharedPrefix,
    pieces_of,
    shared_prefixes,
    shared_tokens,
    worthwhile,
)

PAGE_SIZE = 16
TABLES = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=9)  # few ids, so that prefixes are common


def common(a: list[int], b: list[int], block: int) -> int:
    """Count the whole blocks that two rows have in common."""
    pages = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    return pages // block


@pytest.mark.slow
@given(tables=TABLES, block=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_prefixes_are_those_of_all_pairs(tables: list[list[int]], block: int) -> None:
    found = shared_prefixes([np.array(table, dtype=np.int64) for table in tables], block)
    wanted = set()
    for a, b in itertools.combinations(range(len(tables)), 2):
        blocks = common(tables[a], tables[b], block)
        if blocks:
            rows = [r for r, table in enumerate(tables) if common(tables[a], table, block) >= blocks]
            wanted.add((tuple(rows), blocks))
    assert {(prefix.rows, prefix.end) for prefix in found} == wanted
    assert len(found) == len(wanted)
    for index, prefix in enumerate(found):
        around = [other for other in found[:index] if set(prefix.rows) < set(other.rows)]
        assert all(other in found[:index] for other in found if set(prefix.rows) < set(other.rows))
        assert prefix.parent == (found.index(max(around, key=lambda other: other.end)) if around else None)
        assert prefix.first == max((other.end for other in around), default=0) < prefix.end


def test_a_prefix_that_saves_less_than_it_costs_is_left_out() -> None:
    prefixes = [
        SharedPrefix(tuple(range(8)), 0, 1, None),
        SharedPrefix((0, 1, 2, 3), 1, 40, 0),
        SharedPrefix((4, 5), 1, 2, 0),
        SharedPrefix((0, 1), 40, 41, 1),
    ]
    ones, zeros = [1] * 8, [0] * 8
    chosen = worthwhile(prefixes, ones, zeros, block_keys=64)
    # Two rows save 64 reads of a key and pay as much.
    assert [(prefix.rows, prefix.first, prefix.end, prefix.parent) for prefix in chosen] == [
        (tuple(range(8)), 0, 1, None),
        ((0, 1, 2, 3), 1, 40, 0),
    ]
    assert worthwhile(prefixes[:1], ones, zeros, block_keys=64) == []  # less than a launch costs
    assert worthwhile(prefixes, [PIECE_TOKENS] * 8, zeros, block_keys=64) == []  # full tiles save nothing
    assert worthwhile(prefixes, ones, [40 * 64] * 8, block_keys=64) == []  # a window hides the shared keys
    outer, inner = SharedPrefix((0, 1, 2, 3), 0, 50, None), SharedPrefix((2, 3), 50, 90, 0)
    assert worthwhile([outer, inner], [1] * 4, [0] * 4, block_keys=64) == [outer, inner]
    assert worthwhile([outer, inner], [1] * 4, [0] * 4, block_keys=64, levels=1) == [outer]
    # Without the outer prefix the inner one begins where the sequence does.
    tokens = [PIECE_TOKENS, PIECE_TOKENS, 8, 8]
    assert worthwhile([outer._replace(end=1), inner], tokens, [0] * 4, block_keys=64) == [
        SharedPrefix((2, 3), 0, 90, None)
    ]


@pytest.mark.slow
@given(
    tables=st.lists(st.lists(st.integers(0, 1), min_size=40, max_size=90), min_size=1, max_size=12),
    tokens=st.lists(st.integers(1, PIECE_TOKENS), min_size=12, max_size=12),
)
@settings(max_examples=30, deadline=None)
def test_pieces_and_own_keys_together_are_each_rows_keys(tables: list[list[int]], tokens: list[int]) -> None:
    tables = [[0] * 30 + table for table in tables]
    num_tokens_R = tokens[: len(tables)]
    starts_R = [0, *itertools.accumulate(num_tokens_R)][:-1]
    pages_R = [np.array(table) for table in tables]
    groups, first_key_R = shared_tokens(pages_R, starts_R, num_tokens_R, [0] * len(tables), page_size=PAGE_SIZE)
    if not groups:
        assert not any(first_key_R)
        return
    pieces = pieces_of(groups, sum(num_tokens_R))
    for table, start, num, first_key in zip(tables, starts_R, num_tokens_R, first_key_R, strict=True):
        for token in range(start, start + num):
            at = 0
            assert len(pieces.places_TL[token]) == LEVELS
            for place in pieces.places_TL[token]:
                if place < 0:
                    continue
                piece = place // PIECE_TOKENS
                assert place % PIECE_TOKENS < pieces.num_tokens_G[piece]
                assert pieces.tokens_N[place] == token
                assert pieces.first_key_G[piece] == at
                end = int(pieces.num_keys_G[piece])
                listed = pieces.page_table_GP[piece, : (end - at) // PAGE_SIZE].tolist()
                assert listed == table[at // PAGE_SIZE : end // PAGE_SIZE]
                at = end
            assert at == first_key
