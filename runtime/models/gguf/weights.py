"""Loading a decoder's weights from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ..config import ModelConfig
from ..errors import CheckpointError
from ..linear import Destination
from ..quantised.block_linear import STORED_BLOCKS
from ..stored.weights import IsIgnored, Progress, refuse_all
from .block_reader import FOUR_BIT_TYPES, READABLE_TYPES, FourBitBlocks, dequantise, read_four_bit
from .config import ROPE_FACTORS
from .file import GgufFile, open_gguf
from .tensor_names import expert_index, tensor_name


def load_gguf_weights(
    path: Path,
    config: ModelConfig,
    parts: Mapping[str, Destination],
    on_progress: Progress | None = None,
    ignored: IsIgnored = refuse_all,
) -> None:
    """Fill all destinations. Tensors without a destination are an error, except those that `ignored` accepts by name.

    Raises CheckpointError, naming the tensor, when one is missing, unexpected, of another shape or in an unknown
    format.
    """
    file = open_gguf(path)
    total = sum(int(tensor.n_bytes) for tensor in file.tensors.values())
    used: set[str] = set()
    done = 0
    for name, destination in parts.items():
        module, _, last = name.rpartition(".")
        in_blocks = last == STORED_BLOCKS or last in FourBitBlocks._fields
        stored = tensor_name(f"{module}.weight" if in_blocks else name, config, file.architecture)
        if stored not in file.tensors:
            raise CheckpointError(path, f"the tensor {stored} is missing")
        if stored not in used:
            used.add(stored)
            done += int(file.tensors[stored].n_bytes)
        try:
            found = _read(file, stored, name, last, config, destination)
            destination.put(found if destination.part is None else found[destination.part])
        except ValueError as error:
            raise CheckpointError(path, f"the tensor {stored} {error}") from None
        if on_progress is not None:
            on_progress(done, total)
    unused = {name for name in file.tensors.keys() - used - {ROPE_FACTORS, "output.weight"} if not ignored(name)}
    if unused:
        raise CheckpointError(path, f"the tensor {min(unused)} is unexpected for this architecture")
    if on_progress is not None:
        on_progress(total, total)


def _read(
    file: GgufFile, stored: str, name: str, last: str, config: ModelConfig, destination: Destination
) -> torch.Tensor:
    """Read a tensor in the form of its destination. Raises ValueError, naming the defect of the tensor."""
    tensor = file.tensors[stored]
    kind = tensor.tensor_type
    if kind not in READABLE_TYPES:
        raise ValueError(f"is stored as {kind.name}; supported: {', '.join(one.name for one in READABLE_TYPES)}")
    expert = expert_index(name)
    data = tensor.data if expert is None else tensor.data[expert]
    if last == STORED_BLOCKS:
        found = torch.from_numpy(np.array(data))  # a copy: tensors know no memory that must not be written
    elif last in FourBitBlocks._fields:
        assert kind in FOUR_BIT_TYPES
        found = getattr(read_four_bit(data, kind), last)
    else:
        found = dequantise(data, kind)
    if file.architecture == "llama" and (heads := _num_rope_heads(name, config)) is not None:
        found = _unpermute_rope_rows(found, heads)
    if tuple(found.shape) != destination.shape:
        # A gate of one output is stored as a vector.
        if found.numel() != torch.Size(destination.shape).numel() or 1 not in destination.shape:
            raise ValueError(f"has shape {tuple(found.shape)}, the metadata ask for {destination.shape}")
        found = found.view(destination.shape)
    return found


def _num_rope_heads(name: str, config: ModelConfig) -> int | None:
    if ".q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".k_proj." in name else None


def _unpermute_rope_rows(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder the rows of query and key heads: Llama's GGUF files pair neighbours for rope, here row i pairs with i + D
    / 2."""
    return rows.view(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
