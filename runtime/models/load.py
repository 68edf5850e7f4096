"""From a checkpoint's directory to a Decoder."""

from __future__ import annotations

from pathlib import Path

import torch

from .config import read_config
from .decoder import Decoder
from .parameters import allocate, destinations
from .weights import Progress, load_weights


def load_model(path: Path, *, device: torch.device, dtype: torch.dtype, on_progress: Progress | None = None) -> Decoder:
    """The decoder of the Hugging Face checkpoint in directory `path`, its weights as `dtype` on `device`.

    Raises CheckpointError when the directory, its config.json or its safetensors cannot be served.
    """
    config = read_config(path)
    parameters = allocate(config, device=device, dtype=dtype)
    load_weights(path, destinations(parameters, config), on_progress)
    return Decoder(config, parameters)
