"""Products with quantised weights, dense layers or experts: codes are read once and widened on their way.

A weight has a scale per row or per group of a row's inputs. A group's sums are multiplied by its scale, not each of its
weights. Programs share an output's inputs where there are too few outputs for the device; a second kernel adds up.

Legend: T tokens or rows, N outputs, C inputs, G groups of inputs, P pairs of a token and an expert, E experts, S parts
of the inputs; M, N blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from . import launch_configs
from .launching import launch
from .store import ROUNDER

BLOCK_INPUTS = 128  # inputs at a time where a scale is a row's
_LARGE_ROW = 4096
_OUTPUTS = 64
_FEW_ROWS, SOME_ROWS = 16, 64  # rows of a tile


class Codes(NamedTuple):
    """A quantised weight. With experts, all tensors have them as a first dimension.

    int4: weight = (code - 8) * scale + base. Two codes are a byte: in each group the low halves of bytes are its first
    codes, the high ones the others (`pack_groups`). MXFP4: codes are e2m1 numbers, packed the same way; scales are
    powers of two by their exponents, biased by 127. Eight bits: weight = code * scale.
    """

    codes: torch.Tensor  # uint8 [N, C / 2], or int8 or e4m3 [N, C]
    scale: torch.Tensor  # int4: [G, N]; MXFP4: uint8 [G, N]; by row: float32 [N]; by block: float32 [ceil(N / 128), G]
    base: torch.Tensor | None = None  # int4 only: [G, N]
    group: int = 0  # inputs of a scale; 0: a row has one

    @property
    def num_outputs(self) -> int:
        return self.codes.shape[-2]

    @property
    def kind(self) -> str:
        """The kernels' name of the format."""
        if self.codes.dtype == torch.uint8:
            return "mxfp4" if self.scale.dtype == torch.uint8 else "int4"
        return "block" if self.group else "row"

    @property
    def num_inputs(self) -> int:
        return self.codes.shape[-1] * (2 if self.codes.dtype == torch.uint8 else 1)


def pack_groups(codes_NC2: torch.Tensor, group: int) -> torch.Tensor:
    """Return codes, two neighbours to a byte, as `Codes` has them."""
    codes = torch.stack((codes_NC2 & 15, codes_NC2 >> 4), dim=-1).view(*codes_NC2.shape[:-1], -1, 2, group // 2)
    return (codes[..., 0, :] | codes[..., 1, :] << 4).flatten(-2).contiguous()


def reads(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if the device's kernels read codes of `dtype`."""
    return dtype != torch.float8_e4m3fn or launch_configs.reads_fp8(device)


def matmul(
    x: torch.Tensor,
    weight: Codes,
    bias_N: torch.Tensor | None = None,
    *,
    x_scale: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    experts: tuple[torch.Tensor, torch.Tensor | None] | None = None,
    fixed: bool = False,
) -> torch.Tensor:
    """Return `x W^T + bias` [T, N], or [P, N] by expert, in `dtype`, by default that of `x`.

    `experts` are `ends_N` and `rows_P` as `grouped_matmul` takes them; with `fixed` a row's bits do not depend on the
    other rows.

    `x` may be codes of the weight's dtype, with float32 scales [T], or [T, G] where the weight's are by block.
    """
    N, C = weight.num_outputs, weight.num_inputs
    ends_E, rows_P = (None, None) if experts is None else experts
    T = x.shape[0] if rows_P is None else rows_P.shape[0]
    out = torch.empty((T, N), dtype=dtype or x.dtype, device=x.device)
    if T == 0:
        return out
    E = 0 if experts is None else weight.codes.shape[0]
    assert not fixed or E, "layers without experts are computed a fixed number of rows at a time"
    block_m = _FEW_ROWS if fixed or _FEW_ROWS * max(1, E) >= T else SOME_ROWS
    tiles = triton.cdiv(T, block_m) if E == 0 else min(T, triton.cdiv(T, block_m) + E)
    block_c = weight.group or BLOCK_INPUTS
    num_groups = triton.cdiv(C, block_c)
    parts = launch_configs.num_parts(x.device, triton.cdiv(N, _OUTPUTS) * tiles, num_groups // 4) if E == 0 else 1
    partial = torch.empty((parts, T, N), dtype=torch.float32, device=x.device) if parts > 1 else None
    launch(
        _quantised_matmul,
        (triton.cdiv(N, _OUTPUTS), tiles, parts),
        x,
        x_scale,
        weight.codes,
        weight.scale,
        weight.base,
        bias_N,
        out,
        partial,
        ends_E,
        rows_P,
        T,
        x.stride(0),
        triton.cdiv(num_groups, parts),
        KIND=weight.kind,
        E=E,
        BLOCK_E=triton.next_power_of_2(max(1, E)),
        N=N,
        C=C,
        BLOCK_M=block_m,
        BLOCK_N=_OUTPUTS,
        BLOCK_C=block_c,
        num_warps=4,
        num_stages=4,
    )
    if partial is not None:
        size = T * N
        launch(_add_parts, (triton.cdiv(size, 1024),), partial, bias_N, out, size, parts, N=N, BLOCK=1024, num_warps=4)
    return out


def quantise_rows(x: torch.Tensor, dtype: torch.dtype, group: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows to int8 or e4m3 with a float32 scale each, [T], or one per `group` of inputs, [T, G]: the largest
    number of each becomes the largest code."""
    T, C = x.shape
    limit = 127.0 if dtype == torch.int8 else 448.0
    codes = torch.empty((T, C), dtype=dtype, device=x.device)
    scale = torch.empty((T, C // group) if group else (T,), dtype=torch.float32, device=x.device)
    block = group or min(_LARGE_ROW, triton.next_power_of_2(C))
    launch(
        _quantise_rows,
        (T, C // group if group else 1),
        x,
        codes,
        scale,
        x.stride(0),
        C=C,
        BLOCK=block,
        GROUPED=bool(group),
        LIMIT=limit,
        num_warps=1 if group else 8,
    )
    return codes, scale


def dequantise(weight: Codes, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight as numbers [N, C], for products of many rows, which are bound by compute."""
    N, C = weight.num_outputs, weight.num_inputs
    out = torch.empty((N, C), dtype=dtype, device=weight.codes.device)
    block_c = weight.group or BLOCK_INPUTS
    launch(
        _dequantise,
        (triton.cdiv(N, _OUTPUTS), triton.cdiv(C, block_c)),
        weight.codes,
        weight.scale,
        weight.base,
        out,
        KIND=weight.kind,
        N=N,
        C=C,
        BLOCK_N=_OUTPUTS,
        BLOCK_C=block_c,
        num_warps=4,
    )
    return out


@triton.jit
def _four_bits(code, DTYPE: tl.constexpr):
    """Return `code - 8` as numbers: a code is or-ed into the mantissa of a power of two, which takes no conversion."""
    if tl.bfloat16 == DTYPE:
        offset = tl.full(code.shape, 0x4308, tl.int16).to(tl.bfloat16, bitcast=True)  # 136
        return (code.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - offset
    if tl.float16 == DTYPE:
        return (code.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    return code.to(DTYPE) - 8.0


@triton.jit
def _e2m1(code, DTYPE: tl.constexpr):
    """Return twice the numbers of e2m1 codes: 0, 1, 2, 3, 4, 6, 8, 12, and the same with the sign bit."""
    low = (code & 7).to(tl.int32)
    twice = tl.where(low < 4, low, (2 | (low & 1)) << tl.maximum((low >> 1) - 1, 0))
    return tl.where(code > 7, -twice, twice).to(DTYPE)


@triton.jit
def _half_scale(exponent):
    """Return half of the power of two with a biased exponent; 0 for that of 0."""
    return (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 0.5


@triton.jit(do_not_specialize=["T", "groups_per_part"])
def _quantised_matmul(
    x_TC,
    x_scale,
    codes,
    scale,
    base,
    bias_N,
    out_TN,
    partial_STN,
    ends_E,
    rows_P,
    T,
    stride_x,
    groups_per_part,
    KIND: tl.constexpr,  # 4 bits: "int4", "mxfp4"; 8 bits: "row", a scale a row; "block", one by 128 x 128
    E: tl.constexpr,  # 0: no experts
    BLOCK_E: tl.constexpr,
    N: tl.constexpr,
    C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    tile = tl.program_id(1)
    G: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    first, end = tile * BLOCK_M, T
    if E > 0:
        e = tl.arange(0, BLOCK_E)
        end_E = tl.load(ends_E + e, mask=e < E, other=0).to(tl.int32)
        start_E = tl.load(ends_E + e - 1, mask=(e > 0) & (e < E), other=0).to(tl.int32)
        tiles_E = tl.where(e < E, (end_E - start_E + BLOCK_M - 1) // BLOCK_M, 0)
        last_E = tl.cumsum(tiles_E, 0)
        expert = tl.sum((last_E <= tile).to(tl.int32))  # BLOCK_E: the program has no tile
        if expert >= E:
            return
        mine = e == expert
        end = tl.sum(tl.where(mine, end_E, 0))
        first = tl.sum(tl.where(mine, start_E, 0)) + (tile - tl.sum(tl.where(mine, last_E - tiles_E, 0))) * BLOCK_M
        number = expert.to(tl.int64)
        if KIND == "int4" or KIND == "mxfp4":
            codes += number * N * (C // 2)
            scale += number * G * N
            if KIND == "int4":
                base += number * G * N
        else:
            codes += number * N * C
            scale += number * (N if KIND == "row" else (N + 127) // 128 * G)
    m = first + tl.arange(0, BLOCK_M)
    valid_M = m < end
    row_M = m.to(tl.int64)
    if rows_P is not None:
        row_M = tl.load(rows_P + m, mask=valid_M, other=0).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid_N = n < N
    dtype: tl.constexpr = x_TC.dtype.element_ty
    acc_MN = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.int32 if dtype == tl.int8 and KIND == "row" else tl.float32)
    begin = tl.program_id(2) * groups_per_part
    if KIND == "int4" or KIND == "mxfp4":
        HALF: tl.constexpr = BLOCK_C // 2
        j = tl.arange(0, HALF)
        for g in range(begin, tl.minimum(begin + groups_per_part, G)):
            pair_NC = tl.load(
                codes + n.to(tl.int64)[:, None] * (C // 2) + g * HALF + j[None, :], mask=valid_N[:, None], other=0
            )
            x = x_TC + row_M[:, None] * stride_x + g * BLOCK_C + j[None, :]
            low_MC = tl.load(x, mask=valid_M[:, None], other=0.0)
            high_MC = tl.load(x + HALF, mask=valid_M[:, None], other=0.0)
            if KIND == "mxfp4":
                low_NC, high_NC = _e2m1(pair_NC & 15, dtype), _e2m1(pair_NC >> 4, dtype)
            else:
                low_NC, high_NC = _four_bits(pair_NC & 15, dtype), _four_bits(pair_NC >> 4, dtype)
            sum_MN = tl.dot(low_MC, tl.trans(low_NC), input_precision="ieee")
            sum_MN = tl.dot(high_MC, tl.trans(high_NC), sum_MN, input_precision="ieee")
            if KIND == "mxfp4":
                acc_MN += sum_MN * _half_scale(tl.load(scale + g * N + n, mask=valid_N, other=0))[None, :]
            else:
                total_M = tl.sum(low_MC.to(tl.float32), 1) + tl.sum(high_MC.to(tl.float32), 1)
                scale_N = tl.load(scale + g * N + n, mask=valid_N, other=0.0).to(tl.float32)
                base_N = tl.load(base + g * N + n, mask=valid_N, other=0.0).to(tl.float32)
                acc_MN += sum_MN * scale_N[None, :] + total_M[:, None] * base_N[None, :]
    else:
        j = tl.arange(0, BLOCK_C)
        for g in range(begin, tl.minimum(begin + groups_per_part, G)):
            c = g * BLOCK_C + j
            code_NC = tl.load(
                codes + n.to(tl.int64)[:, None] * C + c[None, :], mask=valid_N[:, None] & (c < C)[None, :], other=0.0
            )
            x_MC = tl.load(
                x_TC + row_M[:, None] * stride_x + c[None, :], mask=valid_M[:, None] & (c < C)[None, :], other=0.0
            )
            if KIND == "row":
                acc_MN = tl.dot(
                    x_MC, tl.trans(code_NC.to(dtype)), acc_MN, input_precision="ieee", out_dtype=acc_MN.dtype
                )
            else:
                sum_MN = tl.dot(x_MC, tl.trans(code_NC.to(dtype)), input_precision="ieee")
                scale_N = tl.load(scale + n // 128 * G + g, mask=valid_N, other=0.0)
                if x_scale is None:
                    acc_MN += sum_MN * scale_N[None, :]
                else:
                    scale_M = tl.load(x_scale + row_M * G + g, mask=valid_M, other=0.0)
                    acc_MN += sum_MN * (scale_M[:, None] * scale_N[None, :])
    y_MN = acc_MN.to(tl.float32)
    if KIND == "row":
        y_MN *= tl.load(scale + n, mask=valid_N, other=0.0)[None, :]
        if x_scale is not None:
            y_MN *= tl.load(x_scale + row_M, mask=valid_M, other=0.0)[:, None]
    stored_MN = valid_M[:, None] & valid_N[None, :]
    at_MN = m.to(tl.int64)[:, None] * N + n[None, :]
    if partial_STN is not None:
        tl.store(partial_STN + tl.program_id(2).to(tl.int64) * T * N + at_MN, y_MN, mask=stored_MN)
    else:
        if bias_N is not None:
            y_MN += tl.load(bias_N + n, mask=valid_N, other=0.0).to(tl.float32)[None, :]
        tl.store(out_TN + at_MN, y_MN.to(out_TN.dtype.element_ty), mask=stored_MN)


@triton.jit(do_not_specialize=["size", "parts"])
def _add_parts(partial_STN, bias_N, out_TN, size, parts, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    y = tl.zeros([BLOCK], dtype=tl.float32)
    source = partial_STN + at
    for _ in range(parts):
        y += tl.load(source, mask=at < size, other=0.0)
        source += size
    if bias_N is not None:
        y += tl.load(bias_N + at % N).to(tl.float32)
    tl.store(out_TN + at, y.to(out_TN.dtype.element_ty), mask=at < size)


@triton.jit
def _quantise_rows(
    x_TC,
    codes_TC,
    scale,
    stride_x,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPED: tl.constexpr,
    LIMIT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    end = first + BLOCK if GROUPED else C
    largest = 0.0
    for begin in range(first, end, BLOCK):
        c = begin + tl.arange(0, BLOCK)
        x = tl.load(x_TC + row * stride_x + c, mask=c < C, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(x), 0))
    step = tl.maximum(largest / LIMIT, 1e-7)
    tl.store(scale + row * tl.num_programs(1) + tl.program_id(1), step)
    for begin in range(first, end, BLOCK):
        c = begin + tl.arange(0, BLOCK)
        x = tl.load(x_TC + row * stride_x + c, mask=c < C, other=0.0).to(tl.float32) / step
        x = tl.minimum(tl.maximum(x, -LIMIT), LIMIT)
        if codes_TC.dtype.element_ty == tl.int8:
            x = (x + ROUNDER) - ROUNDER
        tl.store(codes_TC + row * C + c, x.to(codes_TC.dtype.element_ty), mask=c < C)


@triton.jit
def _dequantise(
    codes,
    scale,
    base,
    out_NC,
    KIND: tl.constexpr,
    N: tl.constexpr,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    g = tl.program_id(1)
    valid_N = n < N
    G: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    dtype: tl.constexpr = out_NC.dtype.element_ty
    out = out_NC + n.to(tl.int64)[:, None] * C
    if KIND == "int4" or KIND == "mxfp4":
        HALF: tl.constexpr = BLOCK_C // 2
        j = tl.arange(0, HALF)
        pair_NC = tl.load(
            codes + n.to(tl.int64)[:, None] * (C // 2) + g * HALF + j[None, :], mask=valid_N[:, None], other=0
        )
        if KIND == "mxfp4":
            scale_N1 = _half_scale(tl.load(scale + g * N + n, mask=valid_N, other=0))[:, None]
            low_NC = _e2m1(pair_NC & 15, tl.float32) * scale_N1
            high_NC = _e2m1(pair_NC >> 4, tl.float32) * scale_N1
        else:
            scale_N1 = tl.load(scale + g * N + n, mask=valid_N, other=0.0).to(tl.float32)[:, None]
            base_N1 = tl.load(base + g * N + n, mask=valid_N, other=0.0).to(tl.float32)[:, None]
            low_NC = _four_bits(pair_NC & 15, dtype).to(tl.float32) * scale_N1 + base_N1
            high_NC = _four_bits(pair_NC >> 4, dtype).to(tl.float32) * scale_N1 + base_N1
        tl.store(out + g * BLOCK_C + j[None, :], low_NC.to(dtype), mask=valid_N[:, None])
        tl.store(out + g * BLOCK_C + HALF + j[None, :], high_NC.to(dtype), mask=valid_N[:, None])
    else:
        c = g * BLOCK_C + tl.arange(0, BLOCK_C)
        valid_NC = valid_N[:, None] & (c < C)[None, :]
        code_NC = tl.load(codes + n.to(tl.int64)[:, None] * C + c[None, :], mask=valid_NC, other=0.0).to(tl.float32)
        if KIND == "row":
            scale_N = tl.load(scale + n, mask=valid_N, other=0.0)
        else:
            scale_N = tl.load(scale + n // 128 * G + g, mask=valid_N, other=0.0)
        tl.store(out + c[None, :], (code_NC * scale_N[:, None]).to(dtype), mask=valid_NC)
