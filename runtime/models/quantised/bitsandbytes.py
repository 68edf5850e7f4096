"""Linear layers in the 4 bits of bitsandbytes, nf4 and fp4, whose absolute maxima may be quantised themselves (Dettmers
et al. 2023, QLoRA, arXiv 2305.14314, section 3).

Legend: N outputs, C inputs, B blocks of the weight, whose numbers are in the order of rows, G blocks of a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from ..linear import Destination, bias_destination, total_bytes

if TYPE_CHECKING:
    from ....kernels.cpu.products.packed_matrix import PackedMatrix

_BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096)
_MAX_STATE_BYTES = 1 << 16
_ANY = (-1,)


class CodebookLinear:
    """A linear layer whose 4-bit codes name 16 numbers, times the absolute maximum of their block.

    On a CPU the numbers are rounded to int8, each by less than a hundredth of the block's maximum, and packed for the
    compiled loops in 8.25 bits or less. Other devices have the widened weight.
    """

    def __init__(
        self, kind: str, nested: bool, outputs: int, inputs: int, bias: bool, *, device: torch.device | str, dtype: Any
    ) -> None:
        """`kind` is "nf4" or "fp4"; the maxima are quantised when `nested`."""
        self._kind, self._nested, self._inputs = kind, nested, inputs
        self._device, self._dtype = torch.device(device), dtype
        self._codes_NC = torch.empty((outputs, inputs), dtype=torch.int8, device=device)
        self._scales: dict[int, torch.Tensor] = {}  # [rows, G] of the modules that begin at these rows
        self.bias_N = torch.empty(outputs, device=device, dtype=dtype) if bias else None
        self.matrix: PackedMatrix | None = None  # the whole layer, packed for compiled loops
        self._dense_NC: torch.Tensor | None = (
            None if self._device.type == "cpu" else torch.empty((outputs, inputs), device=device, dtype=dtype)
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.matrix is not None:
            from ....kernels.cpu.products.matmul import packed_matmul  # here, because it imports numba

            return packed_matmul(x, self.matrix)
        assert self._dense_NC is not None, "not finished"
        return F.linear(x, self._dense_NC, self.bias_N)

    def finish(self) -> None:
        if self._dense_NC is None:
            from ....kernels.cpu.products.packed_matrix import PackedMatrix

            scale_NG = torch.cat([self._scales[start] for start in sorted(self._scales)])
            self.matrix = PackedMatrix.of_int8(self._codes_NC, scale_NG, self.bias_N)
        self._codes_NC, self._scales = self._codes_NC[:0].clone(), {}

    @property
    def nbytes(self) -> int:
        if self.matrix is not None:
            return self.matrix.nbytes
        return total_bytes(self._codes_NC, self._dense_NC, self.bias_N)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        book = Codebook(self._kind, self._nested, size, self._inputs)
        seen: dict[str, torch.Tensor] = {}

        def put(name: str, tensor: torch.Tensor) -> None:
            seen[name] = tensor
            if len(seen) == len(book.tensors):
                self._read(start, size, book, seen)
                seen.clear()

        pieces = {
            name: Destination(shape, partial(put, name), dtypes) for name, (shape, dtypes) in book.tensors.items()
        }
        return {**pieces, **bias_destination(self.bias_N, start, size)}

    def _read(self, start: int, size: int, book: Codebook, parts: Mapping[str, torch.Tensor]) -> None:
        """Take the tensors of one module. Raises ValueError when they do not fit each other."""
        if self._dense_NC is not None:
            self._dense_NC[start : start + size].copy_(book.dequantised(parts))
            return
        codes_NC, scale_NG = book.codes_and_scales(parts)
        if self._scales and next(iter(self._scales.values())).shape[1] != scale_NG.shape[1]:
            raise ValueError("has blocks of another size than the modules that it is fused with")
        integers, step = _as_integers(parts["weight.quant_map"])
        self._codes_NC[start : start + size] = integers[codes_NC]
        self._scales[start] = scale_NG * step


class Codebook(NamedTuple):
    """The stored tensors of one weight in 4 bits."""

    kind: str
    nested: bool
    outputs: int
    inputs: int

    @property
    def tensors(self) -> dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...] | None]]:
        """Shapes and types of the tensors, by the last part of their names."""
        shapes: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...] | None]] = {
            "weight": ((self.outputs * self.inputs // 2, 1), (torch.uint8,)),
            "weight.quant_map": ((16,), (torch.float32,)),
            "weight.absmax": (_ANY, (torch.uint8 if self.nested else torch.float32,)),
            f"weight.quant_state.bitsandbytes__{self.kind}": (_ANY, (torch.uint8,)),
        }
        if self.nested:
            shapes["weight.nested_absmax"] = _ANY, (torch.float32,)
            shapes["weight.nested_quant_map"] = (256,), (torch.float32,)
        return shapes

    def codes_and_scales(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes int32 [N, C] and the maxima of their blocks, float32 [N, G]. Raises ValueError when the tensors
        do not fit each other."""
        [state_name] = [name for name in parts if "quant_state" in name]
        state, size, C = _state(parts[state_name]), self.outputs, self.inputs
        block = state.get("blocksize")
        if block not in _BLOCKS or C % block:
            raise ValueError(
                f"has blocks of {block!r}: supported are {', '.join(map(str, _BLOCKS))} that divide {C} inputs"
            )
        if state.get("shape") != [size, C]:
            raise ValueError(f"is of a weight of {state.get('shape')!r}, config.json asks for {[size, C]}")
        maxima_B = parts["weight.absmax"]
        if len(maxima_B) != size * C // block:
            raise ValueError(f"is of {len(maxima_B)} blocks, the weight has {size * C // block}")
        if self.nested:
            maxima_B = _nested_maxima(maxima_B, parts, state)
        packed = parts["weight"].flatten()
        codes_NC = torch.stack((packed >> 4, packed & 15), dim=1).view(size, C).to(torch.int32)
        return codes_NC, maxima_B.view(size, -1)

    def dequantised(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weight in float32. Raises ValueError as `codes_and_scales` does."""
        codes_NC, scale_NG = self.codes_and_scales(parts)
        return (parts["weight.quant_map"][codes_NC].view(*scale_NG.shape, -1) * scale_NG[..., None]).flatten(1)


def _as_integers(numbers: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Round numbers to int8 and a step: the one of the steps whose largest integer is 64 to 127 that errs least."""
    most = torch.arange(64, 128)[:, None]
    exact = numbers / numbers.abs().max().clamp(min=1e-7) * most
    best = int((((exact - exact.round()) / most) ** 2).sum(1).argmin())
    return exact[best].round().to(torch.int8), float(numbers.abs().max()) / float(most[best])


def _state(stored: torch.Tensor) -> dict[str, Any]:
    """Read the JSON object that describes a weight. Raises ValueError."""
    if len(stored) > _MAX_STATE_BYTES:
        raise ValueError(f"has {len(stored)} bytes: at most {_MAX_STATE_BYTES} describe a weight")
    try:
        state = json.loads(bytes(stored.tolist()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(state, dict):
        raise ValueError("is not a JSON object")
    return state


def _nested_maxima(codes_B: torch.Tensor, parts: Mapping[str, torch.Tensor], state: dict[str, Any]) -> torch.Tensor:
    """Return the blocks' maxima, which are quantised in blocks themselves, less an offset."""
    size, offset = state.get("nested_blocksize"), state.get("nested_offset")
    outer = parts["weight.nested_absmax"]
    if type(size) is not int or size < 1 or -(-len(codes_B) // size) != len(outer):
        raise ValueError(f"has maxima in blocks of {size!r}, of which there are {len(outer)} for {len(codes_B)}")
    if not isinstance(offset, (int, float)) or not abs(offset) < float("inf"):
        raise ValueError(f"has the offset {offset!r}")
    numbers = parts["weight.nested_quant_map"][codes_B.to(torch.int32)]
    blocks_B = torch.arange(len(codes_B)) // min(size, max(1, len(codes_B)))  # a size may be any number
    return numbers * outer[blocks_B] + offset
