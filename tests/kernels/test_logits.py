"""Judges: python loops over tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.kernels import PenaltyTensors, apply_penalties, apply_token_bitmask


@pytest.mark.slow
@given(vocab=st.integers(1, 100), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_bitmask_leaves_exactly_the_tokens_whose_bits_are_set(vocab: int, data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.sets(st.integers(0, vocab - 1)), min_size=1, max_size=4))
    words = [[sum(1 << (t % 32) for t in row if t // 32 == w) for w in range(-(-vocab // 32))] for row in allowed]
    bitmask_RW = torch.tensor(words, dtype=torch.int64).to(torch.int32)
    logits_RV = torch.randn(len(allowed), vocab)
    got = apply_token_bitmask(logits_RV, bitmask_RW)
    for row, tokens in enumerate(allowed):
        for token in range(vocab):
            want = float(logits_RV[row, token]) if token in tokens else float("-inf")
            assert float(got[row, token]) == want


def test_penalties_touch_the_listed_tokens_only() -> None:
    logits_RV = torch.tensor([[2.0, -2.0, 1.0, 0.5], [3.0, 3.0, 3.0, 3.0]])
    got = apply_penalties(
        logits_RV,
        PenaltyTensors(
            rows_N=torch.tensor([0, 0, 1]),
            tokens_N=torch.tensor([0, 1, 2]),
            counts_N=torch.tensor([0.0, 3.0, 2.0]),
            repetition_N=torch.tensor([2.0, 2.0, 1.0]),
            frequency_N=torch.tensor([0.5, 0.5, 0.25]),
            presence_N=torch.tensor([0.1, 0.1, 1.0]),
        ),
    )
    want = [[2.0 / 2, -2.0 * 2 - 0.5 * 3 - 0.1, 1.0, 0.5], [3.0, 3.0, 3.0 - 0.25 * 2 - 1.0, 3.0]]
    torch.testing.assert_close(got, torch.tensor(want))
