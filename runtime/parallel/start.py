"""What a rank starts with, from the configuration alone: the same on every rank, but for its number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..engine.build import choose_device
from ..models.config import read_config
from ..protocol.config import CoreConfig
from ..protocol.errors import RequestError
from .shard import Shard, cut

RENDEZVOUS = "rendezvous"  # a file among the sockets


@dataclass(frozen=True)
class Place:
    """Where a rank computes, and what."""

    shard: Shard
    device: torch.device


def place_of(config: CoreConfig, path: Path, rank: int) -> Place:
    """Of rank `rank` of the model in directory `path`. Ranks have CUDA devices of their own, from the one that is asked
    for on; on a CPU they share it.

    Raises CheckpointError when the model's config cannot be read, RequestError naming the setting when it cannot be
    divided, or there are not enough devices.
    """
    shard = cut(read_config(path), rank=rank, size=config.tp, ordered=config.deterministic)
    device = choose_device(config.device)
    if device.type == "cuda":
        first = device.index or 0
        if first + config.tp > torch.cuda.device_count():
            raise RequestError(
                f"tp {config.tp} takes cuda:{first} to cuda:{first + config.tp - 1}: "
                f"found {torch.cuda.device_count()} of cuda",
                param="tp",
            )
        device = torch.device("cuda", first + rank)
    return Place(shard, device)
