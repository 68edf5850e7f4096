"""Loading safetensors files, one or several with an index, into a decoder's parameters. Nothing is unpickled."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError
from ..linear import Destination
from .layout import StoredLayout, fused_scales, is_attention_scale, renaming
from .weight_source import OverlaidTensors, WeightSource

Progress = Callable[[int, int], None]  # (done_bytes, total_bytes), called after each tensor
IsIgnored = Callable[[str], bool]  # True for tensors that need no destination

_SINGLE = "model.safetensors"
_COMPARED_ROWS = 4096  # at once
INDEX_FILE = "model.safetensors.index.json"
_DENSE_TYPES = ("F64", "F32", "F16", "BF16")
# Buffers that older checkpoints carry; they follow from the config.
_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$|\.attn\.masked_bias$")


def refuse_all(name: str) -> bool:
    """Ignore no tensor."""
    return False


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HEAD_AS_EMBEDDING = r"^lm_head\.weight$", EMBEDDING  # as `StoredLayout.renames`, where the head alone is stored
StoredHead = Literal["none", "as embedding", "other", "alone"]  # alone: without an embedding


def stored_head(path: Path, layout: StoredLayout) -> StoredHead:
    """Return what the checkpoint in directory `path` stores as head; "none" too where no weights are, or damaged ones.

    Older files repeat a tied head; others were trained with one of its own and kept the config that ties it.
    """
    try:
        files = weight_files(path)
        return _stored_head(tuple(files), tuple(file.stat().st_mtime_ns for file in files), layout)
    except (CheckpointError, SafetensorError, OSError):
        return "none"


@lru_cache(maxsize=8)
def _stored_head(files: tuple[Path, ...], changed: tuple[int, ...], layout: StoredLayout) -> StoredHead:
    rename = renaming(layout)
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for file in files:
            tensors = stack.enter_context(safe_open(file, framework="pt"))
            names = {rename(stored): stored for stored in tensors.keys()}  # noqa: SIM118  # safe_open is no mapping
            found |= {name: tensors.get_slice(names[name]) for name in (EMBEDDING, HEAD) if name in names}
        if HEAD not in found:
            return "none"
        if EMBEDDING not in found:
            return "alone"
        embedding, head = found[EMBEDDING], found[HEAD]
        num_rows, shape = embedding.get_shape()[0], embedding.get_shape()
        parts = (slice(start, start + _COMPARED_ROWS) for start in range(0, num_rows, _COMPARED_ROWS))
        same = shape == head.get_shape() and all(torch.equal(embedding[part], head[part]) for part in parts)
        return "as embedding" if same else "other"


def dense_modules(path: Path, layout: StoredLayout) -> frozenset[str]:
    """Return the modules whose weight the checkpoint in directory `path` stores as a matrix of 16 or 32 bits; none
    where no weights are, or damaged ones."""
    try:
        files = weight_files(path)
        return _dense_modules(tuple(files), tuple(file.stat().st_mtime_ns for file in files), layout)
    except (CheckpointError, SafetensorError, OSError):
        return frozenset()


@lru_cache(maxsize=8)
def _dense_modules(files: tuple[Path, ...], changed: tuple[int, ...], layout: StoredLayout) -> frozenset[str]:
    rename, found = renaming(layout), set[str]()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for stored in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
                module = rename(stored).removesuffix(".weight")
                if not stored.endswith(".weight"):
                    continue
                weight = tensors.get_slice(stored)
                if weight.get_dtype() in _DENSE_TYPES and len(weight.get_shape()) == 2:
                    found.add(module)
    return frozenset(found)


def load_weights(
    path: Path,
    parts: Mapping[str, Destination],
    on_progress: Progress | None = None,
    ignored: IsIgnored = refuse_all,
    rename: Callable[[str], str] = str,
    source: WeightSource | None = None,
) -> None:
    """Fill every destination from the checkpoint in directory `path`, converting to its dtype.

    `rename` turns a stored name into that of its destination. Tensors without a destination are an error, except those
    that `ignored` accepts by their new name. `source`, if given, is read in place of the directory's files. Raises
    CheckpointError, naming file and tensor, when a file is missing, truncated or corrupt, or a tensor is missing,
    unexpected, of another shape or not floating point.
    """
    files = weight_files(path) if source is None else source.files
    replaced: Mapping[str, torch.Tensor] = {} if source is None else source.replaced
    total = sum(file.stat().st_size for file in files)
    missing = dict(parts)
    finished = 0
    for file in files:
        done = finished
        try:
            with safe_open(file, framework="pt") as stored_tensors:
                tensors = OverlaidTensors(stored_tensors, replaced) if replaced else stored_tensors
                for stored in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
                    name = rename(stored)
                    if name not in parts and ignored(name):
                        continue
                    done += _copy(file, tensors, stored, name, missing, parts)
                    if on_progress is not None:
                        on_progress(done, total)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(file, f"corrupt or truncated: {error}") from None
        finished += file.stat().st_size
    if missing:
        names = sorted(missing)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(path, f"the tensor {names[0]}{more} is in none of {', '.join(f.name for f in files)}")
    if on_progress is not None:
        on_progress(total, total)


def _copy(
    file: Path,
    tensors: safe_open | OverlaidTensors,
    stored_name: str,
    name: str,
    missing: dict[str, Destination],
    parts: Mapping[str, Destination],
) -> int:
    """Copy the tensor `stored_name` to its destination `name`, remove that from `missing`, and return its bytes in the
    file."""
    if name not in parts and (scales := fused_scales(name, missing)) is not None:
        missing[name], parts = scales, {name: scales}
    if name not in parts:
        # Some checkpoints store a tied head. KV scales are read separately, by `read_kv_scales`.
        if _DERIVED.search(name) or name == "lm_head.weight" or is_attention_scale(name):
            return 0
        raise CheckpointError(file, f"the tensor {stored_name} is unexpected for this architecture")
    destination, name = missing.pop(name, None), stored_name
    if destination is None:
        raise CheckpointError(file, f"the tensor {name} is stored twice")
    stored = tensors.get_slice(name)
    shape = tuple(stored.get_shape())
    if shape not in (destination.shape, destination.other_shape) and not _fits_any(shape, destination.shape):
        raise CheckpointError(file, f"the tensor {name} has shape {shape}, config.json asks for {destination.shape}")
    tensor = tensors.get_tensor(name) if destination.part is None else stored[destination.part]
    if destination.dtypes is None and (not tensor.is_floating_point() or tensor.itemsize < 2):
        raise CheckpointError(file, f"the tensor {name} is {tensor.dtype}, not floating point")
    if destination.dtypes is not None and tensor.dtype not in destination.dtypes:
        wanted = " or ".join(map(str, destination.dtypes))
        raise CheckpointError(file, f"the tensor {name} is {tensor.dtype}, config.json asks for {wanted}")
    if tensor.is_floating_point() and tensor.itemsize > 1 and not is_finite(tensor):
        raise CheckpointError(file, f"the tensor {name} has values that are infinite or no numbers")
    try:
        destination.put(tensor)
    except ValueError as error:
        raise CheckpointError(file, f"the tensor {name} {error}") from None
    return math.prod(shape) * tensor.itemsize


def _fits_any(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return True if the shapes are the same but for dimensions of any size, or a vector's outer one of 1."""
    if (shape, wanted) == ((), (1,)) or shape == (1, *wanted):
        return True
    return len(shape) == len(wanted) and all(size in (own, -1) for own, size in zip(shape, wanted, strict=True))


def is_finite(tensor: torch.Tensor) -> bool:
    """Return True if all values are finite: the least and the largest are, which are NaN if any is."""
    return not tensor.numel() or all(math.isfinite(bound.item()) for bound in tensor.aminmax())


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of the checkpoint in directory `path`. Raises CheckpointError when one is
    missing."""
    index = path / INDEX_FILE
    if not index.is_file():
        if not (path / _SINGLE).is_file():
            raise CheckpointError(path, f"holds neither {_SINGLE} nor {INDEX_FILE}")
        return [path / _SINGLE]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(index, f"not a safetensors index: {type(error).__name__}: {error}") from None
    if not names:
        raise CheckpointError(index, "weight_map is empty")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(index, f"weight_map names {name!r}, which is not a file beside it")
        if not (path / name).is_file():
            raise CheckpointError(index, f"weight_map names {name}, which does not exist")
    return [path / name for name in names]
