"""Tensors for another process of this machine: a safetensors file in shared memory, for as long as it is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from ...protocol.errors import RequestError

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "ramiform-weights-"


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
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as made:
        path = Path(made) / "model.safetensors"
        try:
            save_file(_apart(tensors), path)
        except OSError as error:
            raise RequestError(f"shared memory cannot take the tensors: {error}", param="weights") from None
        yield path


def stays_as_it_is(file: Path) -> bool:
    """Return whether a file is one of `shared_tensors` of this user: nobody changes it, and while it is mapped its
    memory stays when it is removed."""
    folder = file.parent
    if folder.parent != _SHARED_MEMORY or not folder.name.startswith(_PREFIX):
        return False
    status = folder.lstat()
    return status.st_uid == os.getuid() and status.st_mode & 0o077 == 0


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors that share no memory, which the format does not have: copies of those that are tied to others."""
    found: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        found[name] = own.clone() if place in taken else own
        taken.add(place)
    return found
