"""Linear layers of FP8 weights with a scale for each block of 128 x 128, and inputs with one for each 128 (DeepSeek-AI
2024, DeepSeek-V3, section 3.3.2; "quant_method": "fp8" of Hugging Face's checkpoints).

Legend: T tokens, N outputs, C inputs, M and G blocks of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .... import kernels
from ..linear import Destination, bias_destination, total_bytes
from .rounding import FP8, MANY_ROWS, fp8_as_bfloat16

if TYPE_CHECKING:
    from ....kernels.cpu.products.packed_matrix import PackedMatrix

FP8_BLOCK = 128


class BlockwiseLinear:
    """A linear layer whose weight is `codes_NC * scale_MG` of each block.

    A kernel multiplies few rows on GPUs by the codes, with inputs rounded to FP8 as the format asks; for MANY_ROWS, and
    on other devices, the weight is widened to the model's dtype, and inputs are not rounded.
    """

    def __init__(
        self, outputs: int, inputs: int, bias: bool, *, device: torch.device | str, dtype: Any, scale_name: str
    ) -> None:
        """`scale_name` is that of the stored scales."""
        self._scale_name = scale_name
        self.codes_NC = torch.empty((outputs, inputs), device=device, dtype=FP8)
        self.scale_MG = torch.empty((-(-outputs // FP8_BLOCK), inputs // FP8_BLOCK), device=device, dtype=torch.float32)
        self.bias_N = torch.empty(outputs, device=device, dtype=dtype) if bias else None
        self.matrix: PackedMatrix | None = None  # the whole layer, packed for compiled loops
        self._dtype = dtype
        self._products = kernels.quantised_products(self.codes_NC.device)
        self.codes: Any = None  # the whole layer, as `_products` take it
        self._dense_NC: torch.Tensor | None = None

    @staticmethod
    def fits(sizes: list[int], inputs: int) -> bool:
        """Return True if blocks do not straddle the parts of a layer, whose outputs are `sizes`."""
        return inputs % FP8_BLOCK == 0 and all(size % FP8_BLOCK == 0 for size in sizes[:-1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.codes is not None:
            if len(x) < MANY_ROWS:
                return self.product(x, self.codes)
            return F.linear(x, self._products.dequantise(self.codes, x.dtype), self.bias_N)
        if self.matrix is not None:
            from ....kernels.cpu.products.matmul import packed_matmul

            return packed_matmul(x, self.matrix)
        assert self._dense_NC is not None, "not finished"
        return F.linear(x, self._dense_NC, self.bias_N)

    def product(self, x: torch.Tensor, codes: Any, experts: Any = None, *, fixed: bool = False) -> torch.Tensor:
        """Multiply by `codes`, this layer's or those of all experts that are like it, in a kernel."""
        x_codes, scale = self._products.quantise_rows(x, FP8, FP8_BLOCK)
        y: torch.Tensor = self._products.matmul(
            x_codes, codes, self.bias_N, x_scale=scale, dtype=x.dtype, experts=experts, fixed=fixed
        )
        return y

    def finish(self) -> None:
        if self._products is not None and self._products.reads(FP8, self.codes_NC.device):
            self.codes = self._products.Codes(self.codes_NC, self.scale_MG, group=FP8_BLOCK)
            return
        scale_NG = self.scale_MG.repeat_interleave(FP8_BLOCK, 0)[: len(self.codes_NC)]
        groups = fp8_as_bfloat16(self.codes_NC).float().view(len(scale_NG), -1, FP8_BLOCK)
        dense_NC = (groups * scale_NG[..., None]).flatten(1).to(self._dtype)
        if self.codes_NC.device.type == "cpu":
            from ....kernels.cpu.products.packed_matrix import PackedMatrix  # here, because it imports numba

            self.matrix = PackedMatrix.of_dense(dense_NC, self.bias_N, rows=self._dtype)
        else:
            self._dense_NC = dense_NC
        self.codes_NC = torch.empty_like(self.codes_NC[:0])

    def release(self) -> None:
        """Drop the codes, which the caller has copied."""
        self.codes = None
        self.codes_NC, self.scale_MG = self.codes_NC[:0].clone(), self.scale_MG[:0].clone()

    @property
    def nbytes(self) -> int:
        if self.matrix is not None:
            return self.matrix.nbytes
        return total_bytes(self.codes_NC, self.scale_MG, self.bias_N, self._dense_NC)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        codes = self.codes_NC[start : start + size]
        scale = self.scale_MG[start // FP8_BLOCK : -(-(start + size) // FP8_BLOCK)]
        return {
            "weight": Destination(tuple(codes.shape), codes.copy_, (FP8,)),
            self._scale_name: Destination(tuple(scale.shape), scale.copy_),
            **bias_destination(self.bias_N, start, size),
        }
