"""Judge: the codes, scales and zero points written out, in float64."""

from __future__ import annotations

import pytest
import torch

from ramiform.kernels.cpu import int4


@pytest.mark.skipif(not int4.is_supported(), reason="torch packs 4-bit codes in another order here")
@pytest.mark.parametrize(("num_inputs", "group_size"), [(32, 32), (256, 64), (384, 128)])
@pytest.mark.parametrize("num_outputs", [64, 144, 512, 1040])  # whole blocks, parts of one, more than are made at once
@pytest.mark.parametrize("num_tokens", [1, 50])
def test_a_product_is_that_of_the_dequantised_weights(
    num_tokens: int, num_outputs: int, num_inputs: int, group_size: int
) -> None:
    draw = torch.Generator().manual_seed(num_outputs)
    codes_NC = torch.randint(0, 16, (num_outputs, num_inputs), generator=draw, dtype=torch.int32)
    groups_GN2 = torch.randn(num_inputs // group_size, num_outputs, 2, generator=draw).bfloat16()
    x_TC = torch.randn(num_tokens, num_inputs, generator=draw).bfloat16()
    scale_NC, base_NC = groups_GN2.double().repeat_interleave(group_size, 0).permute(2, 1, 0)
    expected = x_TC.double() @ ((codes_NC.double() - 8) * scale_NC + base_NC).T

    packed = torch._convert_weight_to_int4pack_for_cpu(codes_NC, 1)
    got = int4.matmul(x_TC, packed, groups_GN2, group_size)
    torch_s = torch._weight_int4pack_mm_for_cpu(x_TC, packed, group_size, groups_GN2)
    assert got.shape == torch_s.shape
    assert ((got.double() - expected).norm() / expected.norm()).item() < 5e-3
    assert ((torch_s.double() - expected).norm() / expected.norm()).item() < 5e-3  # or it is another sum that is tested
