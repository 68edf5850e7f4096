"""Eight 4-bit numbers in an int32, in the orders of checkpoint formats."""

from __future__ import annotations

import torch

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)  # GPTQ, compressed-tensors: the i-th number in bits [4 i, 4 i + 4)
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the i-th number is that many nibbles from the low end


def unpack(packed: torch.Tensor, dim: int, order: tuple[int, ...] = IN_ORDER) -> torch.Tensor:
    """Unpack int32 to uint8 in [0, 16): eight times as long in dimension `dim` (0 or 1) of two."""
    shifts = torch.tensor([4 * place for place in order], dtype=torch.int32, device=packed.device)
    if dim == 0:
        return unpack(packed.t(), 1, order).t()
    numbers = (packed[:, :, None] >> shifts) & 15
    return numbers.to(torch.uint8).reshape(len(packed), -1)


def pack(numbers: torch.Tensor, dim: int) -> torch.Tensor:
    """Pack in order, the inverse of `unpack`. A last int32 that is not full is padded with zeros."""
    if dim == 0:
        return pack(numbers.t(), 1).t().contiguous()
    rows, columns = numbers.shape
    padded = torch.nn.functional.pad(numbers, (0, -columns % 8)).to(torch.int64).view(rows, -1, 8)
    words = (padded << torch.arange(0, 32, 4, device=numbers.device)).sum(2)
    return (words - ((words >> 31) << 32)).to(torch.int32)  # the same 32 bits, signed
