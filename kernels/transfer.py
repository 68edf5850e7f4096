"""Asynchronous copies between host and device: several arrays to a device in one copy, tensors back with a deferred
wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")
Deferred = Callable[[], T]  # a result under way: the call waits for it

_ALIGNMENT = 16  # bytes that kernels load at once


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return the arrays as tensors on `device`, with their dtypes and shapes, 16-byte aligned. Nothing waits for the
    copy. On the CPU the tensors share the arrays' memory."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    # Pinned memory comes from torch's cache, which does not reuse it before the copy is done.
    host = torch.empty(packed_size(arrays), dtype=torch.uint8, pin_memory=True)
    pack(arrays, host.numpy())
    return unpack(arrays, host.to(device, non_blocking=True))


def to_buffer(arrays: Sequence[np.ndarray], buffer: torch.Tensor) -> None:
    """Copy the arrays into the uint8 `buffer`, as `pack` lays them out; it may end without the last one's padding.
    Nothing waits for the copy, and no memory of the device is allocated."""
    size = packed_size(arrays)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=buffer.device.type == "cuda")
    pack(arrays, host.numpy())
    target = buffer[:size]
    target.copy_(host[: len(target)], non_blocking=True)


def to_host(tensors: Sequence[torch.Tensor]) -> Deferred[list[np.ndarray]]:
    """Copy the tensors, all of one device, to the host; the returned call gives them as arrays.

    From a CUDA device the copy is queued behind the kernels that compute the tensors, and only that call waits.
    """
    device = tensors[0].device
    if device.type == "cpu":
        return lambda: [tensor.numpy() for tensor in tensors]
    hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for host, tensor in zip(hosts, tensors, strict=True):
        host.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(device))

    def wait() -> list[np.ndarray]:
        copied.synchronize()
        return [host.numpy() for host in hosts]

    return wait


def packed_size(arrays: Sequence[np.ndarray]) -> int:
    """Return the bytes that `pack` writes."""
    return sum(_padded(array.nbytes) for array in arrays)


def pack(arrays: Sequence[np.ndarray], host: np.ndarray) -> None:
    """Write the arrays' bytes into uint8 `host` of `packed_size` bytes, each array aligned."""
    at = 0
    for array in arrays:
        host[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at += _padded(array.nbytes)


def unpack(arrays: Sequence[np.ndarray], packed: torch.Tensor) -> list[torch.Tensor]:
    """Return views of a buffer that `pack` filled, with the arrays' dtypes and shapes."""
    tensors: list[torch.Tensor] = []
    at = 0
    for array in arrays:
        dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
        tensors.append(packed[at : at + array.nbytes].view(dtype).view(array.shape))
        at += _padded(array.nbytes)
    return tensors


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
