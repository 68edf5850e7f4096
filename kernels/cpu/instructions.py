"""The processor's instructions for products, chosen once at start: vector size, sums in registers, dot products.

RAMIFORM_CPU (`loops`) masks them down. Generators of machine code take an `Instructions`; all else uses HOST.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from typing import Literal

from llvmlite import binding

from ... import loops

# How sums of products of bytes are taken: one instruction for four (VNNI), AVX2's for two, or plain widening.
ByteDot = Literal["vnni", "avx2", "plain"]


@dataclass(frozen=True)
class Instructions:
    """A set of instructions, and the sizes of blocks that its registers hold."""

    lanes: int  # of a vector of float32
    vectors: int  # of a panel
    registers: int  # of vectors
    bfloat16_dot: bool  # sums of two products of bfloat16 are taken by one step (dpbf16ps)
    byte_dot: ByteDot
    has_half: bool  # float16 is converted by one instruction
    byte_tables: bool = False  # bytes are looked up in tables of 128 by one instruction (VBMI)
    tiles: bool = False  # of bfloat16 and of bytes (AMX): their products are added by one instruction
    emulated: bool = False  # dot instructions and tiles are written out in plain arithmetic

    @property
    def width(self) -> int:
        """Outputs of a panel."""
        return self.lanes * self.vectors

    @property
    def ahead_lines(self) -> int:
        """Cache lines of coming weights that a step of a panel fetches: at least one, and not more than half of what it
        reads where that is two, because the processor fetches neighbours by itself. Those with tiles do not."""
        return max(1, 4 * self.width // (64 if self.tiles else 128))


GENERIC = Instructions(lanes=4, vectors=2, registers=16, bfloat16_dot=False, byte_dot="plain", has_half=False)
NEON = Instructions(lanes=4, vectors=4, registers=32, bfloat16_dot=False, byte_dot="plain", has_half=True)
AVX2 = Instructions(lanes=8, vectors=2, registers=16, bfloat16_dot=False, byte_dot="avx2", has_half=True)
AVX512 = Instructions(lanes=16, vectors=4, registers=32, bfloat16_dot=False, byte_dot="avx2", has_half=True)
AVX512_DOT = Instructions(
    lanes=16, vectors=4, registers=32, bfloat16_dot=True, byte_dot="vnni", has_half=True, byte_tables=True
)
EMULATED = Instructions(
    lanes=16, vectors=4, registers=32, bfloat16_dot=True, byte_dot="vnni", has_half=False, emulated=True
)

EMULATED_TILES = replace(EMULATED, tiles=True)


def choose(level: str, features: dict[str, bool], machine: str) -> Instructions:
    """Return the widest instructions of a processor up to `level`, one of `loops.CPU_LEVELS`. `features` are LLVM's
    names."""
    if level in ("avx512-emulated", "amx-emulated"):
        return EMULATED if level == "avx512-emulated" else EMULATED_TILES
    if machine in ("aarch64", "arm64"):
        return NEON
    if level == "generic" or not (features.get("avx2") and features.get("fma") and features.get("f16c")):
        return GENERIC
    if level == "avx2" or not (features.get("avx512f") and features.get("avx512bw") and features.get("avx512vl")):
        return AVX2
    if level in ("avx512-dot", "amx"):
        has_dot = bool(features.get("avx512bf16"))
        return Instructions(
            lanes=16,
            vectors=4,
            registers=32,
            bfloat16_dot=has_dot,
            byte_dot="vnni" if features.get("avx512vnni") else "avx2",
            has_half=True,
            byte_tables=bool(features.get("avx512vbmi")),
            tiles=level == "amx" and has_dot and all(features.get(f"amx-{part}") for part in ("tile", "bf16", "int8")),
        )
    return AVX512


HOST = choose(loops.CPU_LEVEL, dict(binding.get_host_cpu_features()), platform.machine())
