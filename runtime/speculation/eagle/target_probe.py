"""Fingerprint of a target: a few of its weights, stored beside a head that was trained for it.

Two models of one architecture and vocabulary cannot be distinguished by shapes, and a head of the wrong one drafts
nonsense without any error.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ...models.decoder import Decoder
from ...models.errors import CheckpointError

_NUM_EACH = 8
_TOLERANCE = 2**-6  # above rounding to bfloat16, far below the difference of models


def probe(target: Decoder) -> tuple[float, ...]:
    """Return the first numbers of the final norm and of the last token's embedding."""
    parameters = target.parameters
    last_E = parameters.embed(torch.tensor([parameters.num_embedded - 1], device=target.device))[0]
    numbers = torch.cat((parameters.norm.weight_E[:_NUM_EACH], last_E[:_NUM_EACH]))
    return tuple(round(value, 6) for value in numbers.float().tolist())


def check_probe(file: Path, expected: tuple[float, ...], target: Decoder) -> None:
    """Raise CheckpointError when `expected` is not empty and the target is another model."""
    if not expected:
        return
    found = probe(target)
    scale = max(map(abs, found), default=0.0)
    if len(expected) != len(found) or any(
        abs(a - b) > _TOLERANCE * max(abs(b), 2**-4 * scale) for a, b in zip(expected, found, strict=True)
    ):
        raise CheckpointError(file, "target_probe does not match the target's weights: the head is for another model")
