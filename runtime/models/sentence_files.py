"""Files of sentence-transformers beside a checkpoint: how states are pooled, and which modules follow."""

from __future__ import annotations

import json
from pathlib import Path

from .config_fields import read_json_object
from .errors import CheckpointError

POOLING_FILE, _MODULES_FILE = Path("1_Pooling/config.json"), "modules.json"
# Flags of versions before 6, and the modes' names since then.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_COMPUTED_MODULES = ("Transformer", "Pooling", "Normalize")  # by their classes' last names


def stored_pooling(folder: Path) -> str | None:
    """Return the mode of pooling by its name in sentence-transformers; None: no file tells one.

    Raises CheckpointError for a file that names no mode, or several.
    """
    file = folder / POOLING_FILE
    if not file.is_file():
        return None
    raw = read_json_object(file)
    mode = raw.get("pooling_mode", [name for flag, name in _MODES.items() if raw.get(flag) is True])
    modes = mode if isinstance(mode, list) else [mode]
    if len(modes) != 1 or modes[0] not in _MODES.values():
        raise CheckpointError(file, f"must name one mode of pooling, got {mode!r}")
    return str(modes[0])


def check_modules(folder: Path) -> None:
    """Raise CheckpointError if modules.json lists a module that nothing here computes, such as a dense layer."""
    file = folder / _MODULES_FILE
    if not file.is_file():
        return
    try:
        kinds = [str(each["type"]).rpartition(".")[2] for each in json.loads(file.read_text("utf-8"))]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(file, f"must list modules with a type: {error}") from None
    if others := [kind for kind in kinds if kind not in _COMPUTED_MODULES]:
        raise CheckpointError(file, f"modules of the type {', '.join(others)} are not computed")
