"""Compute any plan: tensors of its inputs, the model's layers, then logits, scores and pooled states of hidden states.

On several stages, the layers are spread over ranks (`stages.py`).

Legend: O tokens whose hidden states are read, P those of one row that are pooled, E hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch

from ....kernels import to_host
from ...scheduler.plan import Row
from ..last_tokens import LastTokens
from ..logprobs import score
from ..needs import Need
from .path import EngineParts, Forward, Path
from .stages import hidden_and_features


class WantedTokens(NamedTuple):
    """Indices, among the tokens of all rows, of those whose hidden states are read."""

    sampled: list[int]  # after which one is sampled, or may be
    scored: list[range]  # one of each row that has scores
    pooled: list[range]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> WantedTokens:
        starts_R = [0, *accumulate([len(row.tokens) for row in rows])]
        return cls(sampled_tokens(rows), _indices(rows, starts_R, _scored), _indices(rows, starts_R, _pooled))

    @property
    def indices(self) -> np.ndarray:
        """All of them, int64 [O]."""
        return np.array([*self.sampled, *chain(*self.scored), *chain(*self.pooled)], np.int64)


class HiddenStatesPath(Path):
    """Computes hidden states, and of them all that a plan may ask for."""

    @abstractmethod
    def hidden(
        self, rows: list[Row], wanted: np.ndarray, last_tokens: LastTokens, *, features: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return the hidden states [O, E] of the `wanted` tokens, and the draft source's features if these are wanted;
        None, with nothing queued, if it has no room for the rows."""

    def forward(self, rows: list[Row], last_tokens: LastTokens, *, features: bool) -> Forward | None:
        wanted = WantedTokens.of(rows)
        found = self.hidden(rows, wanted.indices, last_tokens, features=features)
        if found is None:
            return None
        (hidden_OE, features_TE), model = found, self.parts.model
        if not self.parts.group.stage.has_ends:
            return Forward(None)  # only the first stage has hidden states
        sizes = [len(wanted.sampled), sum(map(len, wanted.scored)), *map(len, wanted.pooled)]
        sampled_OE, scored_OE, *pools_PE = hidden_OE.split(sizes)
        forward = Forward(model.logits(sampled_OE) if wanted.sampled else None, features_TE)
        if wanted.scored:
            scores = [row.score for row in rows if row.score is not None]
            found_scores = score(model.ops, scored_OE, scores, model.logits, model.config.vocab_size)
            forward = forward._replace(scores=found_scores)
        if wanted.pooled:
            forward = forward._replace(pools=to_host([pool_PE.float().sum(dim=0) for pool_PE in pools_PE]))
        return forward


class General(HiddenStatesPath):
    """Computes every plan. Other paths compute some of them faster, with equal results."""

    name = "general"

    @classmethod
    def of(cls, parts: EngineParts) -> General:
        return cls(parts)

    def meets(self, needs: frozenset[Need]) -> bool:
        return True

    def hidden(
        self, rows: list[Row], wanted: np.ndarray, last_tokens: LastTokens, *, features: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        model, pool, group, source = self.parts.model, self.parts.pool, self.parts.group, self.parts.source
        captures = source.captures if features and source is not None else ()
        kv = pool.arriving_layers()
        return hidden_and_features(rows, wanted, model, kv, group, captures, last_tokens, pool.routes)


def sampled_tokens(rows: Sequence[Row]) -> list[int]:
    """Return the indices, among the tokens of all rows, of those after which one is sampled, or may be: each row's last
    committed token and its draft tokens."""
    found: list[int] = []
    end = 0
    for row in rows:
        end += len(row.tokens)
        if row.sample is not None or row.follows is not None:
            found += range(end - 1 - len(row.parents or ()), end)
    return found


def _indices(rows: Sequence[Row], starts_R: Sequence[int], tokens: Callable[[Row], range | None]) -> list[range]:
    """Return the indices in the step of the `tokens` of each row that has any; `tokens` gives indices in the row."""
    found = ((tokens(row), start) for row, start in zip(rows, starts_R, strict=False))
    return [range(start + own.start, start + own.stop) for own, start in found if own is not None]


def _scored(row: Row) -> range | None:
    """Return the tokens whose successors are scored."""
    if row.score is None:
        return None
    last = row.score.first + len(row.score.targets)
    assert last <= len(row.tokens), "a score asks for tokens that the row does not hold"
    return range(row.score.first, last)


def _pooled(row: Row) -> range | None:
    if row.pool_from is None:
        return None
    assert row.pool_from < len(row.tokens), "pooling asks for tokens that the row does not hold"
    return range(row.pool_from, len(row.tokens))
