"""Judge: each token's experts one by one, in float64, from the definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.kernels import choose_experts, combine_experts, group_by_expert, grouped_matmul
from ramiform.kernels.reference.experts import deterministic_grouped_matmul
from ramiform.kernels.reference.layers import deterministic_silu_and_mul


@settings(deadline=None, max_examples=60)
@given(
    num_tokens=st.integers(1, 9),
    num_experts=st.integers(1, 8),
    data=st.data(),
    normalised=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_mixture_is_the_weighted_sum_of_each_token_s_experts(
    num_tokens: int, num_experts: int, data: st.DataObject, normalised: bool, seed: int
) -> None:
    num_chosen = data.draw(st.integers(1, num_experts))
    draw = torch.Generator().manual_seed(seed)
    x_TC = torch.randn(num_tokens, 6, generator=draw, dtype=torch.float64)
    weight_NOC = torch.randn(num_experts, 5, 6, generator=draw, dtype=torch.float64)
    scores_TN = torch.randn(num_tokens, num_experts, generator=draw)

    weights_TK, experts_TK = choose_experts(scores_TN, num_chosen, normalised)
    order_P, ends_N = group_by_expert(experts_TK, num_experts)
    y_PO = grouped_matmul(x_TC, weight_NOC, ends_N, order_P // num_chosen)
    got = combine_experts(y_PO, order_P.argsort(), weights_TK)

    for token in range(num_tokens):
        scores = scores_TN[token].tolist()
        total = sum(math.exp(score) for score in scores)
        best = sorted(range(num_experts), key=lambda n: -scores[n])[:num_chosen]
        shares = {n: math.exp(scores[n]) / total for n in best}
        divisor = sum(shares.values()) if normalised else 1.0
        want = sum((shares[n] / divisor) * (weight_NOC[n] @ x_TC[token]) for n in best)
        torch.testing.assert_close(got[token], want, rtol=1e-5, atol=1e-6)


def test_pairs_are_grouped_by_expert_and_keep_their_order() -> None:
    experts_TK = torch.tensor([[2, 0], [0, 2], [2, 4]])
    order_P, ends_N = group_by_expert(experts_TK, 5)
    assert order_P.tolist() == [1, 2, 0, 3, 4, 5]
    assert ends_N.tolist() == [2, 2, 5, 5, 6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_s_bits_do_not_depend_on_the_order_of_its_pairs(dtype: torch.dtype) -> None:
    y_TKE = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights_TK = torch.rand(4, 3)
    sums = []
    for seed in range(4):
        order_P = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
        sums.append(combine_experts(y_TKE.flatten(0, 1)[order_P], order_P.argsort(), weights_TK))
    assert sums[0].dtype == dtype
    assert all(torch.equal(sums[0], other) for other in sums[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(deadline=None, max_examples=30)
@given(num_tokens=st.integers(2, 40), num_experts=st.integers(1, 5), first=st.integers(0, 39), data=st.data())
def test_a_token_s_bits_do_not_depend_on_the_other_tokens(
    dtype: torch.dtype, num_tokens: int, num_experts: int, first: int, data: st.DataObject
) -> None:
    num_chosen = data.draw(st.integers(1, num_experts))
    draw = torch.Generator().manual_seed(num_tokens)
    x_TC = torch.randn(num_tokens, 37, generator=draw).to(dtype)
    weight_NOC = torch.randn(num_experts, 22, 37, generator=draw).to(dtype)
    scores_TN = torch.randn(num_tokens, num_experts, generator=draw).to(dtype)

    def mixed(tokens: slice) -> torch.Tensor:
        weights_TK, experts_TK = choose_experts(scores_TN[tokens], num_chosen, normalised=True)
        order_P, ends_N = group_by_expert(experts_TK, num_experts)
        gate_up_PO = deterministic_grouped_matmul(x_TC[tokens], weight_NOC, ends_N, order_P // num_chosen)
        return combine_experts(deterministic_silu_and_mul(gate_up_PO), order_P.argsort(), weights_TK)

    some = slice(min(first, num_tokens - 1), min(first, num_tokens - 1) + data.draw(st.integers(1, 40)))
    assert torch.equal(mixed(some), mixed(slice(None))[some])
