"""Numbers of 4, 2 or 8 bits in an int32, in the orders of checkpoint formats."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# GPTQ and compressed-tensors have the i-th number of four bits in bits [4 i, 4 i + 4).
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the i-th number is that many nibbles from the low end


def unpack(packed: torch.Tensor, dim: int, order: Sequence[int] | None = None, *, bits: int = 4) -> torch.Tensor:
    """Unpack int32 to uint8 below 2^bits: 32 / bits times as long in dimension `dim` (0 or 1) of two."""
    if dim == 0:
        return unpack(packed.t(), 1, order, bits=bits).t()
    places = order or range(32 // bits)
    shifts = torch.tensor([bits * place for place in places], dtype=torch.int32, device=packed.device)
    numbers = (packed[:, :, None] >> shifts) & (1 << bits) - 1
    return numbers.to(torch.uint8).reshape(len(packed), -1)


def pack(numbers: torch.Tensor, dim: int) -> torch.Tensor:
    """Pack in order, the inverse of `unpack`. A last int32 that is not full is padded with zeros."""
    if dim == 0:
        return pack(numbers.t(), 1).t().contiguous()
    rows, columns = numbers.shape
    padded = torch.nn.functional.pad(numbers, (0, -columns % 8)).to(torch.int64).view(rows, -1, 8)
    words = (padded << torch.arange(0, 32, 4, device=numbers.device)).sum(2)
    return (words - ((words >> 31) << 32)).to(torch.int32)  # the same 32 bits, signed
