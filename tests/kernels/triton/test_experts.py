"""Judge: the plain torch of the same name, in float64."""

from __future__ import annotations

import pytest
import torch

from ramify.kernels.reference import experts as reference
from ramify.kernels.triton import experts

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("counts", "num_outputs", "num_inputs"),
    [
        ([1], 5, 3),
        ([0, 1, 0, 0], 64, 130),  # one token, and experts that nobody wants on both sides
        ([3, 0, 17, 16, 1], 70, 40),  # whole tiles and parts of them
        ([90, 0, 40], 33, 48),
        ([0, 0, 2, 0, 0, 0, 1], 129, 32),  # as many experts as are no power of two
    ],
    ids=str,
)
@pytest.mark.parametrize("gathered", [False, True])
def test_a_grouped_product_is_the_reference_s(
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


def test_no_rows_give_no_rows(device: torch.device) -> None:
    x, weight = torch.empty(0, 16, device=device), torch.empty(4, 8, 16, device=device)
    assert experts.grouped_matmul(x, weight, torch.zeros(4, dtype=torch.int64, device=device)).shape == (0, 8)
