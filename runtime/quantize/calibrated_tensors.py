"""What a calibrated method writes for a checkpoint's tensors. Knows files and texts; the methods know neither."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from ..engine.build import choose_device, choose_dtype
from ..models.config import ModelConfig
from ..models.load import load_model
from ..models.parameters import num_parameters
from ..models.weights import Progress
from ..protocol.errors import RequestError
from .calibration import Method, round_layers
from .int4_matrix import packed_tensors


class CalibratedTensors(NamedTuple):
    written: dict[str, dict[str, torch.Tensor]]  # by the name of the tensor that they take the place of
    seldom: list[str]  # modules that the text gave too little to suit


MAX_TOKENS = 1 << 15  # of the text; more change little
WINDOW = 512  # tokens that are read together


def calibrate(
    path: Path, config: ModelConfig, method: Method, text: str, group_size: int, on_progress: Progress | None = None
) -> CalibratedTensors:
    """Raises RequestError naming `calibration` when the text has fewer tokens than a window. The whole dense model is
    loaded; on a CUDA device, when there is one."""
    tokens = Tokenizer.from_file(str(path / "tokenizer.json")).encode(text, add_special_tokens=False).ids[:MAX_TOKENS]
    window = min(WINDOW, config.context_length)
    if len(tokens) < window:
        raise RequestError(
            f"the text has {len(tokens)} tokens: calibrating takes at least {window}", param="calibration"
        )
    texts = [tokens[start : start + window] for start in range(0, len(tokens) - window + 1, window)]
    device = choose_device("auto")
    dtype = choose_dtype("auto", device, num_parameters(config))
    model = load_model(path, device=device, dtype=dtype)
    found = CalibratedTensors({}, [])
    for done, layer in enumerate(round_layers(model, texts, method, group_size), start=1):
        for module, groups in layer.groups.items():
            found.written[f"{module}.weight"] = {
                name: part.cpu() for name, part in packed_tensors(module, groups).items()
            }
        found.written.update({name: {name: tensor.cpu()} for name, tensor in layer.dense.items()})
        found.seldom.extend(layer.seldom)
        if on_progress is not None:
            on_progress(done, config.num_layers)
    return found
