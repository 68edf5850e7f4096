"""Judges: the definitions, written element by element or in complex numbers, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.kernels import add_rms_norm, apply_rope, rms_norm, silu_and_mul


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 5), (5, 64)])
def test_rms_norm_divides_by_the_root_of_the_mean_square(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    want = [
        [
            float(v) / math.sqrt(sum(float(u) ** 2 for u in row) / len(row) + 1e-5) * float(w)
            for v, w in zip(row, weight, strict=True)
        ]
        for row in x.reshape(-1, shape[-1])
    ]
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), torch.tensor(want).view(shape))


def test_rms_norm_with_a_weight_per_head_norms_each_head() -> None:
    x_THD, weight_HD = torch.randn(5, 3, 8), torch.randn(3, 8)
    want = torch.stack([rms_norm(x_THD[:, h], weight_HD[h], 1e-6) for h in range(3)], dim=1)
    torch.testing.assert_close(rms_norm(x_THD, weight_HD, 1e-6), want)


def test_add_rms_norm_returns_the_sum_and_its_norm() -> None:
    x, residual, weight = torch.randn(4, 9), torch.randn(4, 9), torch.randn(9)
    normed, new_residual = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(new_residual, x + residual)
    torch.testing.assert_close(normed, rms_norm(x + residual, weight, 1e-5))


@given(heads=st.integers(1, 4), half=st.integers(1, 9), tokens=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_rope_is_multiplication_by_unit_complex_numbers(heads: int, half: int, tokens: int) -> None:
    x = torch.randn(tokens, heads, 2 * half, dtype=torch.float64)
    phase = 10 * torch.randn(tokens, 1, half, dtype=torch.float64)
    cos, sin = phase.cos(), phase.sin()
    got = apply_rope(x, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(phase), phase)
    torch.testing.assert_close(got, torch.cat((turned.real, turned.imag), -1))


def test_silu_and_mul_gates_the_second_half_by_the_first() -> None:
    x = torch.randn(3, 10)
    want = [[g / (1 + math.exp(-g)) * u for g, u in zip(row[:5], row[5:], strict=True)] for row in x.tolist()]
    torch.testing.assert_close(silu_and_mul(x), torch.tensor(want))
