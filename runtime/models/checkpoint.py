"""Where a model's files are. Knows paths and names, not what is in the files."""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import RamiformError
from .gguf.file import GGUF_SUFFIX, is_gguf

SHIPPED_MODEL = Path(__file__).parents[1] / "shipped_model"
SHIPPED_NAME = "ramiform-demo"


def find_checkpoint(model: str | None) -> Path:
    """The folder of the checkpoint at `model`, or the GGUF file there; that of the model that ships when None.

    Raises RamiformError when there is no folder with a config.json there and no GGUF file. Nothing is ever downloaded.
    """
    if model is None:
        return SHIPPED_MODEL
    path = Path(model).expanduser()
    if not path.exists():
        raise RamiformError(f"no model at {model!r}: no such folder. A model is a local path; nothing is downloaded")
    if is_gguf(path) and path.is_file():
        return path
    if not (path / "config.json").is_file():
        raise RamiformError(f"no model at {model!r}: it has no config.json, so it is not a Hugging Face checkpoint")
    return path


def served_name(model: str | None, served_model_name: str | None) -> str:
    if served_model_name is not None:
        return served_model_name
    return SHIPPED_NAME if model is None else find_checkpoint(model).resolve().name.removesuffix(GGUF_SUFFIX)
