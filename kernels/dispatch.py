"""Which set of ops a device gets. A set's kernels are imported when it is first asked for."""

from __future__ import annotations

from typing import Literal

import torch

from .ops import Ops

KernelsName = Literal["auto", "triton", "reference"]


def for_device(
    device: torch.device,
    name: KernelsName = "auto",
    *,
    deterministic: bool = False,
    attention_cap: float | None = None,
) -> Ops:
    """`auto` is Triton on a CUDA device, on a CPU plain torch with compiled loops for small steps. Triton on the CPU
    needs its interpreter, which is chosen by the environment (TRITON_INTERPRET=1) before the first import, and is for
    tests.

    `attention_cap` is computed by plain torch alone. Raises ValueError when other ops are asked for."""
    if attention_cap is not None:
        if name != "reference" or deterministic:
            raise ValueError(f"attention_cap {attention_cap} needs plain reference ops, not {name}")
        from .reference.ops import ReferenceOps

        return ReferenceOps(attention_cap)
    if name == "triton" or (name == "auto" and device.type == "cuda"):
        from .triton.ops import TritonOps

        return TritonOps(deterministic=deterministic)
    if name == "auto" and device.type == "cpu" and not deterministic:
        from .cpu.ops import CpuOps

        return CpuOps()
    from .reference.ops import DeterministicOps, ReferenceOps

    return DeterministicOps() if deterministic else ReferenceOps()
