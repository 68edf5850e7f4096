"""A few of a target's weights, written beside a head that was trained for it. Two models of one architecture and
vocabulary cannot be told apart by shapes, and a head of the wrong one drafts nonsense without any error."""

from __future__ import annotations

from pathlib import Path

import torch

from ...models.decoder import Decoder
from ...models.errors import CheckpointError

_NUM_EACH = 8
_TOLERANCE = 2**-6  # more than rounding to bfloat16 changes, far less than another model differs


def probe(target: Decoder) -> tuple[float, ...]:
    """The first numbers of the final norm and of the last token's embedding."""
    numbers = torch.cat((target.parameters.norm.weight_E[:_NUM_EACH], target.parameters.embedding_VE[-1, :_NUM_EACH]))
    return tuple(round(value, 6) for value in numbers.float().tolist())


def check_probe(file: Path, expected: tuple[float, ...], target: Decoder) -> None:
    """Raises CheckpointError when `expected` is not empty and the target is another model."""
    if not expected:
        return
    found = probe(target)
    scale = max(map(abs, found), default=0.0)
    if len(expected) != len(found) or any(
        abs(a - b) > _TOLERANCE * max(abs(b), 2**-4 * scale) for a, b in zip(expected, found, strict=True)
    ):
        raise CheckpointError(file, "target_probe does not match the target's weights: the head is for another model")
