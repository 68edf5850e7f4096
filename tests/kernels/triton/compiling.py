"""Compilation of the Triton kernels that a call launches, without a GPU, with their registers and shared memory.

    with recorded(90) as launches: split_attention(...)    # on CPU tensors; nothing runs, outputs are undefined
    for launch in launches: compile_launch(launch)

Needs kernels that were imported without TRITON_INTERPRET, so tests use it in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

OPTIONS = ("num_warps", "num_stages")


class Launch(NamedTuple):
    kernel: JITFunction[Any]
    arguments: dict[str, Any]
    options: dict[str, int]


class Compiled(NamedTuple):
    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record the launches of the calls inside instead of making them."""
    launches: list[Launch] = []

    def launcher(kernel: JITFunction[Any], grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
            arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
            assert set(arguments) == set(kernel.arg_names), set(kernel.arg_names) ^ set(arguments)
            launches.append(Launch(kernel, arguments, options))

        return launch

    before = JITFunction.__getitem__
    JITFunction.__getitem__ = launcher  # type: ignore[method-assign, assignment]
    try:
        yield launches
    finally:
        JITFunction.__getitem__ = before  # type: ignore[method-assign]


def compile_launch(launch: Launch, capability: int) -> Compiled:
    """Compile a launch as Triton specialises it: by divisibility of arguments by 16, with 1 and None as constants."""
    signature, constants, attributes = {}, {}, {}
    for index, (name, parameter) in enumerate(zip(launch.kernel.arg_names, launch.kernel.params, strict=True)):
        value, specialised = launch.arguments[name], not parameter.do_not_specialize
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
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    registers, spilled = _assembled(kernel.asm["ptx"], capability)
    return Compiled(launch.kernel.__name__, registers, spilled, kernel.metadata.shared)


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
