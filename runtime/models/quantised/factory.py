"""Making the linear layer that a quantisation scheme asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..linear import DenseLinear, Linear
from ..packed_linear import PackedLinear, can_pack
from .eight_bit import EightBitLinear
from .int4 import Int4Linear
from .rounding import GROUP_SIZES
from .scheme import Quantisation


def make_linear(
    quantisation: Quantisation | None,
    modules: Sequence[str],
    outputs: int,
    inputs: int,
    bias: bool,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Linear:
    """Make an unfilled layer for `modules`, which share their inputs.

    Raises ValueError, naming the modules, when the scheme does not fit their sizes or not all of them have it.
    """
    schemes = {quantisation.scheme_of(module) if quantisation is not None else None for module in modules}
    if len(schemes) > 1:
        raise ValueError(f"{', '.join(modules)} are fused here: quantising only some of them is not supported")
    scheme = schemes.pop()
    if scheme is None:
        weight = torch.empty((outputs, inputs), device=device, dtype=dtype)
        dense = DenseLinear(weight, torch.empty(outputs, device=device, dtype=dtype) if bias else None)
        return PackedLinear(dense) if can_pack(device, dtype) else dense
    if scheme.kind != "int4":
        if scheme.activations and torch.device(device).type == "cuda" and (outputs % 16 or inputs % 16):
            raise ValueError(f"{modules[0]}: {scheme.kind} needs sizes divisible by 16, not {outputs} x {inputs}")
        return EightBitLinear(scheme, outputs, inputs, bias, device=device, dtype=dtype)
    group_size = scheme.group_size
    if group_size is None or inputs % group_size or outputs % 16:
        raise ValueError(
            f"{modules[0]}: int4 needs inputs divisible by {group_size or min(GROUP_SIZES)} and outputs by 16, "
            f"not {outputs} x {inputs}"
        )
    return Int4Linear(scheme, outputs, inputs, bias, group_size=group_size, device=device, dtype=dtype)
