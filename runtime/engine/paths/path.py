"""Interface of a path, one way to compute and sample the rows of a plan.

A path declares the needs (`engine/needs.py`) that it meets. An engine asks its paths in order, and the first that
declares all needs of a plan computes it. The last one, `general.General`, meets every need, and is what the others must
equal.

Legend: O outputs, V vocabulary, T tokens of the step, E hidden size, R rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
import torch

from ....kernels import Deferred, to_device
from ...models.decoder import Decoder
from ...models.parallel.group import SINGLE_RANK, Group, is_rank_zero
from ...protocol.sampling import TokenLogprob
from ...scheduler.plan import Row, Sample
from ..draft_source import DraftSource
from ..kv_pool import KvPool
from ..last_tokens import NO_LAST_TOKENS, LastTokens
from ..logprobs import chosen_logprobs
from ..needs import Need
from ..sampled_positions import SampledPositions
from ..sampler import sample
from .step_graphs import StepGraphs


@dataclass
class EngineParts:
    """Model and memory of an engine, which its paths are made of.

    `group` are the ranks that run the same plans, each on its part of the model; rank 0 has the draft source.
    """

    model: Decoder
    pool: KvPool
    group: Group = SINGLE_RANK
    source: DraftSource | None = None
    graphs: StepGraphs | None = None
    textless_N: torch.Tensor | None = None  # ids that are not drawn, int64 on the model's device


class Forward(NamedTuple):
    """Results of a step's forward, queued on the device."""

    # Float32, of the tokens after which one is sampled, or may be: each row's last committed token and its draft
    # tokens. None: there are none, or another stage has them.
    logits_OV: torch.Tensor | None
    features_TE: torch.Tensor | None = None  # for the draft source
    scores: Deferred[list[list[TokenLogprob]]] = list
    pools: Deferred[list[np.ndarray]] = list  # sums of hidden states, float32 [E] each

    @classmethod
    def joined(cls, parts: Sequence[Forward]) -> Forward:
        """Return the forward of the rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        logits = [part.logits_OV for part in parts if part.logits_OV is not None]
        features = [part.features_TE for part in parts if part.features_TE is not None]
        return cls(
            torch.cat(logits) if logits else None,
            torch.cat(features) if features else None,
            lambda: [scores for part in parts for scores in part.scores()],
            lambda: [pool for part in parts for pool in part.pools()],
        )


class Sampled(NamedTuple):
    """Tokens of a step, queued on the device."""

    last_tokens: LastTokens = NO_LAST_TOKENS
    rows: Sequence[int] = ()  # indices of the rows that sample
    # All outputs' tokens or NOT_FINITE, and for each row that samples its outputs on the path that they confirm.
    verified: Deferred[tuple[list[int], list[list[int]]]] = lambda: ([], [])
    logprobs: Deferred[dict[int, TokenLogprob]] = dict
    tokens_R: list[int] | None = None  # one token of each row, if there is nothing else


_LOWEST = -1e30  # finite: a mask may allow nothing else
NO_FORWARD = Forward(None)
NOTHING_SAMPLED = Sampled()


class Path(ABC):
    """One way to compute and sample plans on this engine's device.

    `computes` are the needs of a forward that it meets. To add a path: a subclass in a file of this folder, and its
    `of` in `PATHS`.
    """

    computes: frozenset[Need]
    name: ClassVar[str]

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts

    def meets(self, needs: frozenset[Need]) -> bool:
        """Return True if it declares all of these needs of a forward."""
        return needs <= self.computes

    @abstractmethod
    def forward(self, rows: list[Row], last_tokens: LastTokens, *, features: bool) -> Forward | None:
        """Queue the forward of rows whose needs it meets; None, with nothing queued, if it has no room for them.

        `last_tokens` are those of the last step. With `features` the draft source wants its captures.
        """

    def sample(self, forward: Forward, rows: Sequence[Row], needs: frozenset[Need]) -> Sampled:
        """Queue sampling and verification of drafts; `needs` are those of the rows' sampling."""
        model, logits_OV = self.parts.model, forward.logits_OV
        sampling = [index for index, row in enumerate(rows) if row.sample is not None]
        if not sampling:
            return NOTHING_SAMPLED
        self.rule_out_textless(logits_OV)
        outputs = SampledPositions.from_rows(rows[index] for index in sampling)
        # A row that follows another may turn out not to sample.
        if logits_OV is not None and len(outputs) < logits_OV.shape[0]:
            open_rows = [row for row in rows if row.sample is not None or row.follows is not None]
            kept_O = np.repeat([row.sample is not None for row in open_rows], [1 + len(row.nodes) for row in open_rows])
            logits_OV = logits_OV[to_device([np.flatnonzero(kept_O)], logits_OV.device)[0]]
        tokens_O = self._sample(logits_OV, outputs)
        return Sampled(
            LastTokens(tokens_O, dict(zip(sampling, outputs.starts, strict=False))),
            sampling,
            outputs.verify(model.ops, tokens_O, self.parts.pool),
            dict
            if logits_OV is None
            else chosen_logprobs(model.ops, logits_OV, tokens_O, outputs.samples, outputs.masks),
        )

    def rule_out_textless(self, logits_OV: torch.Tensor | None) -> None:
        """Lower the logits of ids without text, in place, so that they are drawn only where no others are allowed."""
        if self.parts.textless_N is not None and logits_OV is not None:
            logits_OV.index_fill_(1, self.parts.textless_N, _LOWEST)

    def decode_again(
        self, rows: Sequence[Row], number: int, tokens_R: Sequence[int], last: Sampled, needs: frozenset[Need]
    ) -> tuple[Forward, Sampled]:
        """Compute and sample decode step `number` of rows of one token, which `tokens_R` follow; `last` is the sampling
        before it, `needs` those of the rows' sampling."""
        following = [
            msgspec.structs.replace(
                row,
                tokens=[token],
                first_position=row.first_position + number,
                follows=None,
                sample=next_sample(row, number),
            )
            for row, token in zip(rows, tokens_R, strict=True)
        ]
        forward = self.forward(following, last.last_tokens, features=False)
        assert forward is not None, "it had room for as many rows"
        return forward, self.sample(forward, following, needs)

    def _sample(self, logits_OV: torch.Tensor | None, outputs: SampledPositions) -> torch.Tensor:
        """Return the tokens that rank 0 samples, or NOT_FINITE, int64 [O]."""
        group, model = self.parts.group, self.parts.model
        if is_rank_zero(group):
            assert logits_OV is not None
            return group.broadcast(sample(model.ops, logits_OV, outputs.samples, outputs.masks))
        return group.broadcast(torch.empty(len(outputs), dtype=torch.int64, device=model.device))


def next_sample(row: Row, number: int) -> Sample:
    """Return the sampling of decode step `number` of a plan."""
    assert row.sample is not None
    return msgspec.structs.replace(row.sample, draw=row.draws[number - 1]) if row.draws else row.sample
