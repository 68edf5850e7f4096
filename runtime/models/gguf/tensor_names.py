"""Names of a GGUF file's tensors for the tensor names of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from functools import cache

import gguf

from ..config import ModelConfig

_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def tensor_name(name: str, config: ModelConfig, architecture: str) -> str:
    """Return the GGUF name of a Hugging Face tensor. Experts share a tensor, see `expert_index`.

    Raises KeyError when the architecture has no such tensor.
    """
    found = _names(architecture, config.num_layers).get_name(_EXPERT.sub(".experts.", name), (".weight", ".bias"))
    if found is None:
        raise KeyError(name)
    return str(found)


def expert_index(name: str) -> int | None:
    """Return the expert's index in the shared tensor; None for other tensors."""
    match = _EXPERT.search(name)
    return None if match is None else int(match[1])


@cache
def _names(architecture: str, num_layers: int) -> gguf.TensorNameMap:
    [arch] = [key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture]
    return gguf.get_tensor_name_map(arch, num_layers)
