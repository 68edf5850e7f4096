"""Tensors for another process of this machine: a safetensors file in shared memory, for as long as it is read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from ...protocol.errors import RequestError

_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def shared_tensors(tensors: Mapping[str, torch.Tensor]) -> Iterator[Path]:
    """Write tensors to a file that other processes of the same user can read; it is removed behind the block.

    Raises RequestError when there are none, when one is no tensor, or when memory is too small for them.
    """
    if not tensors:
        raise RequestError("an update needs at least one tensor", param="weights")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise RequestError(f"{name} is no torch.Tensor but a {type(tensor).__name__}", param="weights")
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="ramiform-weights-", dir=folder) as made:
        path = Path(made) / "model.safetensors"
        try:
            # Copies: tied weights share memory, which the format does not have.
            save_file({name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}, path)
        except OSError as error:
            raise RequestError(f"shared memory cannot take the tensors: {error}", param="weights") from None
        yield path
