"""All-reduce over torch's symmetric memory: faster than NCCL's rings for the few hundred kilobytes of a decode step.

torch adds in the order of the ranks, or one rank adds for all: every rank gets the same bits.
"""

from __future__ import annotations

import logging
from typing import Literal

import torch
import torch.distributed as dist

logger = logging.getLogger("ramiform.engine")

MAX_SYMMETRIC_BYTES = 64 << 20  # of one sum; above it NCCL's rings are as fast
_MAX_ONE_SHOT_BYTES = 256 << 10  # above it reading all ranks' tensors costs more than a second exchange
_MIN_MULTICAST_RANKS = 4  # with fewer ranks the switch has little to add up
_ALIGNMENT = 16  # bytes of a load
_DTYPES = (torch.float32, torch.bfloat16)
_CAPABILITY = (9, 0)

AllReduceMethod = Literal["one-shot", "two-shot", "multicast"]


def all_reduce_method(num_bytes: int, dtype: torch.dtype, size: int, *, multicast: bool) -> AllReduceMethod | None:
    """Choose how `size` ranks sum tensors of `num_bytes`; None: by NCCL.

    One-shot: each rank reads all others' tensors. Two-shot: each sums a part, and reads the others' sums. Multicast:
    the switch sums. The bounds between them are estimates for one machine of eight devices; they have not been
    measured.
    """
    if dtype not in _DTYPES or not 0 < num_bytes <= MAX_SYMMETRIC_BYTES or num_bytes % (_ALIGNMENT * size):
        return None
    if multicast and size >= _MIN_MULTICAST_RANKS:
        return "multicast"
    return "one-shot" if num_bytes <= _MAX_ONE_SHOT_BYTES else "two-shot"


class SymmetricAllReduce:
    """All-reduce of small tensors. All ranks of the group make it together, with `connect_symmetric`."""

    def __init__(self, memory: torch.Tensor, group: str, size: int, *, multicast: bool) -> None:
        """`memory` are bytes of this rank that all ranks see; `group` is torch's name of the group."""
        self._memory = memory
        self._group = group
        self._size = size
        self._multicast = multicast

    def __call__(self, x: torch.Tensor) -> torch.Tensor | None:
        """Sum a contiguous `x` in place as `Group.all_reduce`; return None when NCCL must do it. All ranks get the same
        answer."""
        way = all_reduce_method(x.nbytes, x.dtype, self._size, multicast=self._multicast)
        if way is None:
            return None
        shared = self._memory[: x.nbytes].view(x.dtype).view(x.shape)
        shared.copy_(x)
        # Each op begins and ends with a barrier, so the memory is free when it returns.
        match way:
            case "one-shot":
                summed: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", self._group)
                return summed
            case "two-shot":
                torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group)
            case "multicast":
                torch.ops.symm_mem.multimem_all_reduce_(shared, "sum", self._group)
        return x.copy_(shared)  # copied out, since the next sum overwrites it


def connect_symmetric(
    device: torch.device, rank: int, size: int, group: dist.ProcessGroup | None = None
) -> SymmetricAllReduce | None:
    """Connect the ranks of `group`, or of torch's default group, on neighbouring devices of one host.

    `rank` is this rank's number in the group. Returns None on all ranks when one of them cannot.
    """
    if not _all_agree(_has_peer_access(device, rank, size), device, group):
        return None
    from torch.distributed import _symmetric_memory as symmetric  # a slow import

    group = group or dist.group.WORLD
    assert group is not None
    handle = None
    try:
        memory = symmetric.empty(MAX_SYMMETRIC_BYTES, dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(memory, group.group_name)
    except RuntimeError as error:
        logger.warning("no symmetric memory between the ranks, sums go by NCCL: %s", error)
    if not _all_agree(handle is not None, device, group):
        return None
    assert handle is not None
    return SymmetricAllReduce(memory, group.group_name, size, multicast=handle.multicast_ptr != 0)


def _has_peer_access(device: torch.device, rank: int, size: int) -> bool:
    """Return True when this rank's device can read all others', the first of which has this one's number less
    `rank`."""
    if device.index is None or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return False
    first = device.index - rank
    others = [index for index in range(first, first + size) if index != device.index]
    return all(torch.cuda.can_device_access_peer(device, index) for index in others)


def _all_agree(agrees: bool, device: torch.device, group: dist.ProcessGroup | None) -> bool:
    """Return True when `agrees` is True on every rank, so that all of them go on or none."""
    agreed = torch.tensor([agrees], dtype=torch.int32, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN, group=group)
    return bool(agreed.item())
