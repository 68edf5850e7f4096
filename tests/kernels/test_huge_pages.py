"""Tensors in huge pages. Judges: `torch.zeros`, and what the system says of the mapping."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from ramiform.kernels import huge_pages
from ramiform.kernels.huge_pages import zeros_in_huge_pages


@pytest.mark.parametrize("shape", [(0,), (3, 5), (1, 70_001), (9 << 20,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_tensors_are_zeros_of_their_own_from_a_cache_line_on(shape: Sequence[int], dtype: torch.dtype) -> None:
    first, second = zeros_in_huge_pages(shape, dtype), zeros_in_huge_pages(shape, dtype)
    first.fill_(1)
    assert torch.equal(second, torch.zeros(shape, dtype=dtype))
    assert first.data_ptr() % 64 == second.data_ptr() % 64 == 0


def test_systems_without_huge_pages_give_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    monkeypatch.setattr(huge_pages, "_map", lambda size: pytest.fail("mapped"))
    assert torch.equal(zeros_in_huge_pages((2, 3), torch.float32), torch.zeros(2, 3))


def test_too_large_a_tensor_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot map"):
        zeros_in_huge_pages((1 << 60,), torch.uint8)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_memory_of_a_large_tensor_goes_back_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_unused", np.empty(0, np.uint8))
    tensor = zeros_in_huge_pages(((80 << 20) + 1,), torch.uint8)
    small = zeros_in_huge_pages((100,), torch.uint8)
    place = f"{tensor.data_ptr() & ~0xFFF:x}"

    def is_mapped() -> bool:
        spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        return any(int(low, 16) <= int(place, 16) < int(high, 16) for low, high in spans)

    assert is_mapped()
    del tensor
    assert not is_mapped(), "a small tensor keeps it"
    assert not small.any()
