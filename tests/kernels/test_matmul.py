"""Compiled products with packed weights. Judge: float64."""

from __future__ import annotations

import pytest
import torch

from ramiform.kernels.cpu.instructions import HOST
from ramiform.kernels.cpu.products.matmul import FEW_ROWS, in_tiles, packed_matmul
from ramiform.kernels.cpu.products.packed_matrix import (
    BFLOAT16,
    BFLOAT16_ROWS,
    FLOAT32,
    TILES_FROM,
    WIDTH,
    PackedMatrix,
)
from ramiform.kernels.widening import widened_products

ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 13, 63, 64, 65, 200]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def assert_close_sums(got: torch.Tensor, want: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    """Rounding errors of a sum of C products add up like a random walk: sqrt(C) of them, each half a unit at most of a
    partial sum that is below the sum of magnitudes."""
    magnitude = 1 + x.double().abs() @ w.double().abs().t()
    limit = 2**-24 * (1 + x.shape[1] ** 0.5) * magnitude + 2**-23
    assert torch.all((got.double() - want).abs() <= limit)


def by_tiles(matrix: PackedMatrix, num_rows: int) -> bool:
    """Return True if so many rows are multiplied by tiles now, whose sums run in another order."""
    return bool(0 < matrix.descriptor[TILES_FROM] <= num_rows)


def check_rows_alone(x: torch.Tensor, matrix: PackedMatrix, got: torch.Tensor) -> None:
    """A row has the same bits in any batch: alone, or among copies of itself where its batch goes by tiles."""
    copies = matrix.descriptor[TILES_FROM] if by_tiles(matrix, len(x)) else 1
    if in_tiles(matrix.descriptor, len(x)) and matrix.outputs % WIDTH:
        copies = max(copies, FEW_ROWS + 1)  # their last panel goes by tiles too
    alone = [packed_matmul(row.expand(copies, -1), matrix)[:1] for row in x.split(1)] if len(x) else []
    assert torch.equal(got, torch.cat([got[:0], *alone]))


def check_codes(
    matrix: PackedMatrix, x: torch.Tensor, rounded: torch.Tensor, w: torch.Tensor, bias: torch.Tensor
) -> None:
    """Products by codes with scales are those of `rounded` rows, and where panels are widened for tiles, of bfloat16
    rows and weights. All are in float64."""

    def check(read: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        got = packed_matmul(x, matrix)
        scale = read.abs() @ weights.abs().T + 1
        assert (((got.double() - read @ weights.T - bias.double()) / scale).abs() < 1e-6).all()
        return got

    few = [packed_matmul(row, matrix) for row in x.split(1)] if len(x) else []
    got = check(rounded, w)
    assert torch.equal(got, torch.cat([got[:0], *few]))
    with widened_products(True):
        if not matrix.widens:
            assert torch.equal(packed_matmul(x, matrix), got)
            return
        check_rows_alone(x, matrix, check(x.bfloat16().double(), w.float().bfloat16().double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("N", "C"), [(1, 1), (7, 33), (64, 256), (2 * WIDTH + 1, 9), (2 * WIDTH, 2150)])
@pytest.mark.parametrize("T", ROWS)
def test_products_equal_those_in_float64(T: int, N: int, C: int, bias: bool, dtype: torch.dtype) -> None:
    w, x, b = random(N, C).to(dtype), random(T, C, seed=1), random(N, seed=2) if bias else None
    matrix = PackedMatrix.of_dense(w, b)
    assert matrix.descriptor[0] == (FLOAT32 if dtype == torch.float32 else BFLOAT16)
    got = packed_matmul(x, matrix)
    want = x.double() @ w.double().t() + (0 if b is None else b.double())
    assert_close_sums(got, want, x, w)
    check_rows_alone(x, matrix, got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T", [1, 3, 40])
def test_wide_layers_lose_no_more_to_rounding_than_torch_s(T: int, dtype: torch.dtype) -> None:
    """One sum over all 4,864 inputs is off by 1.2e-6 of the results' size, and torch's by 2.5e-7 to 7e-7."""
    w, x = random(64, 4864).to(dtype), random(T, 4864, seed=1)
    want = x.double() @ w.double().t()
    got = packed_matmul(x, PackedMatrix.of_dense(w, None))
    assert (got.double() - want).square().mean().sqrt() < 4e-7 * want.square().mean().sqrt()


@pytest.mark.parametrize("T", ROWS)
@pytest.mark.parametrize(("N", "C"), [(7, 33), (2 * WIDTH, 2150)])
def test_rows_of_bfloat16_models_may_be_rounded(T: int, N: int, C: int) -> None:
    w, x = random(N, C).bfloat16(), random(T, C, seed=1)
    matrix = PackedMatrix.of_dense(w, rows=torch.bfloat16)
    assert matrix.descriptor[0] == (BFLOAT16_ROWS if HOST.bfloat16_dot else BFLOAT16)
    got = packed_matmul(x, matrix)
    read = x.bfloat16() if HOST.bfloat16_dot else x
    assert_close_sums(got, read.double() @ w.double().t(), read, w)
    check_rows_alone(x, matrix, got)
    assert torch.equal(packed_matmul(x.bfloat16(), matrix), packed_matmul(x.bfloat16().float(), matrix).bfloat16())
    if by_tiles(matrix, T):
        matrix.round_alike()
        check_rows_alone(x, matrix, packed_matmul(x, matrix))


def test_weights_are_stored_as_bfloat16_only_if_that_is_exact() -> None:
    w = torch.tensor([[1.0], [-0.5], [float("inf")], [float("nan")], [2.0**-133], [-0.0]])
    matrix = PackedMatrix.of_dense(w)
    assert matrix.descriptor[0] == BFLOAT16
    torch.testing.assert_close(packed_matmul(torch.ones(1, 1), matrix), w.t(), atol=0, rtol=0, equal_nan=True)
    assert PackedMatrix.of_dense(w + 2.0**-20).descriptor[0] == FLOAT32


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_weight_that_begins_at_any_place_is_packed(first: int) -> None:
    """A weight may lie in a file behind a tensor of odd size."""
    weight = random(5000).bfloat16()[first : first + 70 * 66].view(70, 66)
    assert torch.equal(PackedMatrix.of_dense(weight, rows=torch.bfloat16).dense().bfloat16(), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_packed_weight_is_given_back(dtype: torch.dtype) -> None:
    w = random(2 * WIDTH + 3, 77).to(dtype)
    assert torch.equal(PackedMatrix.of_dense(w).dense(), w)
