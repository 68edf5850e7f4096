"""From a checkpoint's directory to a Decoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..gguf_file import is_gguf
from .config import read_config
from .decoder import Decoder
from .errors import CheckpointError
from .parameters import allocate, destinations
from .quantised.rounding import int4_group_size
from .quantised.scheme import Kind, while_loading
from .weights import Progress, load_weights


def load_model(
    path: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    quantize: Kind | None = None,
    on_progress: Progress | None = None,
) -> Decoder:
    """The decoder of the Hugging Face checkpoint in directory `path`, or of the GGUF file `path`, its weights as
    `dtype` on `device`.

    `quantize` rounds the linear layers of a dense checkpoint, tensor by tensor as they are read; embeddings, head and
    norms stay. Raises CheckpointError when the directory, its config.json or its safetensors cannot be served, or
    are to be quantised twice.
    """
    config = read_config(path)
    if quantize is not None:
        if config.quantisation is not None:
            raise CheckpointError(
                path, f"holds {config.quantisation.scheme.kind} weights already: quantize {quantize!r} asks too much"
            )
        config = replace(config, quantisation=while_loading(quantize, int4_group_size(*config.linear_inputs)))
    try:
        parameters = allocate(config, device=device, dtype=dtype)
    except ValueError as error:
        raise CheckpointError(path, str(error)) from None
    if is_gguf(path):
        from .gguf_weights import load_gguf_weights  # the package that reads them need not be installed

        load_gguf_weights(path, config, destinations(parameters, config), on_progress)
    else:
        load_weights(path, destinations(parameters, config), on_progress)
    for linear in parameters.linears():
        linear.finish()
    return Decoder(config, parameters)
