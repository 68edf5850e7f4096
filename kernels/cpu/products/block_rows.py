"""Rows of ggml's block formats: how a file has them, and how they are packed in panels (`block_formats`).

Layouts of files: ggml-common.h.

Legend: N rows, B blocks of a row, W outputs of a panel, P panels, U units, G groups of a unit, S scales of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ...huge_pages import zeros_in_huge_pages
from .block_formats import GROUP, BlockFormat

_STEPS = 8  # of a group: its inputs by four
_CHUNK_NUMBERS = 1 << 19  # packed at a time: what each operator reads and writes stays in the second cache


class Blocks(NamedTuple):
    """Numbers of rows in a block format."""

    codes: torch.Tensor  # uint8 [N, inputs]
    scale: torch.Tensor  # float16 [N, B]
    base: torch.Tensor | None = None  # float16 [N, B]
    scales: torch.Tensor | None = None  # uint8 or int8 [N, B, G * S]
    bases: torch.Tensor | None = None  # uint8 [N, B, G * S]


def pack_rows(form: BlockFormat, rows: torch.Tensor, width: int) -> torch.Tensor:
    """Return the panels uint8 [P, U, unit] of the stored rows uint8 [N, row bytes]; zeros fill the last one."""
    N, units = len(rows), rows.shape[1] // form.block_bytes
    panels = -(-N // width)
    out = zeros_in_huge_pages((panels, units, form.unit_bytes * width), torch.uint8)
    each = max(1, _CHUNK_NUMBERS // (width * units * form.block))
    for first in range(0, panels, each):
        part = rows[first * width : (first + each) * width]
        missing = -len(part) % width
        if missing:
            part = torch.cat((part, part.new_zeros((missing, part.shape[1]))))
        _pack(form, part.view(-1, units, form.block_bytes), width, out[first : first + each])
    return out


def _pack(form: BlockFormat, blocks: torch.Tensor, width: int, out: torch.Tensor) -> None:
    found, panels = _READERS[form.name](blocks), len(out)
    units, header = blocks.shape[1], form.header_bytes * width
    for number, half in enumerate(one for one in (found.scale, found.base) if one is not None):
        place = out[..., 2 * width * number : 2 * width * (number + 1)].view(torch.float16)
        place.copy_(half.view(panels, width, units).transpose(1, 2))
    groups = out[..., header:].unflatten(-1, (form.groups, -1))
    small = [
        one.view(torch.uint8).view(panels, width, units, form.groups, -1).permute(0, 2, 3, 4, 1)
        for one in (found.scales, found.bases)
        if one is not None
    ]
    if form.joined:
        small = [small[0] | small[1] << 4]
    if small:
        groups[..., : form.scale_bytes * width].unflatten(-1, (-1, width)).copy_(torch.cat(small, dim=3))
    # Codes of four inputs at a time, as the bytes of an int32.
    fours = found.codes.view(torch.int32).view(panels, width, -1).transpose(1, 2).contiguous()
    shift, at = 0, form.scale_bytes * width
    for bits in form.planes:
        steps = fours.view(panels, units, form.groups, bits, 8 // bits, width)
        word = steps[..., 0, :]
        if bits < 8:
            mask = ((1 << bits) - 1) * 0x01010101
            word = (word >> shift) & mask
            for place in range(1, 8 // bits):
                word |= ((steps[..., place, :] >> shift) & mask) << (bits * place)
        size = 4 * bits * width
        groups[..., at : at + size].view(torch.int32).unflatten(-1, (bits, width)).copy_(word)
        shift, at = shift + bits, at + size


def decoded(form: BlockFormat, panels: torch.Tensor, outputs: torch.Tensor, width: int) -> torch.Tensor:
    """Return rows of the weight in float32 [len(outputs), inputs], decoded from panels that `pack_rows` made."""
    panel, lane = (outputs // width)[:, None, None], (outputs % width)[:, None, None]
    places, strides = (part.to(torch.int64) for part in _places(form, width))
    units = torch.arange(panels.shape[1])[None, :, None]
    found = panels[panel, units, places + strides * lane]  # [T, U, unit_bytes]
    size = form.header_bytes
    halves = found[..., :size].contiguous().view(torch.float16).float()
    groups = found[..., size:].view(*found.shape[:2], form.groups, form.group_bytes)
    small, words = groups[..., : form.scale_bytes], groups[..., form.scale_bytes :]
    codes, shift, at = torch.zeros((*groups.shape[:3], _STEPS, 4), dtype=torch.int16), 0, 0
    for bits in form.planes:
        plane = words[..., 4 * at : 4 * (at + bits)].reshape(*groups.shape[:3], bits, 1, 4)
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
        steps = ((plane >> shifts) & ((1 << bits) - 1)).view(*groups.shape[:3], _STEPS, 4)
        codes |= steps.to(torch.int16) << shift
        shift, at = shift + bits, at + bits
    count = GROUP // form.scale_inputs
    numbers = (codes - form.offset).float().view(*groups.shape[:3], count, form.scale_inputs)
    scale = halves[..., 0][..., None, None, None]
    base = halves[..., 1][..., None, None, None] if form.has_base else None
    if form.has_small_scales:
        scales = small & 15 if form.joined else small[..., :count]
        signed = scales.contiguous().view(torch.int8).float()
        scale = scale * signed[..., None]
        if base is not None:
            bases = small >> 4 if form.joined else small[..., count:]
            base = base * bases.float()[..., None]
    out = numbers * scale
    return (out if base is None else out + base).view(len(outputs), panels.shape[1] * form.block)


def _places(form: BlockFormat, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the first output of a panel has its bytes in a unit, and the step from output to output."""
    places, strides, start = [], [], 0
    items = [2] * (form.header_bytes // 2) + ([1] * form.scale_bytes + [4] * form.bits) * form.groups
    for size in items:
        places += range(start, start + size)
        strides += [size] * size
        start += size * width
    return torch.tensor(places), torch.tensor(strides)


def _half(two_bytes: torch.Tensor) -> torch.Tensor:
    """Return float16 [N, B]."""
    return two_bytes.contiguous().view(torch.float16)[..., 0]


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return all low nibbles, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _bits(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the lowest bits of all bytes, then the next ones."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    return ((packed[..., None, :] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def _halves(blocks: torch.Tensor) -> torch.Tensor:
    """Split a block's bytes into those of its two halves."""
    return blocks.view(*blocks.shape[:-1], 2, -1)


def _rows(codes: torch.Tensor) -> torch.Tensor:
    return codes.reshape(len(codes), -1)


# The bits of each byte, as eight bytes of 0 or 16.
_SIXTEENS = (((torch.arange(256)[:, None] >> torch.arange(8)) & 1) << 4).to(torch.uint8)


def _fifth_bits(four_bytes: torch.Tensor) -> torch.Tensor:
    """Return the bits in order, as multiples of 16."""
    return _SIXTEENS.view(torch.int64)[:, 0][four_bytes.to(torch.int64)].view(torch.uint8)


def _q8_0(blocks: torch.Tensor) -> Blocks:
    return Blocks(_rows(blocks[..., 2:] ^ 128), _half(blocks[..., :2]))


def _q4_0(blocks: torch.Tensor) -> Blocks:
    return Blocks(_rows(_nibbles(blocks[..., 2:])), _half(blocks[..., :2]))


def _q4_1(blocks: torch.Tensor) -> Blocks:
    return Blocks(_rows(_nibbles(blocks[..., 4:])), _half(blocks[..., :2]), _half(blocks[..., 2:4]))


def _q5_0(blocks: torch.Tensor) -> Blocks:
    return Blocks(_rows(_nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])), _half(blocks[..., :2]))


def _q5_1(blocks: torch.Tensor) -> Blocks:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return Blocks(_rows(codes), _half(blocks[..., :2]), _half(blocks[..., 2:4]))


# Twice the numbers of e2m1, the sign last, plus 12: 0, 1/2, 1, 3/2, 2, 3, 4, 6.
_E2M1 = torch.tensor([12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0], dtype=torch.uint8)


def _mxfp4(blocks: torch.Tensor) -> Blocks:
    """Read blocks of a scale, a power of two with a bias of 127, and e2m1 numbers. Scales below 2^-24 become 0."""
    half_scale = torch.ldexp(torch.ones(blocks.shape[:-1]), blocks[..., 0].to(torch.int32) - 128)
    return Blocks(_rows(_E2M1[_nibbles(blocks[..., 1:]).to(torch.int32)]), half_scale.half())


def _q2_k(blocks: torch.Tensor) -> Blocks:
    codes = _bits(_halves(blocks[..., 16:80]), 2)
    small = blocks[..., :16]
    return Blocks(_rows(codes), _half(blocks[..., 80:82]), -_half(blocks[..., 82:84]), small & 15, small >> 4)


def _q3_k(blocks: torch.Tensor) -> Blocks:
    codes = _bits(_halves(blocks[..., 32:96]), 2).flatten(-2) | _bits(blocks[..., :32], 1) << 2
    low, high = _nibbles(blocks[..., 96:104]), _bits(blocks[..., 104:108], 2)
    scales = ((low | high << 4).view(torch.int8) - 32).contiguous()
    return Blocks(_rows(codes), _half(blocks[..., 108:110]), None, scales)


def _six_bit_scales(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the scales and bases of eight groups.

    Those of the first four are in the low bits of bytes 0-3 and 4-7. The last four have their low bits in bytes 8-11
    and their high two above those of the first four.
    """
    low, middle, high = packed.split(4, dim=-1)
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), dim=-1)
    bases = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), dim=-1)
    return scales, bases


def _q4_k(blocks: torch.Tensor) -> Blocks:
    codes = _nibbles(blocks[..., 16:].view(*blocks.shape[:-1], 4, 32))
    return Blocks(_rows(codes), _half(blocks[..., :2]), -_half(blocks[..., 2:4]), *_six_bit_scales(blocks[..., 4:16]))


def _q5_k(blocks: torch.Tensor) -> Blocks:
    low = _nibbles(blocks[..., 48:].view(*blocks.shape[:-1], 4, 32)).flatten(-2)
    codes = low | _bits(blocks[..., 16:48], 1) << 4
    return Blocks(_rows(codes), _half(blocks[..., :2]), -_half(blocks[..., 2:4]), *_six_bit_scales(blocks[..., 4:16]))


def _q6_k(blocks: torch.Tensor) -> Blocks:
    low, high = _nibbles(_halves(blocks[..., :128])), _bits(_halves(blocks[..., 128:192]), 2)
    scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return Blocks(_rows(low | high << 4), _half(blocks[..., 208:210]), None, scales)


# uint8 [N, B, block_bytes] to numbers, by format
_READERS: dict[str, Callable[[torch.Tensor], Blocks]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "MXFP4": _mxfp4,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
