"""Choice of the set of device ops. A set's kernels are imported when it is first asked for."""

from __future__ import annotations

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
    before the first import. Only plain torch computes `attention_cap`; raises ValueError when other ops are asked for
    with it.
    """
    if attention_cap is not None:
        if name != "reference" or deterministic:
            raise ValueError(f"attention_cap {attention_cap} needs plain reference ops, not {name}")
        from .reference.ops import ReferenceOps

        return ReferenceOps(attention_cap)
    if name == "triton" or (name == "auto" and device.type == "cuda"):
        from .triton.ops import TritonOps

        return TritonOps(deterministic=deterministic)
    if name == "auto" and device.type == "cpu" and not deterministic and loops.ready("ramiform.kernels"):
        from .cpu.ops import CpuOps

        return CpuOps()
    from .reference.ops import DeterministicOps, PlainCpuOps, ReferenceOps

    if name == "auto" and device.type == "cpu" and not deterministic:
        return PlainCpuOps()
    return DeterministicOps() if deterministic else ReferenceOps()
