"""Arrays for a device, packed into one buffer. Judge: the arrays."""

from __future__ import annotations

import numpy as np
import torch

from ramiform.kernels.transfer import pack, packed_size, to_device, unpack

ARRAYS = [
    np.arange(7, dtype=np.int64),
    np.arange(6, dtype=np.int32).reshape(2, 3).T,  # not contiguous
    np.empty(0, dtype=np.int64),
    np.array([0.5, -1e300]),
    np.array([[True], [False]]),
    np.array([1.5], dtype=np.float32),
]


def test_packed_arrays_come_out_as_they_went_in_and_aligned() -> None:
    host = torch.empty(packed_size(ARRAYS), dtype=torch.uint8)
    pack(ARRAYS, host.numpy())
    for tensor, array in zip(unpack(ARRAYS, host), ARRAYS, strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype
        assert (tensor.data_ptr() - host.data_ptr()) % 16 == 0


def test_on_the_cpu_nothing_is_copied() -> None:
    [tensor] = to_device(ARRAYS[:1], torch.device("cpu"))
    assert tensor.data_ptr() == ARRAYS[0].ctypes.data
