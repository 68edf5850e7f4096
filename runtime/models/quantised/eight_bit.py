"""Linear layers with 8-bit weights, int8 or FP8, with a scale per row, and inputs quantised or not.

Legend: T tokens, N outputs, C inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .... import kernels
from ..linear import Destination, bias_destination, total_bytes
from .rounding import FP8, MANY_ROWS, fp8_as_bfloat16, fp8_rows, input_codes, int8_rows, keep_larger_scale
from .scheme import Scheme

if TYPE_CHECKING:
    from ....kernels.cpu.products.packed_matrix import PackedMatrix

_MIN_INT_MM_ROWS = 17  # CUDA's int8 product refuses fewer


class EightBitLinear:
    """A linear layer of int8 or float8 e4m3 codes; row n of the weight is `codes_NC[n] * scale_N[n]`.

    On a CPU `finish` packs them for the compiled loops: int8 is multiplied by rows rounded to int8 by group of inputs,
    with or without `scheme.activations`; FP8, which CPUs do not multiply, is widened to bfloat16, exactly. On a GPU a
    kernel multiplies few rows, and torch's libraries MANY_ROWS. With `scheme.static` inputs are rounded to multiples of
    `input_scale` first, the largest one of fused modules.
    """

    def __init__(
        self, scheme: Scheme, outputs: int, inputs: int, bias: bool, *, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.scheme = scheme
        self.codes_NC = torch.empty((outputs, inputs), device=device, dtype=FP8 if scheme.kind == "fp8" else torch.int8)
        self.scale_N = torch.empty(outputs, device=device, dtype=torch.float32)
        self.bias_N = torch.empty(outputs, device=device, dtype=dtype) if bias else None
        self.input_scale_1 = torch.zeros(1, device=device, dtype=torch.float32) if scheme.static else None
        self._dtype = dtype
        self._packed: PackedMatrix | None = None
        self._products = kernels.quantised_products(self.codes_NC.device)
        self.codes: Any = None  # the whole layer, as `_products` take it

    @property
    def matrix(self) -> PackedMatrix | None:
        """The whole layer as compiled loops multiply by it; None on other devices, of FP8 and with stored input
        scales."""
        return self._packed if self.scheme.kind == "int8" and not self.scheme.static else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            return self._packed_product(x, self._packed)
        if self.codes is not None:
            return self._code_product(x)
        if not self.scheme.activations:
            y = (F.linear(x, self.codes_NC.to(x.dtype)).float() * self.scale_N).to(x.dtype)
        else:
            y = self._fp8_product(x) if self.scheme.kind == "fp8" else self._int8_product(x)
        return y if self.bias_N is None else y + self.bias_N

    def _packed_product(self, x: torch.Tensor, packed: PackedMatrix) -> torch.Tensor:
        from ....kernels.cpu.products.matmul import packed_matmul  # here, because it imports numba

        if self.scheme.kind == "int8":
            if self.scheme.static:  # the loops round a second time, to the largest of each group
                x_TC, scale_T1 = self._input_codes(x)
                x = (x_TC.float() * scale_T1).to(x.dtype)
            return packed_matmul(x, packed)
        if self.scheme.activations:
            x_TC, scale_T1 = self._input_codes(x)
            y = packed_matmul(fp8_as_bfloat16(x_TC).float(), packed) * scale_T1
        else:
            y = packed_matmul(x.float(), packed)
        y = y * self.scale_N
        return (y if self.bias_N is None else y + self.bias_N).to(x.dtype)

    def product(self, x: torch.Tensor, codes: Any, experts: Any = None, *, fixed: bool = False) -> torch.Tensor:
        """Multiply by `codes`, this layer's or those of all experts that are like it, in a kernel."""
        x_scale, dtype = None, x.dtype
        if self.scheme.activations:
            x, x_scale = self._kernel_input_codes(x)
        y: torch.Tensor = self._products.matmul(
            x, codes, self.bias_N, x_scale=x_scale, dtype=dtype, experts=experts, fixed=fixed
        )
        return y

    def _code_product(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) < MANY_ROWS:
            return self.product(x, self.codes)
        if not self.scheme.activations:
            return F.linear(x, self._products.dequantise(self.codes, x.dtype), self.bias_N)
        x_TC, scale_T = self._kernel_input_codes(x)
        if self.scheme.kind == "fp8":
            y = torch._scaled_mm(
                x_TC,
                self.codes_NC.t(),
                scale_a=scale_T[:, None],
                scale_b=self.scale_N[None],
                out_dtype=torch.bfloat16,
            ).to(x.dtype)
        else:
            y = (torch._int_mm(x_TC, self.codes_NC.t()).float() * scale_T[:, None] * self.scale_N).to(x.dtype)
        return y if self.bias_N is None else y + self.bias_N

    def _input_codes(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Round inputs to codes with a scale per row, [T, 1]."""
        return input_codes(x, FP8 if self.scheme.kind == "fp8" else torch.int8, self.input_scale_1)

    def _kernel_input_codes(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.input_scale_1 is None:
            found: tuple[torch.Tensor, torch.Tensor] = self._products.quantise_rows(x, self.codes_NC.dtype)
            return found
        codes, scale_T1 = self._input_codes(x)
        return codes, scale_T1[:, 0].contiguous()

    def _fp8_product(self, x: torch.Tensor) -> torch.Tensor:
        x_TC, scale_T1 = self._input_codes(x)
        y = torch._scaled_mm(
            x_TC,
            self.codes_NC.t(),
            scale_a=scale_T1.contiguous(),
            scale_b=self.scale_N[None],
            out_dtype=torch.bfloat16,  # the only type with scales by row
        )
        return y.to(x.dtype)

    def _int8_product(self, x: torch.Tensor) -> torch.Tensor:
        x_TC, scale_T1 = self._input_codes(x)
        T = len(x_TC)
        if x.device.type == "cuda" and T < _MIN_INT_MM_ROWS:
            x_TC = F.pad(x_TC, (0, 0, 0, _MIN_INT_MM_ROWS - T))
        y = torch._int_mm(x_TC, self.codes_NC.t())[:T]
        return (y.float() * scale_T1 * self.scale_N).to(x.dtype)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        codes, scale = self.codes_NC[start : start + size], self.scale_N[start : start + size]
        pieces = bias_destination(self.bias_N, start, size)
        if self.scheme.source == "dense":
            rounded = fp8_rows if self.scheme.kind == "fp8" else int8_rows

            def put(weight: torch.Tensor) -> None:
                codes_NC, scale_N1 = rounded(weight.to(codes.device))
                codes.copy_(codes_NC)
                scale.copy_(scale_N1[:, 0])

            return {"weight": Destination(tuple(codes.shape), put), **pieces}

        def put_scale(stored: torch.Tensor) -> None:
            scale.copy_(stored.reshape(-1))  # a scale of the whole tensor is broadcast

        stored_codes = Destination(tuple(codes.shape), codes.copy_, (codes.dtype,))
        if self.scheme.source == "bitsandbytes":
            return {
                "weight": stored_codes,
                "SCB": Destination((size,), lambda largest: scale.copy_(largest / 127), inputs=None),
                "weight_format": Destination((), _expect_rows, (torch.uint8,), outputs=None, inputs=None),
                **pieces,
            }
        if self.input_scale_1 is not None:
            pieces["input_scale"] = Destination((1,), self._put_input_scale, outputs=None, inputs=None)
        return {
            "weight": stored_codes,
            "weight_scale": Destination(
                (1,) if self.scheme.per_tensor else (size,) if self.scheme.flat_scales else (size, 1),
                put_scale,
                outputs=None if self.scheme.per_tensor else 0,
                inputs=None,
            ),
            **pieces,
        }

    def _put_input_scale(self, stored: torch.Tensor) -> None:
        assert self.input_scale_1 is not None
        keep_larger_scale(self.input_scale_1, float(stored))

    def finish(self) -> None:
        if self._products is not None and self._products.reads(self.codes_NC.dtype, self.codes_NC.device):
            self.codes = self._products.Codes(self.codes_NC, self.scale_N)
            return
        if self.codes_NC.device.type != "cpu":
            return
        from ....kernels.cpu.products.packed_matrix import PackedMatrix

        if self.scheme.kind == "int8":
            self._packed = PackedMatrix.of_int8(self.codes_NC, self.scale_N, self.bias_N)
        else:
            rows = torch.bfloat16 if self.scheme.activations else self._dtype
            self._packed = PackedMatrix.of_dense(fp8_as_bfloat16(self.codes_NC), rows=rows)
        self.codes_NC = torch.empty_like(self.codes_NC[:0])  # a slice would keep them in memory

    def release(self) -> None:
        """Drop the codes, which the caller has copied."""
        self.codes = None
        self.codes_NC, self.scale_N = self.codes_NC[:0].clone(), self.scale_N[:0].clone()

    @property
    def nbytes(self) -> int:
        if self._packed is not None:
            return self._packed.nbytes
        return total_bytes(self.codes_NC, self.scale_N, self.bias_N)


def _expect_rows(stored: torch.Tensor) -> None:
    if stored.item() != 0:
        raise ValueError(f"is {stored.item()}: the codes are in an order for one kind of GPU, not by row")
