"""Compute small steps on a CUDA device by replaying a graph of the model's forward."""

from __future__ import annotations

import numpy as np
import torch

from ...scheduler.plan import Row
from ..last_tokens import LastTokens
from ..needs import Need
from .general import HiddenStatesPath
from .path import EngineParts
from .step_graphs import StepGraphs


class GraphReplay(HiddenStatesPath):
    """Replays the graph of a step's size, if there is one."""

    name = "graphs"
    computes: frozenset[Need] = frozenset(
        {
            "ForwardPlan.followed",
            "Row.tokens",
            "Row.sample",
            "Row.follows",
            "Row.window_pages",
            "Row.parents",
            "Row.nodes",
            "Row.score",
            "Row.pool_from",
        }
    )

    def __init__(self, parts: EngineParts, graphs: StepGraphs) -> None:
        super().__init__(parts)
        self._graphs = graphs

    @classmethod
    def of(cls, parts: EngineParts) -> GraphReplay | None:
        """Return the path; None if the engine has no graphs."""
        return None if parts.graphs is None else cls(parts, parts.graphs)

    def hidden(
        self, rows: list[Row], wanted: np.ndarray, last_tokens: LastTokens, *, features: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        return self._graphs.hidden_and_features(
            rows, wanted, last_tokens, features=features, before=self.parts.pool.settle
        )
