"""Choice of the set of device ops. A set's kernels are imported when it is first asked for."""

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
    """Return the op set for `device`.

    `auto` is Triton on a CUDA device, and plain torch with compiled loops on a CPU. Triton on a CPU runs in its
    interpreter, for tests: TRITON_INTERPRET=1 must stand in the environment before the first import. Triton and the
    deterministic ops do not compute `attention_cap`; raises ValueError when they are asked for with it.
    """
    triton = name == "triton" or (name == "auto" and device.type == "cuda")
    if attention_cap is not None and (triton or deterministic):
        raise ValueError(f"attention_cap {attention_cap} needs a CPU's or plain reference ops, not {name}")
    if triton:
        from .triton.ops import TritonOps

        return TritonOps(deterministic=deterministic)
    if name == "auto" and device.type == "cpu":
        from .cpu.ops import CpuOps, DeterministicCpuOps

        return DeterministicCpuOps() if deterministic else CpuOps(attention_cap)
    from .reference.ops import DeterministicOps, ReferenceOps

    return DeterministicOps() if deterministic else ReferenceOps(attention_cap)
