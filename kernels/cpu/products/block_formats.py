"""ggml's block formats of weights, MXFP4 among them, and the panels in which the kernels of `block_matmul` want them.

A row is a sequence of blocks. weight = (code - offset) * scale + base, with a scale for each 16 or 32 inputs. Blocks of
32 inputs have float16 scales; those of 256 have small integers times a float16. `block_rows` reads and packs them.

A panel is a sequence of units, one by block. A unit has the float16 scales of its outputs, the float16 bases if there
are any, then its groups of 32 inputs: the small scales, the small bases, and the codes cut into planes of 1, 2, 4 or 8
bits. A 32-bit lane of a plane has the bits of 4 inputs in its bytes, of 8 / bits steps of 4 inputs side by side.

A process that only compiles the formats' loops imports this module, which imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = 32  # inputs whose products are summed before they are scaled; rows have a scale for as many


@dataclass(frozen=True)
class BlockFormat:
    """A block format. `planes` are the bits of a code by plane, the lowest first."""

    name: str
    block_bytes: int
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


_LIST = (
    BlockFormat("Q8_0", 34, (8,), 128),
    BlockFormat("Q4_0", 18, (4,), 8),
    BlockFormat("Q4_1", 20, (4,), has_base=True),
    BlockFormat("Q5_0", 22, (4, 1), 16),
    BlockFormat("Q5_1", 24, (4, 1), has_base=True),
    BlockFormat("MXFP4", 17, (4, 1), 12),
    BlockFormat("Q2_K", 84, (2,), 0, 256, 16, has_base=True, joined=True),
    BlockFormat("Q3_K", 110, (2, 1), 4, 256, 16),
    BlockFormat("Q4_K", 144, (4,), 0, 256, has_base=True),
    BlockFormat("Q5_K", 176, (4, 1), 0, 256, has_base=True),
    BlockFormat("Q6_K", 210, (4, 2), 32, 256, 16),
)
BLOCK_FORMATS = {one.name: one for one in _LIST}
