"""Loads a draft head from safetensors or a pickled .bin (tensors only), in any published spelling.

Published heads differ: some prefix every tensor with `model.`, some call EAGLE-3's layer `layers.0`, some include the
target's embedding, and `config.json`'s "bias" is unreliable. The tensors in the file decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...models.errors import CheckpointError
from .config import HeadConfig, HeadKind, read_head_config
from .head import EagleHead
from .parameters import allocate_head, checkpoint_layout
from .target_probe import check_probe

_FILES = ("model.safetensors", "pytorch_model.bin")
_DERIVED_TENSOR = re.compile(
    r"(^|\.)rotary_emb\.inv_freq$|^t2d$|^hidden_state_norm\.weight$|^verifier_(norm|lm_head)\.weight$"
)
_LAYER_PREFIX = re.compile(r"^(layers\.0|midlayer)\.")


def load_head(path: Path, target: Decoder) -> EagleHead:
    """Load the head in directory `path`, in the target's dtype and on its device.

    Raises CheckpointError, naming file and field or tensor, when it cannot be read or was not made for `target`.
    """
    file, tensors = _read(path)
    kind = _kind(tensors)
    config = read_head_config(path, kind, target.config)
    prefix = "midlayer." if kind == "eagle3" else "layers.0."
    tensors = {_LAYER_PREFIX.sub(prefix, name): tensor for name, tensor in tensors.items()}
    offsets = _offsets(file, tensors.pop("d2t", None), config.draft_vocab_size, config.vocab_size)

    for part, name in (("embedding", "embed_tokens.weight"), ("lm_head", "lm_head.weight")):
        if config.hidden_size != target.config.hidden_size and name not in tensors:
            raise CheckpointError(file, f"the tensor {name} is missing, and the target's {part} has another width")
    if config.draft_vocab_size != config.vocab_size and "lm_head.weight" not in tensors:
        raise CheckpointError(file, "the tensor lm_head.weight is missing, and the target's has another vocabulary")
    biased = {
        "fc": "fc.bias",
        "qkv": f"{prefix}self_attn.q_proj.bias",
        "o": f"{prefix}self_attn.o_proj.bias",
        "mlp": f"{prefix}mlp.down_proj.bias",
    }
    embedding = tensors.get("embed_tokens.weight")
    if embedding is not None and _is_same_tensor(embedding, target.parameters.dense_embedding()):
        del tensors["embed_tokens.weight"]  # one copy is enough
    parameters = allocate_head(
        config,
        biases={part for part, name in biased.items() if name in tensors},
        own_lm_head="lm_head.weight" in tensors,
        own_embedding="embed_tokens.weight" in tensors,
        device=target.device,
        dtype=target.dtype,
    )
    _fill(file, tensors, checkpoint_layout(parameters, config))
    check_probe(path / "config.json", config.target_probe, target)
    return EagleHead(
        config,
        parameters,
        target_embedding=target.parameters.dense_embedding(),
        target_lm_head=target.head,
        token_offsets=offsets,
        ops=target.ops,
    )


def read_fitting_config(path: Path, target: ModelConfig) -> HeadConfig:
    """Read the configuration of the head in directory `path`, without its weights.

    Raises CheckpointError as `load_head` does.
    """
    return read_head_config(path, _kind(name.removeprefix("model.") for name in tensor_names(path)), target)


def tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors in directory `path`, without reading them.

    Raises CheckpointError when the file is missing or damaged.
    """
    file = _file(path)
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                return list(opened.keys())
        return list(torch.load(file, map_location="meta", weights_only=True))
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(file, f"corrupt, truncated, or more than tensors: {error}") from None


def _file(path: Path) -> Path:
    file = next((path / name for name in _FILES if (path / name).is_file()), None)
    if file is None:
        raise CheckpointError(path, f"holds neither {_FILES[0]} nor {_FILES[1]}: not a draft head")
    return file


def _read(path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """Read the file and its tensors, without the prefix `model.`."""
    file = _file(path)
    tensors = read_tensors(file)
    named: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        short = name.removeprefix("model.")
        if short in named:
            raise CheckpointError(file, f"the tensor {short} is stored twice, with and without the prefix model.")
        if not _DERIVED_TENSOR.search(short):
            named[short] = tensor
    return file, named


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file or of a pickle that holds tensors only, by name.

    Raises CheckpointError when the file is damaged or holds anything else.
    """
    try:
        if file.suffix == ".safetensors":
            tensors = load_file(file)
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(file, f"corrupt, truncated, or more than tensors: {error}") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise CheckpointError(file, "must hold tensors by name")
    return tensors


def _kind(tensors: Iterable[str]) -> HeadKind:
    """Return the kind of the head, by its tensors' names."""
    marks = ("midlayer.", "layers.0.hidden_norm.")
    return "eagle3" if any(name.startswith(marks) for name in tensors) else "eagle"


def _offsets(file: Path, d2t: torch.Tensor | None, num_draft: int, num_target: int) -> torch.Tensor | None:
    if d2t is None:
        if num_draft != num_target:
            raise CheckpointError(file, f"the tensor d2t is missing: which of {num_target} tokens are the {num_draft}?")
        return None
    if d2t.shape != (num_draft,) or d2t.is_floating_point():
        raise CheckpointError(
            file,
            f"the tensor d2t is {d2t.dtype} {tuple(d2t.shape)}, not integer ({num_draft},) as config.json asks for",
        )
    offsets = d2t.long()
    ids = torch.arange(num_draft) + offsets
    if int(ids.min()) < 0 or int(ids.max()) >= num_target:
        raise CheckpointError(file, f"the tensor d2t names tokens beyond the target's {num_target}")
    return offsets if num_draft != num_target or offsets.any() else None


def _is_same_tensor(stored: torch.Tensor, target_VE: torch.Tensor) -> bool:
    return stored.shape == target_VE.shape and torch.equal(stored.to(target_VE.device, target_VE.dtype), target_VE)


def _fill(file: Path, tensors: dict[str, torch.Tensor], parts: dict[str, torch.Tensor]) -> None:
    for name in sorted(parts.keys() - tensors.keys()):
        raise CheckpointError(file, f"the tensor {name} is missing")
    for name, tensor in tensors.items():
        part = parts.get(name)
        if part is None:
            raise CheckpointError(file, f"the tensor {name} is unexpected in a draft head of this kind")
        if tensor.shape != part.shape:
            raise CheckpointError(
                file, f"the tensor {name} has shape {tuple(tensor.shape)}, config.json asks for {tuple(part.shape)}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(file, f"the tensor {name} is {tensor.dtype}, not floating point")
        part.copy_(tensor)
