"""Inputs of a step of a decoder.

Legend: T tokens of the step, O outputs wanted, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels import Attention
from .lora.adapters import StepAdapters
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
    window_slots_T: torch.Tensor | None = None  # those of layers with a window, if they are others
