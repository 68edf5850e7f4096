"""The MLP of a decoder layer: the interface of all kinds, and the dense MLP.

Legend: T tokens, E hidden size, I intermediate size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from ...kernels import Ops
from .families.row import Activation
from .linear import Destination, Linear, Loadable, linear_parts, stacked_destinations


class Mlp(Protocol):
    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Compute the output [T, E]: the total of the parts."""
        ...

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        """Compute the partial output [T, E] of each slice of the model that this rank holds.

        The parts of all ranks add up to the output.
        """
        ...

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add up this rank's parts, and those of the other ranks."""
        ...

    def linears(self) -> Iterator[Loadable]:
        """Iterate over the layers that may be quantised."""
        ...

    def destinations(self, prefix: str) -> dict[str, Destination]:
        """Map the checkpoint tensors of the decoder layer `prefix` to this MLP's tensors."""
        ...


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """`down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate."""

    gate_up: Linear  # E -> 2I, the gate first; E -> I without a gate
    down: Linear  # I -> E
    intermediate_size: int
    hidden_size: int
    block: str = "mlp"
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # two names: no gate
    activation: Activation = "silu"

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.total(self.parts(x_TE, ops))

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        return [self.down(self.activate(self.gate_up(x_TE), ops))]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        [y_TE] = parts_TE
        return y_TE

    @property
    def gated(self) -> bool:
        return len(self.names) == 3

    def activate(self, gate_up_TJ: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Apply the activation to the output of `gate_up`: [T, 2I] or [T, I] to [T, I]."""
        if not self.gated:
            return _activate(gate_up_TJ, self.activation)
        if self.activation == "silu":
            return ops.silu_and_mul(gate_up_TJ)
        gate_TI, up_TI = gate_up_TJ.chunk(2, dim=-1)
        return _activate(gate_TI, self.activation) * up_TI

    def linears(self) -> Iterator[Loadable]:
        yield from linear_parts(self.gate_up)
        yield from linear_parts(self.down)

    def destinations(self, prefix: str) -> dict[str, Destination]:
        prefix, size = f"{prefix}.{self.block}", self.intermediate_size
        *inner, down = self.names
        return {
            **stacked_destinations(prefix, [(name, size) for name in inner], self.gate_up),
            **stacked_destinations(prefix, [(down, self.hidden_size)], self.down),
        }


def _activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square()
