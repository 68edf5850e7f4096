"""Loading a decoder's weights from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch

from ..config import ModelConfig
from ..errors import CheckpointError
from ..linear import Destination
from ..quantised.block_linear import STORED_BLOCKS
from ..recurrent.config import RecurrentConfig
from ..stored.weights import IsIgnored, Progress, refuse_all
from .block_reader import FOUR_BIT_TYPES, READABLE_TYPES, FourBitBlocks, dequantise, read_four_bit
from .config import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from .families import ARCHITECTURES
from .file import GgufFile, open_gguf
from .tensor_names import TensorNames, expert_index

_UNUSED = {ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS, "output.weight"}


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
    names = TensorNames(config, file.tensors)
    total = sum(int(tensor.n_bytes) for tensor in file.tensors.values())
    used: set[str] = set()
    done = 0
    for name, destination in parts.items():
        module, _, last = name.rpartition(".")
        in_blocks = last == STORED_BLOCKS or last in FourBitBlocks._fields
        stored = names(f"{module}.weight" if in_blocks else name)
        sources = [stored]
        if stored not in file.tensors and ".attn_kv_b." in stored:
            sources = [stored.replace(".attn_kv_b.", part) for part in (".attn_k_b.", ".attn_v_b.")]
        for source in sources:
            if source not in file.tensors:
                raise CheckpointError(path, f"the tensor {source} is missing")
            if source not in used:
                used.add(source)
                done += int(file.tensors[source].n_bytes)
        try:
            found = _read(file, config, sources, name, last, destination)
            destination.put(found if destination.part is None else found[destination.part])
        except ValueError as error:
            raise CheckpointError(path, f"the tensor {stored} {error}") from None
        if on_progress is not None:
            on_progress(done, total)
    unused = {name for name in file.tensors.keys() - used - _UNUSED if not ignored(name)}
    if unused:
        raise CheckpointError(path, f"the tensor {min(unused)} is unexpected for this architecture")
    if on_progress is not None:
        on_progress(total, total)


def _read(
    file: GgufFile, config: ModelConfig, sources: Sequence[str], name: str, last: str, destination: Destination
) -> torch.Tensor:
    """Read a tensor in the form of its destination. Raises ValueError, naming the defect of the tensor."""
    found = [_read_one(file.tensors[source], name, last) for source in sources]
    tensor = _expansion(*found) if len(found) == 2 else found[0]
    if ".ffn_gate_up_exps." in sources[0]:
        tensor = tensor.chunk(2)[".gate" not in name]
    if ".linear_attn." in name or ".mamba." in name:
        tensor = _of_recurrence(
            tensor, name, sources[0], config.recurrent, ARCHITECTURES[file.architecture].tiled_heads
        )
    if tuple(tensor.shape) != destination.shape:
        # A gate of one output is stored as a vector, a norm of several groups as a matrix.
        some = 1 in (*destination.shape, *tensor.shape) or len(destination.shape) == 1
        if tensor.numel() != torch.Size(destination.shape).numel() or not some:
            raise ValueError(f"has shape {tuple(tensor.shape)}, the metadata ask for {destination.shape}")
        tensor = tensor.view(destination.shape)
    return tensor


def _read_one(tensor: gguf.ReaderTensor, name: str, last: str) -> torch.Tensor:
    kind = tensor.tensor_type
    if kind not in READABLE_TYPES:
        raise ValueError(f"is stored as {kind.name}; supported: {', '.join(one.name for one in READABLE_TYPES)}")
    expert = expert_index(name)
    data = tensor.data if expert is None else tensor.data[expert]
    if last == STORED_BLOCKS:
        return torch.from_numpy(np.array(data))  # a copy: tensors know no memory that must not be written
    if last in FourBitBlocks._fields:
        assert kind in FOUR_BIT_TYPES
        found: torch.Tensor = getattr(read_four_bit(data, kind), last)
        return found
    return dequantise(data, kind)


def _expansion(key_HCN: torch.Tensor, value_HVC: torch.Tensor) -> torch.Tensor:
    """Return the product that expands latents: each head's key rows, stored transposed, then its value rows."""
    return torch.cat((key_HCN.transpose(1, 2), value_HVC), dim=1).flatten(0, 1)


def _of_recurrence(
    stored: torch.Tensor, name: str, source: str, config: RecurrentConfig | None, tiled: bool
) -> torch.Tensor:
    """Return a tensor of a recurrent layer as checkpoints have it: decays as logarithms, heads by key head."""
    assert config is not None
    if name.endswith("A_log"):
        stored = (-stored).log()
    G, H, V = config.num_key_heads, config.num_heads, config.value_size
    if ".ssm_ba." in source:
        return stored.unflatten(0, (G, 2, H // G))[:, int(".in_proj_a." in name)].flatten(0, 1)
    if not tiled or name.endswith(".norm.weight"):
        return stored
    axis = 1 if ".out_proj." in name else 0
    size = stored.shape[axis]
    own = H if size == H else H * V
    rest, values = stored.split([size - own, own], dim=axis)
    values = values.unflatten(axis, (H // G, G, own // H)).transpose(axis, axis + 1).flatten(axis, axis + 2)
    return torch.cat((rest, values), dim=axis)
