"""Compilation of recorded launches without a GPU, with what a review of a kernel asks for.

Needs kernels that were imported without TRITON_INTERPRET, so tests use it in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from ramiform.kernels.triton.launching import Launch


class Compiled(NamedTuple):
    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    buffers: int  # tiles of the largest pipelined load that shared memory holds; 0: nothing is pipelined
    waits: int  # groups of loads that may be under way when the loop goes on, at least
    loops: list[int]  # machine instructions of each loop, if they were counted
    doubles: int  # sums, products and quotients of float64


def compile_launch(launch: Launch, capability: int, *, counts_loops: bool) -> Compiled:
    """Compile a launch as Triton specialises it: by divisibility of arguments by 16, with 1 and None as constants."""
    kernel = compiled_kernel(launch, capability)
    ptx, ttgir = kernel.asm["ptx"], kernel.asm["ttgir"]
    registers, spilled = _assembled(ptx, capability)
    buffers, waits = pipelining(ttgir)
    return Compiled(
        launch.kernel.__name__,
        registers,
        spilled,
        kernel.metadata.shared,
        buffers,
        waits,
        loop_instructions(kernel.asm["cubin"]) if counts_loops else [],
        len(re.findall(r"^\s*(?:@\S+\s+)?(?:add|sub|mul|fma|mad|div|rcp|sqrt)\b\S*\.f64\b", ptx, re.MULTILINE)),
    )


def compiled_kernel(launch: Launch, capability: int) -> triton.compiler.CompiledKernel:
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.arguments[parameter.name]
        specialised = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialised and type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + triton._utils.canonicalize_dtype(value.dtype)
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            assert isinstance(value, int)
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if specialised and value % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options))


def pipelining(ttgir: str) -> tuple[int, int]:
    """Return the buffers of the largest load that a loop fetches ahead, and the least of the waits in loops."""
    rings = re.findall(r"ttg\.local_alloc\s*:\s*\(\) -> !ttg\.memdesc<(\d+)x(\d+)x(\d+)x", ttgir)
    largest = max(rings, key=lambda ring: int(ring[1]) * int(ring[2]), default=("0", "0", "0"))
    loops = re.findall(r"scf\.for .*?scf\.yield", ttgir, re.DOTALL)
    waits = [int(num) for loop in loops for num in re.findall(r"ttg\.async_wait .*?\{num = (\d+)", loop)]
    return int(largest[0]), min(waits, default=0)


def loop_instructions(cubin: bytes) -> list[int]:
    """Return the machine instructions of each loop, the outermost ones, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.cubin"
        source.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-sass", str(source)]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    places = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", listing)]
    order = {at: index for index, (at, _) in enumerate(places)}
    spans: list[tuple[int, int]] = []
    for at, text in places:
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if jump and int(jump[1], 16) < at:
            spans.append((order[int(jump[1], 16)], order[at] + 1))
    outermost = [one for one in spans if not any(a <= one[0] and one[1] <= b and (a, b) != one for a, b in spans)]
    return [end - start for start, end in sorted(set(outermost))]


def _assembled(ptx: str, capability: int) -> tuple[int, int]:
    """Return registers per thread and bytes spilled, as ptxas reports them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        arch = f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"
        command = [get_ptxas(capability).path, "-v", f"-arch={arch}", str(source), "-o", str(source.with_suffix(".o"))]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    [registers] = re.findall(r"Used (\d+) registers", report)
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    return int(registers), sum(map(int, spilled))
