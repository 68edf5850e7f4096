"""Inputs of a step of a decoder.

Legend: T tokens of the step, O outputs wanted, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels import Attention
from .experts.routes import ExpertRoutes
from .lora.adapters import StepAdapters
from .pictures.features import StepFeatures
from .recurrent.memory import RecurrentStep


@dataclass(frozen=True)
class DecoderInputs:
    """Inputs of one step: the tokens of all rows, concatenated."""

    ids_T: torch.Tensor
    positions_T: torch.Tensor
    angles: tuple[tuple[torch.Tensor, torch.Tensor], ...]  # cos and sin [T, 1, D] of the rope, then of the second one
    slots_T: torch.Tensor  # the KV slot of each token
    attention: dict[int | None, Attention]  # by window
    wanted_O: torch.Tensor | None  # indices of tokens whose hidden states are read; None: all
    recurrent: RecurrentStep | None = None  # of a model with recurrent layers
    adapters: StepAdapters | None = None  # None: all tokens are the base's
    pictures: StepFeatures | None = None  # None: all inputs are embeddings
    window_slots_T: torch.Tensor | None = None  # those of layers with a window, if they are others
    routes: ExpertRoutes | None = None  # where the tokens' experts are recorded; None: nowhere
    widened: bool = False  # True: they are a long prompt's, for which layers widen weights of codes

    def with_pictures(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input [T, E]: embeddings, with features of pictures in place of some."""
        return x_TE if self.pictures is None else self.pictures.put_into(x_TE)
