"""Saves a head as a directory that `load_head`, and servers that read published heads, can load."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from ...models.config import ModelConfig
from .config import config_json
from .head import EagleHead
from .parameters import checkpoint_layout


def save_head(head: EagleHead, target: ModelConfig, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json and model.safetensors into directory `path`, which is created; the weights are replaced
    atomically."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: part.detach().to("cpu", dtype).contiguous()
        for name, part in checkpoint_layout(head.parameters, head.config).items()
    }
    if head.config.kind == "eagle3":
        ids = head.token_ids(torch.arange(head.config.draft_vocab_size, device=head.device)).cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(head.config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    (path / "config.json").write_text(json.dumps(config_json(head.config, target), indent=2) + "\n", encoding="utf-8")
    part = path / "model.safetensors.part"
    save_file(tensors, part, metadata={"format": "pt"})
    part.replace(path / "model.safetensors")
