"""Paths of checkpoints: the shipped model, a Hugging Face directory or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import RamiformError
from .gguf.file import GGUF_SUFFIX, is_gguf
from .hub import hub_origin

SHIPPED_MODEL = Path(__file__).parents[1] / "shipped_model"
SHIPPED_NAME = "ramiform-demo"


def find_checkpoint(model: str | None) -> Path:
    """Return the directory or GGUF file of the checkpoint at `model`; None stands for the shipped model.

    Raises RamiformError when the path holds neither a config.json nor a GGUF file. Nothing is downloaded.
    """
    if model is None:
        return SHIPPED_MODEL
    path = Path(model).expanduser()
    if not path.exists():
        raise RamiformError(f"no model at {model!r}: no such path. A model is a path, or ORG/NAME of the hub")
    if is_gguf(path) and path.is_file():
        return path
    if not (path / "config.json").is_file():
        raise RamiformError(f"no model at {model!r}: it has no config.json, so it is not a Hugging Face checkpoint")
    return path


def served_name(model: str | None, served_model_name: str | None) -> str:
    """Return the model name that the HTTP API shows."""
    if served_model_name is not None:
        return served_model_name
    if model is None:
        return SHIPPED_NAME
    path = find_checkpoint(model)
    if (origin := hub_origin(path)) is not None:
        return origin.repository
    return path.resolve().name.removesuffix(GGUF_SUFFIX)
