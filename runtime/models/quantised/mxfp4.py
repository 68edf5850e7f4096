"""Linear layers in MXFP4: e2m1 numbers with a power of two as the scale of 32 inputs (OCP Microscaling Formats 1.0,
section 5.4).

Legend: N outputs, C inputs, G groups of a row's C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .... import kernels
from ..linear import Destination, bias_destination, total_bytes
from .rounding import MANY_ROWS

if TYPE_CHECKING:
    from ....kernels.cpu.products.packed_matrix import PackedMatrix

MXFP4_GROUP = 32
_BIAS = 127  # of a scale's exponent
_MOST = 142  # scales are float16 in the loops
FP4_NUMBERS = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantised(packed_NC2: torch.Tensor, exponents_NG: torch.Tensor) -> torch.Tensor:
    """Return float32 [N, C] of numbers two to a byte, the first one low, and biased exponents; both uint8."""
    codes = torch.stack((packed_NC2 & 15, packed_NC2 >> 4), dim=2).to(torch.int32)
    numbers = FP4_NUMBERS.to(packed_NC2.device)[codes].view(len(packed_NC2), -1, MXFP4_GROUP)
    return torch.ldexp(numbers, exponents_NG.to(torch.int32)[..., None] - _BIAS).flatten(1)


def check_exponents(exponents: torch.Tensor) -> None:
    """Raise ValueError for scales that are no numbers, or too large for the products."""
    if len(exponents) and int(exponents.max()) > _MOST:
        raise ValueError(
            f"has a scale of 2^{int(exponents.max()) - _BIAS}: supported are those up to 2^{_MOST - _BIAS}"
        )


class Mxfp4Linear:
    """A linear layer of MXFP4 weights, in the layout of compressed-tensors' `mxfp4-pack-quantized`.

    On a CPU `finish` packs them for the compiled loops of block formats, in 5.5 bits each; they multiply rows rounded
    to int8 by group of 32. On a GPU a kernel multiplies few rows by the codes; for MANY_ROWS, which are bound by
    compute, the weight is widened first. Other devices have the widened weight.
    """

    def __init__(
        self, outputs: int, inputs: int, bias: bool, *, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.packed_NC2 = torch.empty((outputs, inputs // 2), device=device, dtype=torch.uint8)
        self.exponents_NG = torch.empty((outputs, inputs // MXFP4_GROUP), device=device, dtype=torch.uint8)
        self.bias_N = torch.empty(outputs, device=device, dtype=dtype) if bias else None
        self.matrix: PackedMatrix | None = None  # the whole layer, packed for compiled loops
        self.codes: Any = None  # the whole layer, as `_products` take it
        self._dense_NC: torch.Tensor | None = None
        self._dtype = dtype
        self._products = kernels.quantised_products(self.packed_NC2.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.matrix is not None:
            from ....kernels.cpu.products.matmul import packed_matmul  # here, because it imports numba

            return packed_matmul(x, self.matrix)
        if self.codes is None:
            assert self._dense_NC is not None, "not finished"
            return F.linear(x, self._dense_NC, self.bias_N)
        if len(x) < MANY_ROWS:
            return self.product(x, self.codes)
        return F.linear(x, self._products.dequantise(self.codes, x.dtype), self.bias_N)

    def product(self, x: torch.Tensor, codes: Any, experts: Any = None, *, fixed: bool = False) -> torch.Tensor:
        """Multiply by `codes`, this layer's or those of all experts that are like it, in a kernel."""
        y: torch.Tensor = self._products.matmul(x, codes, self.bias_N, experts=experts, fixed=fixed)
        return y

    def finish(self) -> None:
        if self._products is not None:
            packed = self._products.pack_groups(self.packed_NC2, MXFP4_GROUP)
            self.codes = self._products.Codes(packed, self.exponents_NG.t().contiguous(), group=MXFP4_GROUP)
        elif self.packed_NC2.device.type == "cpu":
            from ....kernels.cpu.products.packed_matrix import PackedMatrix

            self.matrix = PackedMatrix.of_blocks([("MXFP4", self._blocks())], self.bias_N)
        else:
            self._dense_NC = dequantised(self.packed_NC2, self.exponents_NG).to(self._dtype)
        self.packed_NC2, self.exponents_NG = (torch.empty(0, dtype=torch.uint8) for _ in range(2))

    def _blocks(self) -> torch.Tensor:
        """Return the rows as ggml's blocks: the scale's byte, then the first half of the numbers in the low nibbles."""
        codes = torch.stack((self.packed_NC2 & 15, self.packed_NC2 >> 4), dim=2).view(
            *self.exponents_NG.shape, MXFP4_GROUP
        )
        pairs = codes[..., : MXFP4_GROUP // 2] | codes[..., MXFP4_GROUP // 2 :] << 4
        return torch.cat((self.exponents_NG[..., None], pairs), dim=2).flatten(1)

    def release(self) -> None:
        """Drop the codes, which the caller has copied."""
        self.codes = None

    @property
    def nbytes(self) -> int:
        if self.matrix is not None:
            return self.matrix.nbytes
        if self.codes is not None:
            return total_bytes(self.codes.codes, self.codes.scale, self.bias_N)
        return total_bytes(self.packed_NC2, self.exponents_NG, self.bias_N, self._dense_NC)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        packed, exponents = self.packed_NC2[start : start + size], self.exponents_NG[start : start + size]

        def put_exponents(stored: torch.Tensor) -> None:
            check_exponents(stored.flatten())
            exponents.copy_(stored)

        return {
            "weight_packed": Destination(tuple(packed.shape), packed.copy_, (torch.uint8,)),
            "weight_scale": Destination(tuple(exponents.shape), put_exponents, (torch.uint8,)),
            **bias_destination(self.bias_N, start, size),
        }
