"""Judge: the plain torch of the same name, in float64."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from ramiform.kernels.reference import experts as reference
from ramiform.kernels.triton import experts
from ramiform.kernels.triton.launching import recorded

from .interpreter_dtypes import uniform_dot

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("counts", "num_outputs", "num_inputs"),
    [
        ([1], 5, 3),
        ([0, 1, 0, 0], 64, 130),  # one token, and experts without tokens on both sides
        ([3, 0, 17, 16, 1], 70, 40),  # whole tiles and parts of them
        ([90, 0, 40], 33, 48),
        ([0, 0, 2, 0, 0, 0, 1], 129, 32),  # as many experts as are no power of two
    ],
    ids=str,
)
@pytest.mark.parametrize("gathered", [False, True])
def test_a_grouped_product_equals_the_reference(
    counts: list[int], num_outputs: int, num_inputs: int, gathered: bool, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(sum(counts))
    num_rows, ends_N = sum(counts), torch.tensor(counts, device=device).cumsum(0)
    weight_NOC = torch.randn(len(counts), num_outputs, num_inputs, device=device).to(dtype)
    num_tokens = max(1, num_rows // 2) if gathered else num_rows
    x = torch.randn(num_tokens, num_inputs, device=device).to(dtype)
    rows_P = torch.randint(0, num_tokens, (num_rows,), device=device) if gathered else None
    wanted = reference.grouped_matmul(x.double(), weight_NOC.double(), ends_N, rows_P)
    got = experts.grouped_matmul(x, weight_NOC, ends_N, rows_P)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, atol=TOLERANCE[dtype] * num_inputs**0.5, rtol=TOLERANCE[dtype])


def test_no_rows_give_an_empty_product(device: torch.device) -> None:
    x, weight = torch.empty(0, 16, device=device), torch.empty(4, 8, 16, device=device)
    assert experts.grouped_matmul(x, weight, torch.zeros(4, dtype=torch.int64, device=device)).shape == (0, 8)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("num_tokens", "num_chosen", "width"), [(0, 2, 16), (1, 1, 5), (5, 3, 64), (3, 8, 1100)])
def test_a_weighted_sum_equals_the_reference(
    num_tokens: int, num_chosen: int, width: int, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(width)
    y_PE = torch.randn(num_tokens * num_chosen, width, device=device).to(dtype)
    place_P = torch.randperm(num_tokens * num_chosen, device=device)
    weights_TK = torch.rand(num_tokens, num_chosen, device=device)
    wanted = reference.combine_experts(y_PE.double(), place_P, weights_TK.double())
    got = experts.combine_experts(y_PE, place_P, weights_TK)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_in_tiles_of_one_shape_a_row_has_the_same_bits_in_any_batch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InterpreterBuilder, "create_dot", uniform_dot)
    torch.manual_seed(7)
    x = torch.randn(70, 70, device=device)
    weight = torch.randn(2, 5, 70, device=device)
    many = experts.grouped_matmul(x, weight, torch.tensor([40, 70], device=device), fixed=True)
    few = experts.grouped_matmul(x[37:42], weight, torch.tensor([3, 5], device=device), fixed=True)
    assert torch.equal(few, many[37:42])


@pytest.mark.exhaustive
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_experts", "num_chosen"), [(0, 4, 2), (1, 8, 8), (140, 5, 3)])
def test_tokens_find_their_experts_by_two_kernels(
    num_tokens: int, num_experts: int, num_chosen: int, normalised: bool, device: torch.device
) -> None:
    torch.manual_seed(num_tokens)
    scores_TN = torch.randn(num_tokens, num_experts, device=device)
    wanted = reference.route(scores_TN, num_chosen, normalised)
    with recorded() as launches:
        experts.route(scores_TN, num_chosen, normalised)
    assert len(launches) <= 2
    got = experts.route(scores_TN, num_chosen, normalised)
    torch.testing.assert_close(got.weights_TK, wanted.weights_TK)
    for ours, theirs in zip(got[1:], wanted[1:], strict=True):
        assert torch.equal(ours, theirs)
