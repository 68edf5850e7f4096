"""Choice of the set of device ops. A set's kernels are imported when it is first asked for."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Literal

import torch

from .. import loops
from .ops import Ops

KernelsName = Literal["auto", "triton", "reference"]


def for_device(
    device: torch.device,
    name: KernelsName = "auto",
    *,
    deterministic: bool = False,
    attention_cap: float | None = None,
) -> Ops:
    """Return the op set for `device`.

    `auto` is Triton on a CUDA device, and plain torch with compiled loops on a CPU, without them while they are
    postponed. Triton on a CPU runs in its interpreter, for tests: TRITON_INTERPRET=1 must stand in the environment
    before the first import.
    """
    if name == "triton" or (name == "auto" and device.type == "cuda"):
        from .triton.ops import TritonOps

        return TritonOps(deterministic, attention_cap)
    if name == "auto" and device.type == "cpu" and loops.ready("ramiform.kernels"):
        from .cpu.ops import CpuOps, DeterministicCpuOps

        return DeterministicCpuOps(attention_cap) if deterministic else CpuOps(attention_cap)
    from .reference.ops import DeterministicOps, PlainCpuOps, ReferenceOps

    if name == "auto" and device.type == "cpu" and not deterministic:
        return PlainCpuOps(attention_cap)
    return DeterministicOps(attention_cap) if deterministic else ReferenceOps(attention_cap)


def quantised_products(device: torch.device) -> ModuleType | None:
    """Return the module of products with quantised weights for `device`; None: plain torch multiplies there, or loops
    for packed weights."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from .triton import quantised_matmul

    return quantised_matmul
