"""Compute layers and head on a CPU by one compiled call, on tensors of the step's inputs."""

from __future__ import annotations

import numpy as np

from ...scheduler.plan import Row
from ..inputs import decoder_inputs
from ..last_tokens import LastTokens
from ..needs import Need
from .general import sampled_tokens
from .path import EngineParts, Forward, Path

_ROWS: frozenset[Need] = frozenset(
    {"Row.tokens", "Row.sample", "Row.follows", "Row.window_pages", "Row.parents", "Row.nodes"}
    | {"Row.adapter", "Row.rope_length", "Row.pictures", "Row.rope_offset", "Row.widened"}
)


class CompiledStep(Path):
    """Computes logits, and no hidden states, which scores, pooling and draft heads read."""

    name = "compiled"

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        has_captures = parts.source is not None and bool(parts.source.captures)
        self.computes = _ROWS if has_captures else _ROWS | {"ForwardPlan.followed"}

    @classmethod
    def of(cls, parts: EngineParts) -> CompiledStep | None:
        """Return the path; None if the model's layers and head are not compiled, or others compute parts of them."""
        is_whole = parts.group.stage.size == 1
        return cls(parts) if is_whole and parts.model.compiled_head is not None else None

    def forward(self, rows: list[Row], last_tokens: LastTokens, *, features: bool) -> Forward:
        model, kv = self.parts.model, self.parts.pool.arriving_layers()
        wanted = np.array(sampled_tokens(rows), np.int64)
        return Forward(model.logits_of_step(decoder_inputs(rows, model, wanted, kv[0], last_tokens), kv))
