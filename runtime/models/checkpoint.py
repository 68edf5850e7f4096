"""Paths of checkpoints: the shipped model, a Hugging Face directory or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import RamiformError, RequestError
from .gguf.file import gguf_parts, gguf_stem, is_gguf
from .hub import hub_origin, local_model

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
        return gguf_parts(path)[0]
    if not (path / "config.json").is_file():
        raise RamiformError(f"no model at {model!r}: it has no config.json, so it is not a Hugging Face checkpoint")
    return path


def fetch_checkpoint(model: str | None, *, out: Path | None = None, weights: bool = True) -> Path:
    """Return the checkpoint at a path or hub id for a command, which writes to `out`, else into the checkpoint.

    Raises as `local_model` and `find_checkpoint`; RequestError when the command would write into the hub's cache.
    """
    path = find_checkpoint(local_model(model, weights=weights))
    if out is None and hub_origin(path) is not None:
        raise RequestError(f"{model!r} is in the hub's cache: name a place to write to with --out", param="out")
    return path


def listed_names(served_model_name: str | None) -> tuple[str, ...]:
    """Return the names of a list separated by commas."""
    return tuple(name for part in (served_model_name or "").split(",") if (name := part.strip()))


def served_name(model: str | None, served_model_name: str | None) -> str:
    """Return the model name that the HTTP API shows: the first of those that are set."""
    if names := listed_names(served_model_name):
        return names[0]
    if model is None:
        return SHIPPED_NAME
    path = find_checkpoint(model)
    if (origin := hub_origin(path)) is not None:
        return origin.repository
    return gguf_stem(path.resolve().name)
