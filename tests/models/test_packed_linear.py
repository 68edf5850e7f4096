"""Products of weights packed in panels. Judge: torch's own product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ramiform.runtime.models.linear import DenseLinear
from ramiform.runtime.models.packed_linear import PackedLinear, pack_linear

DTYPES = [torch.float32, torch.bfloat16]


def dense(outputs: int, inputs: int, dtype: torch.dtype, *, bias: bool = False) -> DenseLinear:
    draw = torch.Generator().manual_seed(outputs * inputs)
    weight = torch.randn(outputs, inputs, generator=draw).to(dtype)
    return DenseLinear(weight, torch.randn(outputs, generator=draw).to(dtype) if bias else None)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 33, 300])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 5), (640, 256), (131, 96)], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_the_product_equals_the_dense_layer_s(
    dtype: torch.dtype, bias: bool, outputs: int, inputs: int, num_rows: int
) -> None:
    linear = dense(outputs, inputs, dtype, bias=bias)
    x = torch.randn(num_rows, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = pack_linear(linear)(x)
    assert y.dtype == dtype
    expected = F.linear(x.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance * inputs**0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_rows_with_any_stride_are_read(dtype: torch.dtype) -> None:
    linear = dense(32, 48, dtype)
    packed = pack_linear(linear)
    x = torch.randn(9, 96, generator=torch.Generator().manual_seed(2)).to(dtype)[:, 48:]
    assert torch.equal(packed(x), packed(x.contiguous()))


@torch.inference_mode()
def test_a_layer_filled_in_pieces_equals_its_dense_layer() -> None:
    source = dense(48, 64, torch.float32, bias=True)
    packed = PackedLinear(DenseLinear(torch.empty(48, 64), torch.empty(48)))
    assert source.bias is not None
    for start, size in ((0, 32), (32, 16)):
        for name, piece in packed.row_destinations(start, size).items():
            stored = source.weight if name == "weight" else source.bias
            assert piece.shape == tuple(stored[start : start + size].shape)
            piece.put(stored[start : start + size])
    packed.finish()
    assert packed.nbytes >= (48 * 64 + 48) * 4  # the last panel is padded
    assert torch.equal(packed(torch.eye(64)), source.weight.T + source.bias)


def test_types_that_the_loops_do_not_multiply_are_not_packed() -> None:
    linear = dense(8, 8, torch.float64)
    assert pack_linear(linear) is linear
