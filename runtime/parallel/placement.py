"""Placement of a rank: its shard, its stage and its device, from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..engine.build import choose_device
from ..models.parallel.shard import Shard, shard_of
from ..models.parallel.stage import Stage, stage_of
from ..models.read_config import read_config
from ..protocol.config import CoreConfig
from ..protocol.errors import RequestError


@dataclass(frozen=True)
class RankPlacement:
    """Number, part of the model and device of a rank."""

    rank: int
    shard: Shard
    stage: Stage
    device: torch.device


def placement_of(config: CoreConfig, path: Path, rank: int) -> RankPlacement:
    """Place rank `rank` of the model in directory `path`.

    The ranks of a stage have consecutive numbers. Each has a CUDA device of its own, from the configured one on; ranks
    on a CPU share it. Raises CheckpointError when the model's config cannot be read, RequestError naming the setting
    when the model cannot be divided or there are not enough devices.
    """
    model = read_config(path, config.model_impl)
    if not model.is_native:
        raise RequestError(
            "tp and pp need a native family; transformers computes this model", param="pp" if config.pp > 1 else "tp"
        )
    if config.ep not in (1, config.tp):
        raise RequestError(
            f"ep {config.ep} is neither 1 nor tp, {config.tp}: the processes of tp hold the experts", param="ep"
        )
    shard = shard_of(
        model,
        rank=rank % config.tp,
        size=config.tp,
        ordered=config.deterministic,
        whole_experts=config.ep > 1,
    )
    stage = stage_of(model, index=rank // config.tp, size=config.pp)
    device = choose_device(config.device)
    if device.type == "cuda":
        if config.ep > 1:
            raise RequestError("ep runs on CPUs only so far; tp divides every expert", param="ep")
        first, count = device.index or 0, len(config.own_ranks)
        if first + count > torch.cuda.device_count():
            here = "" if config.nnodes == 1 else f" over {config.nnodes} nodes"
            raise RequestError(
                f"tp {config.tp} x pp {config.pp}{here} takes cuda:{first} to cuda:{first + count - 1}: "
                f"found {torch.cuda.device_count()} of cuda",
                param="pp" if config.pp > 1 else "tp",
            )
        device = torch.device("cuda", first + rank - config.own_ranks.start)
    return RankPlacement(rank, shard, stage, device)
