"""Weight matrices packed in panels for the product loops of `matmul`, in one of several formats.

A panel holds the weights of WIDTH outputs side by side, step by step: a step's 32 bits of each output make a vector.
Zeros fill the last panel. The matrix is held once: compiled loops find it by its descriptor.

Where rows are rounded to int8, some of their inputs stay floats, because they are much larger than their neighbours. A
group of inputs has one scale, so one large input would cost the others their precision. Models have such channels.
Large inputs have code 0, and their products are added as floats, behind the integers' sums and in the inputs' order, so
results do not depend on the batch either. They are listed behind a rounded row: their number as int32, four bytes that
are not used, and pairs of an int32 input and its float32 value.

Legend: P panels, S steps, W outputs of a panel, I inputs of a step, N outputs, C inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numba import carray, types
from numba.extending import register_jitable
from numpy.typing import NDArray

from ...huge_pages import zeros_in_huge_pages
from ...widening import widens
from ..compiled import compiled_in_order
from ..instructions import HOST
from ..pointers import pointer_to
from ..thread_pool import share_range
from .amx import MIN_ROWS, MIN_ROWS_OF_BYTES, STEP_BYTES, TILE_HEIGHT, usable
from .block_formats import BLOCK_FORMATS, GROUP
from .block_rows import decoded, pack_rows
from .unpacked import BLOCK_INPUTS

WIDTH = HOST.width

NUM_DESCRIPTOR_WORDS, TILES_FROM = 9, 8
NEVER = np.iinfo(np.int64).max  # rows from which on products go by tiles with widened weights
# Formats, the first number of a descriptor.
FLOAT32 = 0
BFLOAT16 = 1  # rows stay float32; exact for float32 models whose weights are bfloat16s
BFLOAT16_ROWS = 2  # rows are rounded to bfloat16 for the processor's dot product
# Rows are rounded to int8, with a scale per group of inputs. Weights are codes times scales:
INT8 = 3  # a scale per output
INT8_GROUPS = 4  # a scale per output and group
INT4 = 5  # a scale and a base per output and group: (code - 8) * scale + base

BLOCKS = 6  # ggml's block formats (`block_formats`), one or several

ROW_GROUP = 128  # inputs of a rows' group where weights have no groups; much larger inputs stay floats

LARGE_RATIO = 16  # of a large input's code to the mean of its group's magnitudes
_EXTRA_PLACES = 3  # of a row's list, beyond one for each group

_floats, _words, _halves = pointer_to(types.float32), pointer_to(types.int32), pointer_to(types.uint16)

_FILLED = TILE_HEIGHT if HOST.tiles else 1  # steps of BFLOAT16_ROWS that zeros fill
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


def set_widening(descriptor: NDArray[np.int64], *, on: bool) -> None:
    """Have a matrix that `widens` multiply by widened weights, or by codes."""
    descriptor[TILES_FROM] = 1 if on else NEVER


class PackedMatrix:
    """A weight matrix [N, C] in panels, and its bias.

    `descriptor` is int64 [NUM_DESCRIPTOR_WORDS]: format, outputs, inputs, group size (0 without groups), the
    addresses of codes, scales, bases (0 where the format has none) and the float32 bias, and the number of rows from
    which on products go by tiles (`amx`), 0 for none. With scales by group that is 1 where weights are widened; NEVER
    lets many rows go by tiles of bytes. The addresses hold as long as this object.

    Of BLOCKS, the address of codes is that of a table of sections of panels, that of scales their number. A section is
    int64 [5]: its last panel + 1, the address of its first one, a panel's bytes and units, and the address of its loop.
    """

    def __init__(self, kind: int, outputs: int, inputs: int, group: int, bias: torch.Tensor | None) -> None:
        if kind >= INT8 and (group % 32 or (kind != INT8 and inputs % group)):
            raise ValueError(f"groups of {group} of {inputs} inputs: products take multiples of 32 that divide them")
        self.outputs, self.inputs, self.num_panels = outputs, inputs, -(-outputs // WIDTH)
        self._bias = np.zeros(self.num_panels * WIDTH, np.float32)
        if bias is not None:
            self._bias[:outputs] = bias.detach().float().numpy()
        self._arrays: list[NDArray[np.generic]] = []
        self._formats: list[str] = []  # of the sections of BLOCKS
        self._sections: torch.Tensor | None = None  # int64 [sections, 5] of BLOCKS, until they have their loops
        self._descriptor: NDArray[np.int64] = np.array(
            [kind, outputs, inputs, group, 0, 0, 0, self._bias.ctypes.data, self._tile_rows(kind, group)], np.int64
        )
        self.widens = self._descriptor[TILES_FROM] == NEVER  # True: for a long prompt's rows

    @staticmethod
    def _tile_rows(kind: int, group: int) -> int:
        """Return the number of rows from which on products go by tiles; 0: none do."""
        if not usable():
            return 0
        if kind == INT8 and group % STEP_BYTES == 0:
            return MIN_ROWS_OF_BYTES
        if kind in (INT8_GROUPS, INT4, BLOCKS) and group <= BLOCK_INPUTS:
            return NEVER
        return MIN_ROWS if kind == BFLOAT16_ROWS else 0

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
        packed._hold(4, _panels(weight.view(_BITS[weight.dtype]), per_step, tiles=kind == BFLOAT16_ROWS and HOST.tiles))
        return packed

    @classmethod
    def of_int8(cls, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        """Pack int8 codes [N, C] with scales [N], or [N, G] of G groups of 32, 64, 96, ... inputs."""
        N, C = codes.shape
        by_group = scale.dim() == 2
        group = C // scale.shape[1] if by_group else min(ROW_GROUP, -(-C // 32) * 32)
        packed = cls(INT8_GROUPS if by_group else INT8, N, C, group, bias)
        packed._hold(4, _panels(codes.view(torch.uint8) ^ 128, 4, num_steps=-(-C // group) * group // 4))
        if by_group:
            packed._hold_scales(scale, None)
        else:
            packed._hold(5, packed._by_output(scale))
        return packed

    @classmethod
    def of_int4(
        cls, codes: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, bias: torch.Tensor | None = None
    ) -> PackedMatrix:
        """Pack codes in [0, 16), two to a byte [N, C / 2] with the first one low, with scales and bases [N, G]:
        weight = (code - 8) * scale + base.

        Groups have 32, 64, 96, ... inputs. Scales and bases are rounded to float16, whose range is shifted by output.
        """
        N, C = len(codes), 2 * codes.shape[1]
        packed = cls(INT4, N, C, C // scale.shape[1], bias)
        order = codes.view(N, C // 8, 4)
        # A byte of a step has the codes of its inputs j and 4 + j.
        first, second = order[..., :2], order[..., 2:]
        low = torch.stack((first & 15, first >> 4), dim=3).flatten(2)
        high = torch.stack((second & 15, second >> 4), dim=3).flatten(2)
        packed._hold(4, _panels((low | high << 4).view(N, C // 2), 4))
        packed._hold_scales(scale, base)
        return packed

    @classmethod
    def of_blocks(cls, parts: Sequence[tuple[str, torch.Tensor]], bias: torch.Tensor | None = None) -> PackedMatrix:
        """Pack stored rows uint8 [N, row bytes] of block formats, given by name, one part below the other.

        Raises ValueError where another part than the last does not fill its panels.
        """
        if any(len(rows) % WIDTH for _, rows in parts[:-1]):
            raise ValueError(f"parts of {[len(rows) for _, rows in parts]} outputs: panels take {WIDTH}")
        block = BLOCK_FORMATS[parts[0][0]]
        inputs = parts[0][1].shape[1] // block.block_bytes * block.block
        packed = cls(BLOCKS, sum(len(rows) for _, rows in parts), inputs, GROUP, bias)
        sections, end = [], 0
        for name, rows in parts:
            panels = pack_rows(BLOCK_FORMATS[name], rows, WIDTH)
            packed._arrays.append(panels.numpy())
            end += len(panels)
            sections.append([end, panels.data_ptr(), panels[0].nbytes, panels.shape[1], 0])
        packed._sections, packed._formats = torch.tensor(sections), [name for name, _ in parts]
        packed._hold(4, packed._sections)
        packed._descriptor[5] = len(parts)
        return packed

    @property
    def descriptor(self) -> NDArray[np.int64]:
        """The numbers by which loops find the matrix, which `widened_products` has a part in.

        The first use waits for the loops of its block formats.
        """
        if self._sections is not None:
            from .block_matmul import loop_address  # here, because it imports the product loops

            for section, name in enumerate(self._formats):
                self._sections[section, 4] = loop_address(name)
            self._sections = None
        if not (self.widens and widens()):
            return self._descriptor
        widening = self._descriptor.copy()
        set_widening(widening, on=True)
        return widening

    def round_alike(self) -> None:
        """Multiply few and many rows by the same instructions, so that a row's numbers do not depend on how many."""
        self.widens = False
        if self._descriptor[0] == BFLOAT16_ROWS:  # sums of codes are exact, by tiles too
            self._descriptor[TILES_FROM] = 0

    def weights(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return rows of the weight in float32 [len(outputs), C], of a matrix of one block format."""
        [name] = self._formats
        return decoded(BLOCK_FORMATS[name], torch.from_numpy(self._arrays[0]), outputs, WIDTH)

    def _by_output(self, numbers_N: torch.Tensor) -> torch.Tensor:
        """Return float32 [P, W]."""
        out = torch.zeros(self.num_panels * WIDTH)
        out[: self.outputs] = numbers_N.float().flatten()
        return out.view(-1, WIDTH)

    def _hold_scales(self, scale_NG: torch.Tensor, base_NG: torch.Tensor | None) -> None:
        """Keep scales and bases as float16s, times powers of two that the outputs' sums are multiplied by."""
        scale_NG = scale_NG.float()
        largest_N = scale_NG.abs().amax(1)
        if base_NG is not None:
            largest_N = torch.maximum(largest_N, base_NG.float().abs().amax(1))
        exponent_N = torch.frexp(largest_N)[1] - 15  # numbers are below 2^15
        factor_N1 = torch.ldexp(torch.ones(len(scale_NG)), exponent_N)[:, None]

        def halves(numbers_NG: torch.Tensor) -> torch.Tensor:
            return _panels((numbers_NG / factor_N1).half().view(torch.int16), 1).flatten(1)

        multipliers = self._by_output(factor_N1).view(torch.int16)
        self._hold(5, torch.cat((multipliers, halves(scale_NG)), dim=1))
        if base_NG is not None:
            self._hold(6, halves(base_NG.float()))

    def _hold(self, place: int, array: torch.Tensor) -> None:
        """Keep an array, and write its address to the descriptor."""
        self._arrays.append(array.numpy())
        self._descriptor[place] = array.data_ptr()

    def dense(self) -> torch.Tensor:
        """Return the weight [N, C], float32 or bfloat16, of those formats."""
        assert self.descriptor[0] <= BFLOAT16_ROWS
        panels = torch.from_numpy(self._arrays[0])
        if panels.dim() == 7:  # tiles
            panels = panels.permute(0, 2, 4, 1, 3, 5, 6).flatten(3, 5).flatten(1, 2)
        panels = panels.permute(0, 2, 1, 3)
        rows = panels.reshape(self.num_panels * WIDTH, -1)[: self.outputs, : self.inputs].contiguous()
        return rows.view(torch.float32 if self.descriptor[0] == FLOAT32 else torch.bfloat16)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that a product reads, padding included."""
        return self._bias.nbytes + sum(array.nbytes for array in self._arrays)


def _panels(
    numbers_NC: torch.Tensor, per_step: int, num_steps: int | None = None, *, tiles: bool = False
) -> torch.Tensor:
    """Return [P, S, W, I] of I = `per_step` inputs; zeros fill the last steps and the last panel.

    With `tiles` a panel is [2, S / 16, 2, 16, 16, I]: of each half of the outputs 16 steps of 16 outputs, those of the
    others, and the next steps.
    """
    N, C = numbers_NC.shape
    panels, steps = -(-N // WIDTH), num_steps or -(-C // per_step)
    if C % per_step:
        numbers_NC = torch.nn.functional.pad(numbers_NC, (0, -C % per_step))
    elif numbers_NC.storage_offset() % per_step or numbers_NC.data_ptr() % 4:  # lanes begin at places of their size
        numbers_NC = numbers_NC.clone()
    lanes = torch.int32 if numbers_NC.itemsize * per_step == 4 else torch.int16
    lanes_NS = numbers_NC.contiguous().view(lanes).numpy()
    if tiles:
        out = zeros_in_huge_pages((panels, 2, -(-steps // TILE_HEIGHT), 2, TILE_HEIGHT, TILE_HEIGHT), lanes)
        pack = _pack_tiles
    else:
        out = zeros_in_huge_pages((panels, steps, WIDTH), lanes)
        pack = _pack
    target = out.numpy()
    share_range(lambda first, end: pack(lanes_NS[first * WIDTH :], target[first:end]), panels, out.numel())
    return out.unsqueeze(-1).view(numbers_NC.dtype)


@compiled_in_order(*(f"void({kind}[:,::1], {kind}[:,:,::1])" for kind in ("int32", "int16")))
def _pack(lanes_NS: NDArray[np.integer], out_PSW: NDArray[np.integer]) -> None:
    """Write lanes step by step. A block of steps of a panel stays in the first cache."""
    N, S = lanes_NS.shape
    P, _, W = out_PSW.shape
    for panel in range(P):
        for begin in range(0, S, TILE_HEIGHT):
            for w in range(min(W, N - panel * W)):
                lanes_S = lanes_NS[panel * W + w, begin : begin + TILE_HEIGHT]
                if len(lanes_S) == TILE_HEIGHT:
                    for s in range(TILE_HEIGHT):  # as often as the compiler knows: twice as fast
                        out_PSW[panel, begin + s, w] = lanes_S[s]
                else:
                    for s in range(len(lanes_S)):
                        out_PSW[panel, begin + s, w] = lanes_S[s]


@compiled_in_order("void(int32[:,::1], int32[:,:,:,:,:,::1])")
def _pack_tiles(lanes_NS: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    """Write lanes tile by tile, as `_panels` says."""
    N = len(lanes_NS)
    for panel in range(len(out)):
        for tile in range(out.shape[2]):
            for w in range(min(WIDTH, N - panel * WIDTH)):
                lanes_S = lanes_NS[panel * WIDTH + w, tile * TILE_HEIGHT : (tile + 1) * TILE_HEIGHT]
                target_SW = out[panel, w // (2 * TILE_HEIGHT), tile, w // TILE_HEIGHT % 2]
                for s in range(len(lanes_S)):
                    target_SW[s, w % TILE_HEIGHT] = lanes_S[s]


@register_jitable  # type: ignore[untyped-decorator]
def stored_steps(kind: int, inputs: int) -> int:
    """Return the steps of a panel of floats as it is stored: zeros fill tiles."""
    steps = inputs if kind == FLOAT32 else (inputs + 1) // 2
    return -(-steps // _FILLED) * _FILLED if kind == BFLOAT16_ROWS else steps


@compiled_in_order("int64(int64)")
def list_bytes(groups: int) -> int:
    """Return the bytes of a row's list."""
    return 8 * (groups + _EXTRA_PLACES + 1)


@compiled_in_order("int64(float32[::1], uint8[::1], int64, int64, int64, int64)")
def set_apart(
    x_G: NDArray[np.float32], codes_G: NDArray[np.uint8], total: int, first: int, groups: int, to: int
) -> int:
    """List a group's large inputs at address `to` and return the bits of the largest magnitude of the others.

    `codes_G` are the group's codes, `total` is the sum of their magnitudes, `first` the number of its first input.
    Large inputs get code -128, which no other has. Returns -1 if there are none, or more than there is room for.
    """
    n, most = len(x_G), LARGE_RATIO * total
    count = np.int32(0)
    for i in range(n):
        count += np.int32(abs(np.int32(np.int8(codes_G[i]))) * n > most)
    length = carray(_words(to), (1,))
    if count == 0 or length[0] + count > groups + _EXTRA_PLACES:
        return -1
    largest = np.int32(0)
    for i in range(n):
        if abs(np.int32(np.int8(codes_G[i]))) * n > most:
            place = to + 8 * (length[0] + 1)
            carray(_words(place), (1,))[0] = first + i
            carray(_floats(place + 4), (1,))[0] = x_G[i]
            length[0] += 1
            codes_G[i] = np.uint8(128)
        else:
            magnitude = np.int32(np.float32(x_G[i]).view(np.int32) & np.int32(0x7FFFFFFF))
            largest = np.int32(max(largest, magnitude))
    return np.int64(largest)


@compiled_in_order("float32(uint16)")
def _half(bits: np.uint16) -> np.float32:
    """Convert a finite float16."""
    sign = np.uint32(np.uint32(bits & np.uint16(0x8000)) << np.uint32(16))
    magnitude = np.uint32(np.uint32(bits & np.uint16(0x7FFF)) << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    return np.uint32(np.float32(magnitude).view(np.uint32) | sign).view(np.float32)  # type: ignore[no-any-return]


@compiled_in_order(f"void({', '.join(['int64'] * 13)})")
def add_large_inputs(
    kind: int,
    outputs: int,
    groups: int,
    group: int,
    codes: int,
    scales: int,
    bases: int,
    rows: int,
    row_bytes: int,
    num_rows: int,
    y: int,
    first_panel: int,
    last_panel: int,
) -> None:
    """Add the products of all rows' large inputs and some panels. Arrays are given by their addresses."""
    per_word, bits = (8, 4) if kind == INT4 else (4, 8)
    mask, middle = np.int32((1 << bits) - 1), np.int32(1 << (bits - 1))
    panel_bytes = groups * group * WIDTH * bits // 8
    scale_bytes = WIDTH * (4 if kind == INT8 else 4 + 2 * groups)
    for t in range(num_rows):
        to = rows + t * row_bytes + groups * (group + 8)
        for entry in range(1, carray(_words(to), (1,))[0] + 1):
            c, value = carray(_words(to + 8 * entry), (1,))[0], carray(_floats(to + 8 * entry + 4), (1,))[0]
            # Four bits: a byte of a step has the codes of its inputs j and 4 + j.
            shift = np.int32(8 * (c % 4) + (4 * (c % 8 // 4) if kind == INT4 else 0))
            half_place = 2 * WIDTH * (c // group)
            for panel in range(first_panel, last_panel):
                width = min(WIDTH, outputs - panel * WIDTH)
                words = carray(_words(codes + panel * panel_bytes + 4 * WIDTH * (c // per_word)), (width,))
                factors = carray(_floats(scales + panel * scale_bytes), (width,))
                y_W = carray(_floats(y + (t * outputs + panel * WIDTH) * 4), (width,))
                if kind == INT8:
                    for w in range(width):
                        code = np.float32(np.int32(np.int32(np.int32(words[w] >> shift) & mask) - middle))
                        y_W[w] += value * (code * factors[w])
                    continue
                halves = carray(_halves(scales + panel * scale_bytes + 4 * WIDTH + half_place), (width,))
                if kind == INT4:
                    base = carray(_halves(bases + panel * 2 * WIDTH * groups + half_place), (width,))
                    for w in range(width):
                        code = np.float32(np.int32(np.int32(np.int32(words[w] >> shift) & mask) - middle))
                        y_W[w] += value * ((code * _half(halves[w]) + _half(base[w])) * factors[w])
                else:
                    for w in range(width):
                        code = np.float32(np.int32(np.int32(np.int32(words[w] >> shift) & mask) - middle))
                        y_W[w] += value * (code * _half(halves[w]) * factors[w])
