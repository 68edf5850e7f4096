"""Choice of the set of device ops. A set's kernels are imported when it is first asked for."""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from types import ModuleType
from typing import Literal

import torch

from .. import loops
from .ops import Ops

logger = logging.getLogger("ramiform.kernels")

KernelsName = Literal["auto", "triton", "reference"]


def for_device(
    device: torch.device,
    name: KernelsName = "auto",
    *,
    deterministic: bool = False,
    attention_cap: float | None = None,
) -> Ops:
    """Return the op set for `device`.

    `auto` is Triton on a CUDA device, or with a warning plain torch where Triton cannot be used. On a CPU it is plain
    torch with compiled loops, without them while they are postponed. Triton on a CPU runs in its interpreter, for
    tests: TRITON_INTERPRET=1 must stand in the environment before the first import.
    """
    if _uses_triton(device, name):
        from .triton.ops import TritonOps

        return TritonOps(deterministic, attention_cap)
    if name == "auto" and device.type == "cpu" and loops.ready("ramiform.kernels"):
        from .cpu.ops import CpuOps, DeterministicCpuOps

        return DeterministicCpuOps(attention_cap) if deterministic else CpuOps(attention_cap)
    from .reference.ops import DeterministicOps, PlainCpuOps, ReferenceOps

    if name == "auto" and device.type == "cpu" and not deterministic:
        return PlainCpuOps(attention_cap)
    return DeterministicOps(attention_cap) if deterministic else ReferenceOps(attention_cap)


def _uses_triton(device: torch.device, name: KernelsName) -> bool:
    """Return True if `for_device` returns Triton's ops."""
    return name == "triton" or (name == "auto" and device.type == "cuda" and _has_kernels())


@cache
def _has_kernels() -> bool:
    """Return True if CUDA devices can run the Triton kernels; else say why not, once."""
    if torch.version.hip is not None:
        reason = "AMD's devices have less shared memory than the kernels need"
    elif importlib.util.find_spec("triton") is None:
        reason = "the package triton is not installed (pip install 'ramiform[gpu]')"
    else:
        return True
    logger.warning("plain torch computes, several times slower than the kernels: %s", reason)
    return False


def quantised_products(device: torch.device) -> ModuleType | None:
    """Return the module of products with quantised weights for `device`; None: plain torch multiplies there, or loops
    for packed weights."""
    if device.type != "cuda" or not _has_kernels():
        return None
    from .triton import quantised_matmul

    return quantised_matmul
