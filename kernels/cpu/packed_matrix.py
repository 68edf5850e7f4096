"""Weight matrices packed in panels for the product loops of `matmul`, in one of several formats.

A panel holds the weights of WIDTH outputs side by side, step by step: a step's 32 bits of each output make a vector.
Zeros fill the last panel. The matrix is held once: compiled loops find it by its descriptor.

Legend: P panels, S steps, W outputs of a panel, I inputs of a step, N outputs, C inputs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .instructions import HOST

WIDTH = HOST.width

# Formats, the first number of a descriptor.
FLOAT32 = 0
BFLOAT16 = 1  # rows stay float32; exact for float32 models whose weights are bfloat16s
BFLOAT16_ROWS = 2  # rows are rounded to bfloat16 for the processor's dot product

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


class PackedMatrix:
    """A weight matrix [N, C] in panels, and its bias.

    `descriptor` is int64 [8]: format, outputs, inputs, group size (0 without groups), and the addresses of codes,
    scales, bases (0 where the format has none) and the float32 bias. The addresses hold as long as this object.
    """

    def __init__(self, kind: int, outputs: int, inputs: int, group: int, bias: torch.Tensor | None) -> None:
        self.outputs, self.inputs, self.num_panels = outputs, inputs, -(-outputs // WIDTH)
        self._bias = np.zeros(self.num_panels * WIDTH, np.float32)
        if bias is not None:
            self._bias[:outputs] = bias.detach().float().numpy()
        self._arrays: list[NDArray[np.generic]] = []
        self.descriptor: NDArray[np.int64] = np.array(
            [kind, outputs, inputs, group, 0, 0, 0, self._bias.ctypes.data], np.int64
        )

    @classmethod
    def of_dense(
        cls, weight: torch.Tensor, bias: torch.Tensor | None = None, *, rows: torch.dtype = torch.float32
    ) -> PackedMatrix:
        """Pack a float32 or bfloat16 weight [N, C]. A float32 one whose numbers are bfloat16s takes half of its memory.

        `rows` is the precision that products need of their rows: with bfloat16 and such weights, loops may round them.
        """
        weight = weight.detach()
        if weight.dtype == torch.float32 and not torch.any(weight.contiguous().view(torch.int32) & 0xFFFF):
            weight = (weight.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
        if weight.dtype == torch.float32:
            kind, per_step = FLOAT32, 1
        else:
            kind = BFLOAT16_ROWS if rows == torch.bfloat16 and HOST.bfloat16_dot else BFLOAT16
            per_step = 2
        packed = cls(kind, *weight.shape, 0, bias)
        packed._hold(4, _panels(weight.view(_BITS[weight.dtype]), per_step))
        return packed

    def _hold(self, place: int, array: torch.Tensor) -> None:
        """Keep an array, and write its address to the descriptor."""
        self._arrays.append(array.numpy())
        self.descriptor[place] = array.data_ptr()

    def dense(self) -> torch.Tensor:
        """Return the weight [N, C], float32 or bfloat16."""
        panels = torch.from_numpy(self._arrays[0]).permute(0, 2, 1, 3)
        rows = panels.reshape(self.num_panels * WIDTH, -1)[: self.outputs, : self.inputs].contiguous()
        return rows.view(torch.float32 if self.descriptor[0] == FLOAT32 else torch.bfloat16)

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads, padding included."""
        return self._bias.nbytes + sum(array.nbytes for array in self._arrays)


def _panels(numbers_NC: torch.Tensor, per_step: int) -> torch.Tensor:
    """Return [P, S, W, I] of I = `per_step` inputs; zeros fill the last step and panel."""
    N, C = numbers_NC.shape
    panels, steps = -(-N // WIDTH), -(-C // per_step)
    out = torch.zeros((panels, steps, WIDTH, per_step), dtype=numbers_NC.dtype)
    whole, rest = divmod(N, WIDTH)
    whole_steps, rest_inputs = divmod(C, per_step)

    def put(target_SWI: torch.Tensor, rows_WC: torch.Tensor) -> None:
        target_SWI = target_SWI[..., : len(rows_WC), :]
        size = whole_steps * per_step
        target_SWI[:whole_steps].copy_(rows_WC[:, :size].view(len(rows_WC), whole_steps, per_step).transpose(0, 1))
        if rest_inputs:
            target_SWI[whole_steps, :, :rest_inputs].copy_(rows_WC[:, size:])

    for panel in range(whole):
        put(out[panel], numbers_NC[panel * WIDTH : (panel + 1) * WIDTH])
    if rest:
        put(out[whole], numbers_NC[whole * WIDTH :])
    return out
