"""Where the weights of a running model come from: files of a checkpoint, and tensors in place of some of theirs.

An update of some tensors is read with all others from where they came from last. So any model has, after any update,
what a start on a checkpoint with the same tensors would give it. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError
from .shared_tensors import stays_as_it_is

Fingerprint = tuple[tuple[int, int, int], ...]  # inode, size in bytes and time of the last change in ns, of each file


@dataclass(frozen=True)
class WeightSource:
    """Safetensors files that hold all tensors of a model, and tensors, by stored name, that replace some of them.

    Raises CheckpointError when a file cannot be read.
    """

    folder: Path  # of the served checkpoint, with its config.json
    files: tuple[Path, ...]
    replaced: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fingerprint: Fingerprint = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of all tensors

    @classmethod
    def of(cls, folder: Path, files: Sequence[Path]) -> WeightSource:
        """Return the source of all tensors in `files`, as they are now."""
        fingerprint, names = fingerprint_of(files), stored_names(files)
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                own = (name for name, holder in names.items() if holder == file)
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in own}
        return cls(folder, tuple(files), {}, fingerprint, shapes)

    @property
    def names(self) -> Collection[str]:
        """The stored names of all tensors."""
        return self.shapes.keys()

    def check_unchanged(self) -> None:
        """Raise CheckpointError if a file was changed or removed since the weights were read from it."""
        if fingerprint_of(self.files) != self.fingerprint:
            raise CheckpointError(
                self.files[0],
                "has changed since the served weights were read from it, and the update holds some tensors only: "
                "send all of them",
            )

    def updated(
        self, files: Sequence[Path], tied: tuple[str, str] | None = None, *, may_stay: bool = True
    ) -> WeightSource:
        """Return the source after an update by the tensors of `files`: these alone if they are all of the model's, or
        else those of before with these in their place, which are read into memory.

        Unless `may_stay`, the files are about to be removed, and their tensors are read in any case. `tied` are the
        names of embedding and head of a model that has one matrix as both. Raises CheckpointError, naming the tensor,
        for one that the model does not have, and for a head that is not the embedding.
        """
        known, given = self.names, stored_names(files)
        if tied is not None and tied[0] in known and tied[1] in given:
            _check_same(given, *tied)
            if tied[1] not in known:
                del given[tied[1]]
        if (unknown := next((name for name in given if name not in known), None)) is not None:
            raise CheckpointError(given[unknown], f"the tensor {unknown} is none of the served model's")
        if len(given) == len(known) and may_stay:
            return WeightSource.of(self.folder, files)
        self.check_unchanged()
        return replace(self, replaced={**self.replaced, **_read(given)})


class OverlaidTensors:
    """An open safetensors file some of whose tensors are replaced."""

    def __init__(self, tensors: safe_open, replaced: Mapping[str, torch.Tensor]) -> None:
        self._tensors, self._replaced = tensors, replaced

    def keys(self) -> list[str]:
        """Return the names of the file's tensors."""
        return list(self._tensors.keys())

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor, whole."""
        return self._replaced[name] if name in self._replaced else self._tensors.get_tensor(name)

    def get_slice(self, name: str) -> Any:
        """Return a tensor of which parts can be read."""
        return _Slice(self._replaced[name]) if name in self._replaced else self._tensors.get_slice(name)


@dataclass(frozen=True)
class _Slice:
    """A tensor with the interface of those that safetensors reads in parts."""

    tensor: torch.Tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, part: Any) -> torch.Tensor:
        return self.tensor[part]


def stored_names(files: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each tensor, by name. Raises CheckpointError when one is damaged, or a tensor is stored
    twice."""
    found: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                names = list(tensors.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(file, f"corrupt or truncated: {error}") from None
        if (twice := next((name for name in names if name in found), None)) is not None:
            raise CheckpointError(file, f"the tensor {twice} is stored twice")
        found |= dict.fromkeys(names, file)
    return found


def _check_same(given: Mapping[str, Path], embedding: str, head: str) -> None:
    pair = _read({name: given[name] for name in (embedding, head) if name in given})
    if len(pair) < 2 or not torch.equal(pair[embedding], pair[head]):
        raise CheckpointError(
            given[head], f"the tensor {head} is not {embedding}, and the served model has one matrix as both"
        )


def _read(files: Mapping[str, Path]) -> dict[str, torch.Tensor]:
    """Read tensors, by name, into memory that nobody else changes."""
    read: dict[str, torch.Tensor] = {}
    for file in dict.fromkeys(files.values()):
        stays = stays_as_it_is(file)
        with safe_open(file, framework="pt") as tensors:
            for name in (name for name, own in files.items() if own == file):
                mapped = tensors.get_tensor(name)
                read[name] = mapped if stays else mapped.clone()
    return read


def fingerprint_of(files: Sequence[Path]) -> Fingerprint:
    """Return the fingerprint of files as they are now. Raises CheckpointError when one cannot be read."""
    try:
        stats = [file.stat() for file in files]
    except OSError as error:
        raise CheckpointError(Path(error.filename or files[0]), f"cannot be read: {error.strerror}") from None
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in stats)
