"""Training loop of a draft head or Medusa heads, and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ...runtime.models.errors import CheckpointError
from ...runtime.protocol.errors import RequestError
from .batches import TrainingBatches
from .config import TrainConfig
from .losses import Losses
from .target import Target

# Ids, weights, captured states and final states of a batch, and a source of noise -> its loss.
LossOfBatch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Generator], Losses]
_CLIP = 0.5  # norm of the gradient, as published


class Trainer:
    """Trains a head with linear warmup and a cosine decay to a twentieth of the learning rate."""

    def __init__(
        self,
        trained: dict[str, torch.Tensor],
        loss: LossOfBatch,
        target: Target,
        batches: TrainingBatches,
        config: TrainConfig,
    ) -> None:
        """`trained` are the tensors to change, which `loss` reads."""
        self.step = 0
        self._loss, self._target, self._batches, self._config = loss, target, batches, config
        self._trained = trained
        for tensor in self._trained.values():
            tensor.requires_grad_(True)
        self._optimizers = _optimizers(self._trained, config)

    def train_step(self) -> Losses:
        """Train on one batch. Texts and noise are a function of the run's seed and the step."""
        config, device = self._config, self._target.model.device
        batch = self._batches[self.step]
        captured_BTC, final_BTE = self._target.states(batch.texts)
        noise = torch.Generator().manual_seed(config.seed * 1_000_003 + self.step)
        with torch.autocast(device.type, torch.bfloat16, enabled=self._target.model.dtype == torch.bfloat16):
            found = self._loss(
                batch.ids_BT.to(device),
                batch.weights_BT.to(device),
                captured_BTC.float(),
                final_BTE.float(),
                noise,
            )
        found.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._trained.values(), _CLIP)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * self._rate(self.step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return found

    def _rate(self, step: int) -> float:
        if step < self._config.warmup:
            return (step + 1) / self._config.warmup
        done = (step - self._config.warmup) / max(1, self._config.num_steps - self._config.warmup)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def save(self, file: Path) -> None:
        """Write all that `resume` needs, replacing the file atomically."""
        part = file.with_suffix(".part")
        state = {
            "config": asdict(self._config),
            "step": self.step,
            "head": {name: tensor.detach() for name, tensor in self._trained.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        torch.save(state, part)
        part.replace(file)

    def resume(self, file: Path) -> None:
        """Continue from a saved state. Raises CheckpointError when its settings differ in more than the number of
        steps."""
        state = torch.load(file, map_location=self._target.model.device, weights_only=True)
        ours = asdict(self._config)
        for name, value in state["config"].items():
            if name != "num_steps" and ours.get(name) != value:
                raise CheckpointError(file, f"was begun with {name} {value!r}, now {ours.get(name)!r}: remove it first")
        with torch.no_grad():
            for name, tensor in self._trained.items():
                tensor.copy_(state["head"][name])
        for optimizer, values in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step = state["step"]


def _optimizers(trained: dict[str, torch.Tensor], config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Return AdamW, as published; or Muon for the layer's matrices (Jordan 2024) and AdamW for the rest, at the same
    learning rate, which needs fewer steps."""
    decay = 0.01
    matrices = [
        tensor
        for name, tensor in trained.items()
        if config.optimizer == "muon" and tensor.ndim == 2 and not name.startswith("lm_head")
    ]
    chosen = {id(tensor) for tensor in matrices}
    others = [tensor for tensor in trained.values() if id(tensor) not in chosen]
    adamw = torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=decay)
    if not matrices:
        return [adamw]
    if not hasattr(torch.optim, "Muon"):
        raise RequestError(f"torch {torch.__version__} has no Muon: it needs torch 2.9", param="optimizer")
    muon = torch.optim.Muon(
        matrices, lr=config.learning_rate, momentum=0.95, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, adamw]
