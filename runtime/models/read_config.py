"""Reads the ModelConfig of a checkpoint on disk: a Hugging Face directory or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from .config import ModelConfig, parse_config
from .config_fields import read_json_object
from .errors import CheckpointError
from .gguf.file import is_gguf, open_gguf


def read_config(path: Path) -> ModelConfig:
    """Read the config of the checkpoint in directory `path`, or of the GGUF file `path`.

    Raises CheckpointError when there is no config, it is not JSON, or it asks for something that is not computed; the
    message names the field and its value.
    """
    if not path.exists():
        raise CheckpointError(path, "no such model directory")
    if is_gguf(path):
        gguf_file = open_gguf(path)  # raises when the optional package `gguf` is missing
        from .gguf.config import read_gguf_config

        return read_gguf_config(gguf_file)
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(path, "not a Hugging Face checkpoint: it has no config.json")
    return parse_config(read_json_object(file), file)
