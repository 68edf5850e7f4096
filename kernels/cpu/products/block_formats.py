"""ggml's block formats of weights, MXFP4 among them, and their rows packed in panels for the kernels of `block_matmul`.

A row is a sequence of blocks. weight = (code - offset) * scale + base, with a scale for each 16 or 32 inputs. Blocks of
32 inputs have float16 scales; those of 256 have small integers times a float16. Layouts of files: ggml-common.h.

A panel is a sequence of units, one by block. A unit has the float16 scales of its outputs, the float16 bases if there
are any, then its groups of 32 inputs: the small scales, the small bases, and the codes cut into planes of 1, 2, 4 or 8
bits. A 32-bit lane of a plane has the bits of 4 inputs in its bytes, of 8 / bits steps of 4 inputs side by side.

Legend: N rows, B blocks of a row, W outputs of a panel, P panels, U units, G groups of a unit, S scales of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

GROUP = 32  # inputs whose products are summed before they are scaled; rows have a scale for as many
_STEPS = 8  # of a group: its inputs by four
_CHUNK_NUMBERS = 1 << 22  # packed at a time


class Blocks(NamedTuple):
    """Numbers of rows in a block format."""

    codes: torch.Tensor  # uint8 [N, inputs]
    scale: torch.Tensor  # float16 [N, B]
    base: torch.Tensor | None = None  # float16 [N, B]
    scales: torch.Tensor | None = None  # uint8 or int8 [N, B, G * S]
    bases: torch.Tensor | None = None  # uint8 [N, B, G * S]


@dataclass(frozen=True)
class BlockFormat:
    """A block format. `planes` are the bits of a code by plane, the lowest first."""

    name: str
    block_bytes: int
    read: Callable[[torch.Tensor], Blocks]  # reads uint8 [N, B, block_bytes]
    planes: tuple[int, ...]
    offset: int = 0
    block: int = 32  # inputs of a block
    scale_inputs: int = 32  # inputs of a scale
    has_base: bool = False
    joined: bool = False  # small scales and bases of four bits share a byte

    def __post_init__(self) -> None:
        assert self.bits < 8 or self.offset == 128  # codes of eight bits are multiplied as signed bytes

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return sum(self.planes)

    @property
    def groups(self) -> int:
        """Groups of a unit."""
        return self.block // GROUP

    @property
    def has_small_scales(self) -> bool:
        return self.groups > 1

    @property
    def is_costly(self) -> bool:
        """True if a group takes more to unpack than one shift and mask of its codes."""
        return self.bits < 4 or len(self.planes) > 1 or self.has_small_scales

    @property
    def scale_bytes(self) -> int:
        """Bytes of the small scales and bases of an output and group."""
        if not self.has_small_scales:
            return 0
        return GROUP // self.scale_inputs * (2 if self.has_base and not self.joined else 1)

    @property
    def header_bytes(self) -> int:
        """Bytes of an output and unit in front of the groups."""
        return 4 if self.has_base else 2

    @property
    def group_bytes(self) -> int:
        """Bytes of an output and group."""
        return self.scale_bytes + 4 * self.bits

    @property
    def unit_bytes(self) -> int:
        """Bytes of an output and unit."""
        return self.header_bytes + self.groups * self.group_bytes

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row of the file. Raises ValueError when blocks do not fill it."""
        if inputs % self.block:
            raise ValueError(f"rows of {inputs} do not divide into blocks of {self.block}")
        return inputs // self.block * self.block_bytes

    def pack(self, rows: torch.Tensor, width: int) -> torch.Tensor:
        """Return the panels uint8 [P, U, unit] of the stored rows uint8 [N, row bytes]; zeros fill the last one."""
        N, units = len(rows), rows.shape[1] // self.block_bytes
        panels = -(-N // width)
        out = torch.empty((panels, units, self.unit_bytes * width), dtype=torch.uint8)
        each = max(1, _CHUNK_NUMBERS // (width * units * self.block))
        for first in range(0, panels, each):
            part = rows[first * width : (first + each) * width]
            missing = -len(part) % width
            if missing:
                part = torch.cat((part, part.new_zeros((missing, part.shape[1]))))
            self._pack(part.view(-1, units, self.block_bytes), width, out[first : first + each])
        return out

    def _pack(self, blocks: torch.Tensor, width: int, out: torch.Tensor) -> None:
        found, panels = self.read(blocks), len(out)
        units, header = blocks.shape[1], self.header_bytes * width
        for number, half in enumerate(one for one in (found.scale, found.base) if one is not None):
            place = out[..., 2 * width * number : 2 * width * (number + 1)].view(torch.float16)
            place.copy_(half.view(panels, width, units).transpose(1, 2))
        groups = out[..., header:].unflatten(-1, (self.groups, -1))
        small = [
            one.view(torch.uint8).view(panels, width, units, self.groups, -1).permute(0, 2, 3, 4, 1)
            for one in (found.scales, found.bases)
            if one is not None
        ]
        if self.joined:
            small = [small[0] | small[1] << 4]
        if small:
            groups[..., : self.scale_bytes * width].unflatten(-1, (-1, width)).copy_(torch.cat(small, dim=3))
        # Codes of four inputs at a time, as the bytes of an int32.
        fours = found.codes.view(torch.int32).view(panels, width, -1).transpose(1, 2).contiguous()
        shift, at = 0, self.scale_bytes * width
        for bits in self.planes:
            steps = fours.view(panels, units, self.groups, bits, 8 // bits, width)
            word = steps[..., 0, :]
            if bits < 8:
                mask = ((1 << bits) - 1) * 0x01010101
                word = (word >> shift) & mask
                for place in range(1, 8 // bits):
                    word |= ((steps[..., place, :] >> shift) & mask) << (bits * place)
            size = 4 * bits * width
            groups[..., at : at + size].view(torch.int32).unflatten(-1, (bits, width)).copy_(word)
            shift, at = shift + bits, at + size

    def weights(self, panels: torch.Tensor, outputs: torch.Tensor, width: int) -> torch.Tensor:
        """Return rows of the weight in float32 [len(outputs), inputs], decoded from panels that `pack` made."""
        panel, lane = (outputs // width)[:, None, None], (outputs % width)[:, None, None]
        places, strides = (part.to(torch.int64) for part in self._places(width))
        units = torch.arange(panels.shape[1])[None, :, None]
        found = panels[panel, units, places + strides * lane]  # [T, U, unit_bytes]
        size = self.header_bytes
        halves = found[..., :size].contiguous().view(torch.float16).float()
        groups = found[..., size:].view(*found.shape[:2], self.groups, self.group_bytes)
        small, words = groups[..., : self.scale_bytes], groups[..., self.scale_bytes :]
        codes, shift, at = torch.zeros((*groups.shape[:3], _STEPS, 4), dtype=torch.int16), 0, 0
        for bits in self.planes:
            plane = words[..., 4 * at : 4 * (at + bits)].reshape(*groups.shape[:3], bits, 1, 4)
            shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
            steps = ((plane >> shifts) & ((1 << bits) - 1)).view(*groups.shape[:3], _STEPS, 4)
            codes |= steps.to(torch.int16) << shift
            shift, at = shift + bits, at + bits
        count = GROUP // self.scale_inputs
        numbers = (codes - self.offset).float().view(*groups.shape[:3], count, self.scale_inputs)
        scale = halves[..., 0][..., None, None, None]
        base = halves[..., 1][..., None, None, None] if self.has_base else None
        if self.has_small_scales:
            scales = small & 15 if self.joined else small[..., :count]
            signed = scales.contiguous().view(torch.int8).float()
            scale = scale * signed[..., None]
            if base is not None:
                bases = small >> 4 if self.joined else small[..., count:]
                base = base * bases.float()[..., None]
        out = numbers * scale
        return (out if base is None else out + base).view(len(outputs), panels.shape[1] * self.block)

    def _places(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the first output of a panel has its bytes in a unit, and the step from output to output."""
        places, strides, start = [], [], 0
        items = [2] * (self.header_bytes // 2) + ([1] * self.scale_bytes + [4] * self.bits) * self.groups
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


_LIST = (
    BlockFormat("Q8_0", 34, _q8_0, (8,), 128),
    BlockFormat("Q4_0", 18, _q4_0, (4,), 8),
    BlockFormat("Q4_1", 20, _q4_1, (4,), has_base=True),
    BlockFormat("Q5_0", 22, _q5_0, (4, 1), 16),
    BlockFormat("Q5_1", 24, _q5_1, (4, 1), has_base=True),
    BlockFormat("MXFP4", 17, _mxfp4, (4, 1), 12),
    BlockFormat("Q2_K", 84, _q2_k, (2,), 0, 256, 16, has_base=True, joined=True),
    BlockFormat("Q3_K", 110, _q3_k, (2, 1), 4, 256, 16),
    BlockFormat("Q4_K", 144, _q4_k, (4,), 0, 256, has_base=True),
    BlockFormat("Q5_K", 176, _q5_k, (4, 1), 0, 256, has_base=True),
    BlockFormat("Q6_K", 210, _q6_k, (4, 2), 32, 256, 16),
)
BLOCK_FORMATS = {one.name: one for one in _LIST}
