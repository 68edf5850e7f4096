"""Reads the ModelConfig of a checkpoint on disk: a Hugging Face directory or a GGUF file."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from ..protocol.config import ModelImplName
from .config import ModelConfig, parse_config
from .config_fields import read_json_object
from .errors import CheckpointError, UnsupportedField
from .families.table import FAMILIES
from .gguf.file import is_gguf, open_gguf
from .stored.weights import stored_head

logger = logging.getLogger("ramiform.models")


def read_config(path: Path, impl: ModelImplName = "native") -> ModelConfig:
    """Read the config of the checkpoint in directory `path`, or of the GGUF file `path`.

    `impl` "transformers" reads it for transformers' class, "auto" does so where no native family computes the model.

    Raises CheckpointError when there is no config, it is not JSON, or it asks for something that is not computed; the
    message names the field and its value.
    """
    if not path.exists():
        raise CheckpointError(path, "no such model directory")
    if is_gguf(path):
        if impl == "transformers":
            raise CheckpointError(path, "GGUF files have native families only: use --model-impl auto")
        gguf_file = open_gguf(path)  # raises when the optional package `gguf` is missing
        from .gguf.config import read_gguf_config

        return read_gguf_config(gguf_file)
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(path, "not a Hugging Face checkpoint: it has no config.json")
    if impl == "transformers":
        return _of_transformers(path)
    raw = read_json_object(file)
    try:
        return _with_stored_head(path, parse_config(raw, file))
    except UnsupportedField as error:
        if impl == "native":
            raise
        try:
            return _of_transformers(path)
        except CheckpointError as other:
            kind = (raw.get("architectures") or [None])[0]
            reason = error.reason if kind in FAMILIES else f"{kind} is no native family"
            raise CheckpointError(path, f"{reason}; {other.reason}") from None


def _with_stored_head(path: Path, config: ModelConfig) -> ModelConfig:
    """Return the config with a head of its own if the checkpoint stores another one than the embedding."""
    if not config.tied_embeddings or stored_head(path, config.stored) != "other":
        return config
    logger.warning(
        "%s: config.json ties the head to the embedding, but another one is stored, which is used: set "
        "tie_word_embeddings to false to say so",
        path,
    )
    return replace(config, tied_embeddings=False)


def _of_transformers(path: Path) -> ModelConfig:
    from .transformers_backend.config import read_transformers_config  # needs the optional package `transformers`

    return read_transformers_config(path)
