"""Decoding quantised matrices to dense ones while they are read, where no layer computes their layout.

In every layout a matrix is codes, less zero points, times scales; they differ in names, packing and the extent of a
scale. A dense destination of such a module is replaced by those of its stored tensors. The last of them to come decodes
the matrix, of which the dense destination then takes its part.

Legend: N outputs, C inputs, G groups of a row's C, R rows of scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ..linear import Destination
from .bitsandbytes import Codebook
from .blockwise import FP8_BLOCK
from .int4_packing import AWQ_ORDER, unpack
from .mxfp4 import FP4_NUMBERS, MXFP4_GROUP
from .rounding import FP8, NVFP4_GROUP, fp8_as_bfloat16
from .scheme import Quantisation, Scheme

_EXPONENT_BIAS = 127
_READ_AS_STORED = ("dense", "gguf", "mxfp4")
_ANY_INTEGER = (torch.int32, torch.int64)
_INPUT_SCALES = ("input_scale", "input_global_scale")

Tensors = Mapping[str, torch.Tensor]


class _Stored(NamedTuple):
    """Shapes and types of a matrix's tensors by the last part of their names, and the function that decodes them."""

    tensors: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...] | None]]
    decode: Callable[[Tensors], torch.Tensor]  # to float32 [N, C]


def widen(parts: dict[str, Destination], quantisation: Quantisation) -> dict[str, Destination]:
    """Return the destinations with those of dense weights replaced that the checkpoint stores quantised."""
    found: dict[str, Destination] = {}
    for name, to in parts.items():
        module = name.removesuffix(".weight")
        is_dense = module != name and to.dtypes is None and len(to.shape) == 2 and to.outputs == 0
        scheme = quantisation.scheme_of(module) if is_dense else None
        if scheme is None or scheme.source in _READ_AS_STORED:
            found[name] = to
        else:
            rounds_inputs = any(f"{module}.{last}" in parts for last in _INPUT_SCALES)
            pieces = _pieces(scheme, to, left=_INPUT_SCALES if rounds_inputs else ())
            found |= {f"{module}.{last}": piece for last, piece in pieces.items()}
    return found


def _pieces(scheme: Scheme, to: Destination, left: Sequence[str]) -> dict[str, Destination]:
    """Return the destinations of a matrix's stored tensors, but for those in `left`, which its layer takes itself."""
    stored = _stored(scheme, *to.shape)
    tensors = {name: kind for name, kind in stored.tensors.items() if name not in left}
    seen: dict[str, torch.Tensor] = {}

    def put(name: str, tensor: torch.Tensor) -> None:
        seen[name] = tensor
        if len(seen) == len(tensors):
            weight_NC = stored.decode(seen)
            seen.clear()
            to.put(weight_NC if to.part is None else weight_NC[to.part])

    return {
        name: Destination(shape, partial(put, name), dtypes, outputs=None, inputs=None)
        for name, (shape, dtypes) in tensors.items()
    }


def _stored(scheme: Scheme, N: int, C: int) -> _Stored:
    match scheme.source:
        case "bitsandbytes":
            return _of_bitsandbytes(scheme, N, C)
        case "gptq" | "awq":
            return _of_words(scheme, N, C)
        case "fp8":
            shape = -(-N // FP8_BLOCK), -(-C // FP8_BLOCK)
            names = {"weight": ((N, C), (FP8,)), scheme.scale_name: (shape, None)}
            return _Stored(names, lambda own: _product(own["weight"], own[scheme.scale_name], FP8_BLOCK, FP8_BLOCK))
    return _of_fp4(scheme, N, C) if scheme.kind in ("mxfp4", "nvfp4") else _of_compressed_tensors(scheme, N, C)


def _product(
    codes_NC: torch.Tensor,
    scale_RG: torch.Tensor,
    rows: int = 1,
    columns: int | None = None,
    *,
    zero_RG: torch.Tensor | None = None,
    index_C: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `(codes - zeros) * scales` in float32. A scale has `rows` x `columns` of the codes, None: whole rows;
    `index_C` names the group of each column instead."""
    N, C = codes_NC.shape
    rows_N = torch.arange(N) // rows
    columns_C = torch.zeros(C, dtype=torch.int64) if columns is None else torch.arange(C) // columns
    columns_C = columns_C if index_C is None else index_C.long()

    def spread(numbers_RG: torch.Tensor) -> torch.Tensor:
        numbers_RG = numbers_RG.float().reshape(-1, 1) if numbers_RG.dim() < 2 else numbers_RG.float()
        return numbers_RG.expand(-(-N // rows), -1)[rows_N][:, columns_C]

    weight_NC = fp8_as_bfloat16(codes_NC).float() if codes_NC.dtype == FP8 else codes_NC.float()
    return (weight_NC if zero_RG is None else weight_NC - spread(zero_RG)).mul(spread(scale_RG))


def _of_compressed_tensors(scheme: Scheme, N: int, C: int) -> _Stored:
    """Integers, packed in words or not, or FP8, with scales of any extent."""
    bits, G = _bits(scheme), _num_groups(scheme, C)
    is_packed = scheme.packed or bits < 8
    codes, dtype = "weight", FP8 if scheme.kind == "fp8" else torch.int8
    if is_packed:
        codes, dtype = "weight_packed", torch.int32
    extent = (1,) if scheme.per_tensor else (N,) if scheme.flat_scales else (N, G)
    tensors: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...] | None]] = {
        codes: ((N, _words(C, bits) if is_packed else C), (dtype,)),
        "weight_scale": (extent, (torch.uint8,) if scheme.exponents else None),
    }
    if is_packed:
        tensors["weight_shape"] = (2,), _ANY_INTEGER
    if scheme.zero_points:
        tensors["weight_zero_point"] = ((_words(N, bits), G), (torch.int32,)) if is_packed else ((N, G), (torch.int8,))
    if scheme.act_order:
        tensors["weight_g_idx"] = (C,), _ANY_INTEGER
    if scheme.static:
        tensors["input_scale"] = (1,), None

    def decode(own: Tensors) -> torch.Tensor:
        numbers, zeros, scale = own[codes], own.get("weight_zero_point"), own["weight_scale"]
        if is_packed:  # shifted by half of their range, zero points too
            half = 1 << bits - 1
            numbers = unpack(numbers, 1, bits=bits)[:, :C].float() - half
            zeros = None if zeros is None else unpack(zeros, 0, bits=bits)[:N].float() - half
        if scheme.exponents:
            scale = _powers(scale)
        index_C = None if "weight_g_idx" not in own else _checked(own["weight_g_idx"], G)
        rows = N if scheme.per_tensor else 1
        return _product(numbers, scale, rows, scheme.group_size, zero_RG=zeros, index_C=index_C)

    return _Stored(tensors, decode)


def _of_fp4(scheme: Scheme, N: int, C: int) -> _Stored:
    """Numbers of four bits with a power of two per 32 inputs, or an FP8 number per 16 and one of the whole tensor."""
    is_nv, is_modelopt = scheme.kind == "nvfp4", scheme.source == "modelopt"
    group, dtype = (NVFP4_GROUP, FP8) if is_nv else (MXFP4_GROUP, torch.uint8)
    codes, whole, inputs = "weight_packed", "weight_global_scale", "input_global_scale"
    if is_modelopt:
        codes, whole, inputs = "weight", "weight_scale_2", "input_scale"
    tensors: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...] | None]] = {
        codes: ((N, C // 2), (torch.uint8,)),
        "weight_scale": ((N, -(-C // group)), (dtype,)),
    }
    if is_nv:
        tensors[whole] = (1,), None
        if scheme.static:
            tensors[inputs] = (1,), None

    def decode(own: Tensors) -> torch.Tensor:
        packed, scale = own[codes], own["weight_scale"]
        numbers = FP4_NUMBERS[torch.stack((packed & 15, packed >> 4), dim=2).flatten(1).int()]
        if not is_nv:
            return _product(numbers, _powers(scale), columns=group)
        of_all = own[whole].float()  # a factor, and compressed-tensors' a divisor
        return _product(
            numbers, fp8_as_bfloat16(scale).float() * (of_all if is_modelopt else 1 / of_all), columns=group
        )

    return _Stored(tensors, decode)


def _of_words(scheme: Scheme, N: int, C: int) -> _Stored:
    """Integers of GPTQ, packed along inputs, or of AWQ, packed along outputs; both have zero points."""
    bits, G, is_gptq = _bits(scheme), _num_groups(scheme, C), scheme.source == "gptq"
    order = None if is_gptq else AWQ_ORDER
    tensors: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...] | None]] = {
        "qweight": ((_words(C, bits), N) if is_gptq else (C, _words(N, bits)), (torch.int32,)),
        "qzeros": ((G, _words(N, bits)), (torch.int32,)),
        "scales": ((G, N), None),
    }
    if scheme.has_index:
        tensors["g_idx"] = (C,), _ANY_INTEGER

    def decode(own: Tensors) -> torch.Tensor:
        codes_CN = unpack(own["qweight"], 0 if is_gptq else 1, order, bits=bits)[:C, :N]
        zero_GN = unpack(own["qzeros"], 1, order, bits=bits)[:, :N]
        if is_gptq and scheme.zeros_less_one:
            zero_GN = zero_GN + 1 & (1 << bits) - 1
        index_C = _checked(own["g_idx"], G) if scheme.has_index else None
        return _product(
            codes_CN.t(), own["scales"].t(), columns=scheme.group_size, zero_RG=zero_GN.t(), index_C=index_C
        )

    return _Stored(tensors, decode)


def _of_bitsandbytes(scheme: Scheme, N: int, C: int) -> _Stored:
    if scheme.kind == "int8":
        names = {"weight": ((N, C), (torch.int8,)), "SCB": ((N,), None), "weight_format": ((), (torch.uint8,))}
        return _Stored(names, lambda own: _product(own["weight"], own["SCB"] / 127))
    book = Codebook(scheme.kind, scheme.nested, N, C)
    return _Stored(book.tensors, book.dequantised)


def _powers(exponents: torch.Tensor) -> torch.Tensor:
    return torch.exp2(exponents.float() - _EXPONENT_BIAS)


def _checked(index_C: torch.Tensor, groups: int) -> torch.Tensor:
    if int(index_C.min()) < 0 or int(index_C.max()) >= groups:
        raise ValueError(f"names other groups than {groups}")
    return index_C


def _bits(scheme: Scheme) -> int:
    return {"int2": 2, "int4": 4}.get(scheme.kind, 8)


def _num_groups(scheme: Scheme, inputs: int) -> int:
    return 1 if scheme.group_size is None else -(-inputs // scheme.group_size)


def _words(count: int, bits: int) -> int:
    return -(-count * bits // 32)
