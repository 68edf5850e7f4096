"""Small checkpoints that are divided among ranks and stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 203,  # the last rank's rows are fewer
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
    "tie_word_embeddings": False,
}


def checkpoint_maker(
    models: Mapping[str, Callable[[], transformers.PretrainedConfig]], new_folder: Callable[[str], Path]
) -> Callable[[str], Path]:
    """Return a function from a name of `models` to the directory of its random checkpoint, made on first use. Every
    parameter of the checkpoint matters."""
    torch.set_num_threads(1)
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            torch.manual_seed(len(name))
            model = transformers.AutoModelForCausalLM.from_config(models[name](), dtype=torch.float32)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 1:
                        parameter.add_(0.3 * torch.randn_like(parameter))
            made[name] = new_folder("checkpoint")
            model.save_pretrained(made[name])
        return made[name]

    return make
