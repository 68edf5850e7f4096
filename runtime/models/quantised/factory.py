"""Making the linear layer that a quantisation scheme asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..linear import DenseLinear, Linear
from ..packed_linear import PackedLinear, can_pack
from .bitsandbytes import CodebookLinear
from .block_linear import BlockLinear
from .blockwise import FP8_BLOCK, BlockwiseLinear
from .eight_bit import EightBitLinear
from .int4 import Int4Linear
from .mxfp4 import MXFP4_GROUP, Mxfp4Linear
from .rounding import GROUP_SIZES
from .scheme import FOUR_BIT_BLOCKS, GGUF_GROUP, Quantisation


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

    Raises ValueError, naming the modules, when the scheme does not fit their sizes or not all of them have it.
    """
    schemes = [quantisation.scheme_of(module) if quantisation is not None else None for module in modules]
    formats = [scheme.block_format for scheme in schemes if scheme is not None and scheme.block_format is not None]
    scheme = schemes[0]
    if formats:
        sizes = sizes or [outputs // len(modules)] * len(modules)
        if len(formats) == len(sizes) and _is_cpu(device) and BlockLinear.fits(formats, sizes, inputs):
            return BlockLinear(formats, sizes, inputs, bias, dtype=dtype)
        in_four_bits = len(formats) == len(modules) and FOUR_BIT_BLOCKS.issuperset(formats)
        if not in_four_bits or inputs % GGUF_GROUP or outputs % 16:
            scheme = None
    elif len(set(schemes)) > 1:
        raise ValueError(f"{', '.join(modules)} are fused here: quantising only some of them is not supported")
    if scheme is None:
        weight = torch.empty((outputs, inputs), device=device, dtype=dtype)
        dense = DenseLinear(weight, torch.empty(outputs, device=device, dtype=dtype) if bias else None)
        return PackedLinear(dense) if can_pack(device, dtype) else dense
    if scheme.source == "fp8":
        parts = list(sizes or [outputs // len(modules)] * len(modules))
        if not BlockwiseLinear.fits(parts, inputs):
            raise ValueError(
                f"{', '.join(modules)}: FP8 by block needs sizes divisible by {FP8_BLOCK}, not {parts} x {inputs}"
            )
        return BlockwiseLinear(outputs, inputs, bias, device=device, dtype=dtype)
    if scheme.kind in ("nf4", "fp4"):
        return CodebookLinear(scheme.kind, scheme.nested, outputs, inputs, bias, device=device, dtype=dtype)
    if scheme.kind == "mxfp4":
        if inputs % MXFP4_GROUP:
            raise ValueError(f"{modules[0]}: MXFP4 needs inputs divisible by {MXFP4_GROUP}, not {inputs}")
        return Mxfp4Linear(outputs, inputs, bias, device=device, dtype=dtype)
    if scheme.kind != "int4":
        if scheme.activations and torch.device(device).type == "cuda" and (outputs % 16 or inputs % 16):
            raise ValueError(f"{modules[0]}: {scheme.kind} needs sizes divisible by 16, not {outputs} x {inputs}")
        return EightBitLinear(scheme, outputs, inputs, bias, device=device, dtype=dtype)
    group_size = scheme.group_size
    if group_size is None:
        raise ValueError(f"int4 needs layers whose inputs are all divisible by {min(GROUP_SIZES)}")
    if inputs % group_size or outputs % 16:
        raise ValueError(
            f"{modules[0]}: int4 needs inputs divisible by {group_size} and outputs by 16, not {outputs} x {inputs}"
        )
    return Int4Linear(scheme, outputs, inputs, bias, group_size=group_size, device=device, dtype=dtype)


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
