"""Adapters' kernels. Judge: the plain torch of the same name, in float64."""

from __future__ import annotations

import pytest
import torch

from ramiform.kernels.lora import AdapterSegments, LowRank, LowRankProduct
from ramiform.kernels.reference import lora as reference
from ramiform.kernels.triton import lora

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("counts", "ranks", "sizes", "num_inputs"),
    [
        ([1], [8], (40,), 24),
        ([3, 17, 1, 16], [4, 20, 8, 16], (130, 5, 5), 300),  # whole blocks and parts of them, tiles that end early
        ([2, 2], [None, 4], (33, 33), 64),  # an adapter that leaves the product as it is
    ],
    ids=str,
)
def test_adapters_are_added_to_their_tokens(
    counts: list[int],
    ranks: list[int | None],
    sizes: tuple[int, ...],
    num_inputs: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    torch.manual_seed(sum(counts))
    num_tokens = sum(counts) + 3  # three of the base
    x = torch.randn(num_tokens, num_inputs, device=device).to(dtype)
    y = torch.randn(num_tokens, sum(sizes), device=device).to(dtype)
    parts = [
        None
        if rank is None
        else LowRank(
            (torch.randn(len(sizes) * rank, num_inputs, device=device) / num_inputs**0.5).to(dtype),
            (torch.randn(rank, sum(sizes), device=device) / rank**0.5).to(dtype),
        )
        for rank in ranks
    ]
    rows = [(0, 0, 0) if part is None else (*(one.data_ptr() for one in part), len(part.b_RO)) for part in parts]
    product = LowRankProduct(sizes, parts, torch.tensor(rows, device=device))
    ends = torch.tensor(counts).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    blocks = [
        (place, first, min(first + 16, end))
        for place, (start, end) in enumerate(zip(starts, ends, strict=True))
        for first in range(start, end, 16)
    ]
    segments = AdapterSegments(
        list(range(len(counts))),
        ends,
        torch.randperm(num_tokens, device=device)[: sum(counts)],
        torch.tensor(blocks, dtype=torch.int32, device=device),
    )
    wanted = y.double()
    doubles = [None if part is None else LowRank(*(one.double() for one in part)) for part in parts]
    reference.add_low_rank(wanted, x.double(), product._replace(by_place=doubles), segments)
    lora.add_low_rank(y, x, product, segments)
    torch.testing.assert_close(y.double(), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
