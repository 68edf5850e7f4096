"""Child processes that compile loops for a core. The first starts before the core imports torch, so this module
imports none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...kernels.cpu.products.block_formats import BLOCK_FORMATS
from ..compile_ahead import PRODUCTS, is_cacheable, uncompiled_products
from ..models.checkpoint import find_checkpoint
from ..models.gguf.file import is_gguf, open_gguf
from ..processes import parent_watchdog
from ..protocol.config import CoreConfig
from ..protocol.errors import RamiformError

# Where drivers of GPUs show themselves: torch, which tells what they can do, is not imported yet.
_GPU_DRIVERS = (Path("/proc/driver/nvidia"), Path("/dev/kfd"), Path("/dev/dxg"))


def compile_command(*arguments: str) -> list[str]:
    """Return the command of a child that compiles a group, or the products of block formats, into the cache."""
    return [*parent_watchdog.child_command("ramiform.runtime.compile_ahead"), *arguments]


def start_child(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that compiles. It ends with this one, and prints to standard error."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # closes when this process ends, and the child ends too
        stdout=sys.stderr,
        env=parent_watchdog.child_environment(),
        start_new_session=True,
    )


def start_products(config: CoreConfig) -> subprocess.Popen[bytes] | None:
    """Start a child that compiles the products of a GGUF file's block formats; None: there are none to compile, or this
    process waits for all loops anyway."""
    on_cpu = config.device == "cpu" or (config.device == "auto" and not any(path.exists() for path in _GPU_DRIVERS))
    waits = config.wait_for_loops or config.deterministic or config.num_ranks > 1
    if not on_cpu or waits or config.quantize is not None or not is_cacheable("kernels"):
        return None
    try:
        path = find_checkpoint(config.model)
        if not is_gguf(path):
            return None
        stored = {tensor.tensor_type.name for tensor in open_gguf(path).tensors.values()}
    except RamiformError:  # loading the model raises it again, and reports it
        return None
    missing = uncompiled_products(stored & BLOCK_FORMATS.keys())
    return start_child(compile_command(PRODUCTS, *missing)) if missing else None
