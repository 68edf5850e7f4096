"""Making the linear layer that a quantisation scheme asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..linear import DenseLinear, Destination, Linear, WrappedLinear
from ..packed_linear import PackedLinear, can_pack
from .bitsandbytes import CodebookLinear
from .block_linear import BlockLinear
from .blockwise import BlockwiseLinear
from .eight_bit import EightBitLinear
from .int4 import Int4Linear
from .mxfp4 import MXFP4_GROUP, Mxfp4Linear
from .rounding import FP8, GROUP_SIZES, input_codes, int4_group_size, keep_larger_scale, mx_groups, nv_groups
from .scheme import FOUR_BIT_BLOCKS, GGUF_GROUP, InputKind, Quantisation, Scheme


def make_linear(
    quantisation: Quantisation | None,
    modules: Sequence[str],
    outputs: int,
    inputs: int,
    bias: bool,
    *,
    sizes: Sequence[int] | None = None,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Linear:
    """Make an unfilled layer for `modules`, which share their inputs. `sizes` are their outputs; None: equal parts.

    Modules of several schemes, or sizes that no layer of their scheme computes, get a dense layer, which stored tensors
    are widened for (`widening`). Raises ValueError, naming the modules, when a dense checkpoint is to be rounded to a
    scheme that does not fit their sizes.
    """
    schemes = [quantisation.scheme_of(module) if quantisation is not None else None for module in modules]
    scheme, parts = schemes[0], list(sizes or [outputs // len(modules)] * len(modules))
    if any(each is not None and each.block_format is not None for each in schemes):
        found = _of_blocks(schemes, parts, outputs, inputs, bias, device=device, dtype=dtype)
    elif len(set(schemes)) > 1 or scheme is None or scheme.widened:
        found = None
    else:
        found = _of_scheme(scheme, modules[0], parts, inputs, bias, device=device, dtype=dtype)
    if found is None:
        weight = torch.empty((outputs, inputs), device=device, dtype=dtype)
        dense = DenseLinear(weight, torch.empty(outputs, device=device, dtype=dtype) if bias else None)
        found = PackedLinear(dense) if can_pack(device, dtype) else dense
    if len(set(schemes)) > 1 or scheme is None or scheme.rounded_inputs is None:
        return found
    stored = torch.zeros(1, device=device, dtype=torch.float32) if scheme.static else None
    is_divisor = scheme.kind == "nvfp4" and scheme.source == "compressed-tensors"
    return RoundedInputs(found, scheme.rounded_inputs, stored, is_divisor)


def _of_blocks(
    schemes: list[Scheme | None],
    sizes: list[int],
    outputs: int,
    inputs: int,
    bias: bool,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Linear | None:
    """Make the layer of a GGUF file's blocks; None: a dense one."""
    formats = [scheme.block_format for scheme in schemes if scheme is not None and scheme.block_format is not None]
    if len(formats) == len(sizes) and _is_cpu(device) and BlockLinear.fits(formats, sizes, inputs):
        return BlockLinear(formats, sizes, inputs, bias, dtype=dtype)
    in_four_bits = len(formats) == len(schemes) and FOUR_BIT_BLOCKS.issuperset(formats)
    if not in_four_bits or inputs % GGUF_GROUP or outputs % 16 or schemes[0] is None:
        return None
    return Int4Linear(schemes[0], outputs, inputs, bias, group_size=GGUF_GROUP, device=device, dtype=dtype)


def _of_scheme(
    scheme: Scheme,
    module: str,
    sizes: list[int],
    inputs: int,
    bias: bool,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Linear | None:
    """Make the layer that computes the scheme; None where none does at these sizes."""
    where: dict[str, Any] = {"device": device, "dtype": dtype}
    outputs = sum(sizes)
    if scheme.source == "fp8":
        if not BlockwiseLinear.fits(sizes, inputs):
            return None
        return BlockwiseLinear(outputs, inputs, bias, **where, scale_name=scheme.scale_name)
    if scheme.kind in ("nf4", "fp4"):
        return CodebookLinear(scheme.kind, scheme.nested, outputs, inputs, bias, **where)
    if scheme.kind == "mxfp4":
        if inputs % MXFP4_GROUP:
            raise ValueError(f"{module}: MXFP4 needs inputs divisible by {MXFP4_GROUP}, not {inputs}")
        return Mxfp4Linear(outputs, inputs, bias, **where)
    if scheme.kind != "int4":
        if scheme.activations and torch.device(device).type == "cuda" and (outputs % 16 or inputs % 16):
            raise ValueError(f"{module}: {scheme.kind} needs sizes divisible by 16, not {outputs} x {inputs}")
        return EightBitLinear(scheme, outputs, inputs, bias, **where)
    group_size, is_stored = scheme.group_size, scheme.source != "dense"
    if group_size is None and is_stored:
        group_size = int4_group_size(inputs)
    if group_size is None or inputs % group_size or outputs % 16:
        if is_stored:
            return None
        if group_size is None:
            raise ValueError(f"int4 needs layers whose inputs are all divisible by {min(GROUP_SIZES)}")
        raise ValueError(
            f"{module}: int4 needs inputs divisible by {group_size} and outputs by 16, not {outputs} x {inputs}"
        )
    return Int4Linear(scheme, outputs, inputs, bias, group_size=group_size, **where)


@dataclass(frozen=True, slots=True)
class RoundedInputs(WrappedLinear):
    """A linear layer whose inputs are rounded as the checkpoint says, where its weights' layer takes them as they
    come."""

    kind: InputKind
    scale_1: torch.Tensor | None = None  # float32, stored: of all inputs; of fused modules the largest
    is_divisor: bool = False  # its reciprocal is stored

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        match self.kind:
            case "mxfp4" | "mxfp8":
                rounded = mx_groups(x, 4 if self.kind == "mxfp4" else 8)
            case "nvfp4":
                assert self.scale_1 is not None
                rounded = nv_groups(x, self.scale_1)
            case _:
                codes, scale_T1 = input_codes(x, FP8 if self.kind == "fp8" else torch.int8, self.scale_1)
                rounded = codes.float() * scale_T1
        return self.linear(rounded.to(x.dtype))

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        parts = self.linear.row_destinations(start, size)
        if self.scale_1 is not None:
            name = "input_global_scale" if self.is_divisor else "input_scale"
            parts[name] = Destination((1,), self._put_scale, outputs=None, inputs=None)
        return parts

    def _put_scale(self, stored: torch.Tensor) -> None:
        assert self.scale_1 is not None
        scale = float(stored)
        keep_larger_scale(self.scale_1, 1 / scale if self.is_divisor and scale else scale)


def make_vocabulary(
    quantisation: Quantisation | None,
    module: str,
    rows: int,
    size: int,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
) -> BlockLinear | None:
    """Make the unfilled embedding or head of a GGUF file that is kept in its blocks; None: it is dense."""
    scheme = None if quantisation is None else quantisation.scheme_of(module)
    name = None if scheme is None else scheme.block_format
    if name is None or not _is_cpu(device) or not BlockLinear.fits([name], [rows], size):
        return None
    return BlockLinear([name], [rows], size, bias=False, dtype=dtype)


def _is_cpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cpu"
