"""Compiled products of int8 and 4-bit weights with rounded rows. Judge: exact integers and float64."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ramiform.kernels.cpu.products.matmul import packed_matmul, prepare_rows, prepared_size
from ramiform.kernels.cpu.products.packed_matrix import LARGE_RATIO, WIDTH, PackedMatrix
from ramiform.tests.kernels.test_matmul import check_codes

ROWS = [1, 2, 3, 4, 5, 6, 7, 63, 64, 65, 200, 260]
# Kinds: int8 with a scale per output, and with groups; four bits. C, group (0: none), N.
INT8 = [("int8", C, 0, N) for C, N in ((1, 1), (33, 7), (2112, WIDTH + 1), (1100, 2 * WIDTH))]
GROUPED = [
    (kind, C, group, N)
    for kind in ("int8", "int4")
    for C, group, N in ((32, 32, 5), (64, 64, WIDTH + 3), (128, 128, 7), (2304, 32, 9), (2304, 128, 2 * WIDTH))
]


def weights(kind: str, C: int, group: int, N: int) -> tuple[PackedMatrix, torch.Tensor, torch.Tensor]:
    """Return a packed matrix, its weights in float64, and its bias."""
    draw = torch.Generator().manual_seed(C + N)
    shape = (N, C // group) if group else (N,)
    # float16 holds these scales, so that packing rounds nothing.
    scale = (torch.rand(shape, generator=draw) + 0.5).mul(2.0**-9).half().float()
    bias = torch.randn(N, generator=draw)
    if kind == "int8":
        codes = torch.randint(-128, 128, (N, C), generator=draw, dtype=torch.int8)
        matrix = PackedMatrix.of_int8(codes, scale, bias)
        base = torch.zeros(shape)
    else:
        codes = torch.randint(0, 16, (N, C), generator=draw, dtype=torch.uint8)
        base = torch.randn(shape, generator=draw).mul(2.0**-7).half().float()
        matrix = PackedMatrix.of_int4(codes[:, ::2] | codes[:, 1::2] << 4, scale, base, bias)
        codes = codes.to(torch.int8) - 8
    grouped = codes.double().view(N, -1, group or C)
    return matrix, (grouped * scale.view(N, -1, 1).double() + base.view(N, -1, 1).double()).flatten(1), bias


def rows(T: int, C: int) -> torch.Tensor:
    """Return rows with a channel a hundred times larger."""
    x = torch.randn(T, C, generator=torch.Generator().manual_seed(T))
    x[:, C // 2] *= 100
    return x


def rounded(x: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    """Return the rows as the product reads them, in float64, by a model of the rounding."""
    group, (T, C) = int(matrix.descriptor[3]), x.shape
    groups = torch.nn.functional.pad(x, (0, -C % group)).view(T, -1, group)
    sizes = torch.tensor([min(group, C - first) for first in range(0, C, group)]).view(-1, 1)

    def codes_and_scale(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = numbers.abs().amax(2, keepdim=True) / 127
        return torch.where(scale > 0, numbers * (1 / scale), 0).round().double(), scale.double()

    codes, scale = codes_and_scale(groups)
    large = codes.abs() * sizes > LARGE_RATIO * codes.abs().sum(2, keepdim=True)
    assert (large.sum((1, 2)) <= groups.shape[1]).all(), "there is room for as many"
    codes, scale = codes_and_scale(torch.where(large, 0, groups))
    return torch.where(large, groups.double(), codes * scale).flatten(1)[:, :C]


@pytest.mark.parametrize(("kind", "C", "group", "N"), [*INT8, *GROUPED])
@pytest.mark.parametrize("T", ROWS)
def test_products_equal_those_of_rounded_rows_in_float64(T: int, kind: str, C: int, group: int, N: int) -> None:
    matrix, w, bias = weights(kind, C, group, N)
    x = rows(T, C)
    check_codes(matrix, x, rounded(x, matrix), w, bias)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_sums_of_extreme_codes_are_exact(kind: str) -> None:
    C, group, N = 256, 128, WIDTH
    for code in (-128, 127) if kind == "int8" else (0, 15):
        scale, base = torch.ones(N, C // group), torch.zeros(N, C // group)
        if kind == "int8":
            matrix = PackedMatrix.of_int8(torch.full((N, C), code, dtype=torch.int8), scale)
        else:
            matrix = PackedMatrix.of_int4(torch.full((N, C // 2), code * 17, dtype=torch.uint8), scale, base)
        for sign in (-1, 1):
            x = torch.full((5, C), 127.0 * sign)  # codes are 127, and the scale is 1
            want = (code if kind == "int8" else code - 8) * 127 * sign * C
            assert torch.equal(packed_matmul(x, matrix), torch.full((5, N), float(want)))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_large_channels_cost_no_precision(kind: str) -> None:
    C, N = 512, WIDTH + 3
    matrix, w, bias = weights(kind, C, 0 if kind == "int8" else 128, N)
    x = torch.randn(4, C, generator=torch.Generator().manual_seed(1))
    large = x.clone()
    large[:, [7, 8, 300]] = torch.tensor([100.0, -80, 60])

    def error(rows: torch.Tensor) -> float:
        want = rows.double() @ w.T + bias.double()
        return float((packed_matmul(rows, matrix).double() - want).norm())

    assert error(large) < 1.05 * error(x)


def test_more_large_inputs_than_a_row_has_room_for_are_rounded() -> None:
    C = 128
    matrix, w, bias = weights("int8", C, 0, 5)
    x = torch.full((1, C), 0.1)
    x[:, [3, 40, 50, 60]] = 100.0  # a row of one group has room for four
    want = x.double() @ w.T + bias.double()
    assert (packed_matmul(x, matrix).double() - want).abs().max() < 1e-3
    x[:, 70] = 100.0
    assert (packed_matmul(x, matrix).double() - (x.double() @ w.T + bias.double())).abs().max() < 3


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    matrix, _, _ = weights("int8", 96, 32, 5)
    for number in (float("nan"), float("inf"), -float("inf")):
        x = torch.ones(2, 96)
        x[1, 40] = number
        y = packed_matmul(x, matrix)
        assert y[0].isfinite().all()
        assert y[1].isnan().all()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_no_rows_give_no_products(kind: str) -> None:
    assert packed_matmul(torch.empty(0, 64), weights(kind, 64, 32, 7)[0]).shape == (0, 7)


def test_rows_are_prepared_in_parts() -> None:
    matrix, _, _ = weights("int4", 256, 64, 5)
    x = rows(9, 256).numpy()

    def prepared(*bounds: int) -> NDArray[np.uint8]:
        out = np.zeros(prepared_size(matrix.descriptor, 9, False), np.uint8)
        for first, last in pairwise(bounds):
            prepare_rows(matrix.descriptor, x[first:last], first, out, False)
        return out

    assert np.array_equal(prepared(0, 9), prepared(0, 4, 5, 9))


def digest() -> str:
    """Return a digest of products in all integer formats, which test_block_matmul.py compares."""
    seen = hashlib.sha256()
    some = (("int8", 1100, 0, 70), ("int8", 2304, 32, 70), ("int4", 2304, 64, 70), ("int4", 288, 96, 70))
    for kind, C, group, N in some:
        matrix, _, _ = weights(kind, C, group, N)
        matrix.round_alike()
        for T in (1, 3, 7, 65):
            seen.update(packed_matmul(rows(T, C), matrix).numpy().tobytes())
    return seen.hexdigest()
