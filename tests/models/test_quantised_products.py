"""Codes of quantised weights and their products, against plain torch and the package compressed-tensors."""

from __future__ import annotations

import pytest
import torch

from ramiform.runtime.models.quantised import int4_packing
from ramiform.runtime.models.quantised.eight_bit import EightBitLinear
from ramiform.runtime.models.quantised.int4 import Int4Linear
from ramiform.runtime.models.quantised.rounding import fp8_as_bfloat16, fp8_rows, int4_groups, int8_rows
from ramiform.runtime.models.quantised.scheme import Scheme

from .packing import GROUP, dequantised


def test_groups_are_rounded_to_their_nearest_code() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    codes, scale, zero = int4_groups(weight, GROUP)
    restored = dequantised(codes.long().numpy(), scale.numpy(), zero.long().numpy())
    inside = (codes > 0) & (codes < 15)
    steps = (weight - restored).abs() / scale.repeat_interleave(GROUP, 1)
    assert steps[inside].max() <= 0.5 + 1e-4
    assert steps.max() <= 1.1  # at the ends the zero point's own rounding adds up to half a step


def test_every_finite_fp8_number_is_the_same_in_bfloat16() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = numbers[~numbers.float().isnan()]
    assert len(numbers) == 254
    assert torch.equal(fp8_as_bfloat16(numbers).float(), numbers.float())


@pytest.mark.parametrize("num_tokens", [1, 24, 25, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bit_weights_give_the_product_of_the_dequantised_weights(
    kind: str, dtype: torch.dtype, num_tokens: int
) -> None:
    torch.manual_seed(num_tokens)
    weight, x = torch.randn(48, 32), torch.randn(num_tokens, 32).to(dtype)
    layer = EightBitLinear(Scheme(kind=kind, source="dense"), 48, 32, bias=False, device="cpu", dtype=dtype)
    layer.row_destinations(0, 48)["weight"].put(weight)
    layer.finish()
    codes, scale = (fp8_rows if kind == "fp8" else int8_rows)(weight)
    expected = x.double() @ (codes.double() * scale.double()).T
    error = (layer(x).double() - expected).norm() / expected.norm()
    assert layer(x).dtype == dtype
    rounded_inputs = 1e-2 if kind == "int8" else 1e-6
    assert error.item() < max(rounded_inputs, {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype])


@pytest.mark.parametrize("num_tokens", [1, 31, 32, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_four_bit_weights_give_the_product_of_the_dequantised_weights(dtype: torch.dtype, num_tokens: int) -> None:
    torch.manual_seed(num_tokens)
    weight, x = torch.randn(144, 64), torch.randn(num_tokens, 64).to(dtype)
    scheme = Scheme(kind="int4", source="dense", group_size=GROUP)
    layer = Int4Linear(scheme, 144, 64, bias=True, group_size=GROUP, device="cpu", dtype=dtype)
    bias = torch.randn(144)
    layer.row_destinations(0, 144)["weight"].put(weight)
    layer.row_destinations(0, 144)["bias"].put(bias)
    layer.finish()
    codes, scale, zero = int4_groups(weight, GROUP)
    restored = dequantised(codes.long().numpy(), scale.numpy(), zero.long().numpy()).double()
    expected = x.double() @ restored.T + bias.double()
    assert layer(x).dtype == dtype
    assert ((layer(x).double() - expected).norm() / expected.norm()).item() < 1e-2  # inputs are rounded to int8


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(16, 24), (5, 8), (8, 3)])
def test_packing_equals_the_compressed_tensors_package(dim: int, shape: tuple[int, int]) -> None:
    package = pytest.importorskip("compressed_tensors.compressors.pack_quantized")
    numbers = torch.randint(0, 16, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(dim))
    packed = package.pack_to_int32((numbers.to(torch.int8) - 8), 4, packed_dim=dim)
    assert torch.equal(int4_packing.pack(numbers, dim), packed)
    restored = int4_packing.unpack(packed, dim)[: shape[0], : shape[1]]
    assert torch.equal(restored, numbers)
