"""A step that the device computes: what is still to be sampled, and what will be read once it is done.

Making one queues the forward and whatever else needs nothing but the plan; `sample` queues the rest of an open plan;
`wait` alone waits for the device. Work is done in the order in which it is queued, so a step that is launched before
this one's result is read finds keys, values and tokens in place.

Legend: R rows, T tokens of the step, O outputs, P outputs of one row that are pooled, E hidden size, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from ...kernels import Deferred, to_device, to_host
from ..models.decoder import Decoder
from ..models.parallel.group import Group, is_rank_zero
from ..protocol.sampling import TokenLogprob
from ..scheduler.plan import ForwardPlan, ForwardResult, Row, RowResult, RowSampling, SamplingPlan
from .decode_graphs import DecodeGraphs
from .draft_source import DraftRow, DraftSource, DraftStep
from .kv_pool import KvPool
from .last_tokens import NO_LAST_TOKENS, LastTokens
from .logprobs import score
from .sampled_positions import SampledPositions
from .sampler import chosen_logprobs, sample
from .stages import hidden_and_features


def draft_step(
    rows: Sequence[Row], results: Sequence[RowResult], starts_R: Sequence[int], features_TE: torch.Tensor | None
) -> DraftStep:
    """`starts_R` says where each row's tokens start in the step; `features_TE` are those of all of them."""
    if all(row.parents is None for row in rows):
        return DraftStep(
            [
                DraftRow(
                    row.tokens, row.first_position, row.pages, result.tokens[-1] if result.tokens else None, row.draft
                )
                for row, result in zip(rows, results, strict=True)
            ],
            features_TE,
        )
    kept_rows, indices = [], []
    for index, row in enumerate(rows):
        tokens, num_committed = results[index].tokens, row.num_committed
        kept_rows.append(
            DraftRow(
                kept=row.tokens[:num_committed] + tokens[:-1],
                first_position=row.first_position,
                pages=row.pages,
                next_token=tokens[-1] if tokens else None,
                want=row.draft,
            )
        )
        start = starts_R[index]
        indices.extend(range(start, start + num_committed))
        node = -1
        for token in tokens[:-1]:
            node = next(
                child
                for child, parent in enumerate(row.parents or ())
                if parent == node and row.tokens[num_committed + child] == token
            )
            indices.append(start + num_committed + node)
    if features_TE is not None and len(indices) < len(features_TE):
        features_TE = features_TE[torch.tensor(indices, device=features_TE.device)]
    return DraftStep(kept_rows, features_TE)


@dataclass
class ModelRunner:
    """What computes steps, and what the last one left there."""

    model: Decoder
    pool: KvPool
    group: Group
    source: DraftSource | None = None
    graphs: DecodeGraphs | None = None
    sampled: LastTokens = NO_LAST_TOKENS
    said: Sequence[RowResult] = ()  # of the step that was waited for last

    def forward(
        self, rows: list[Row], wanted: np.ndarray, *, features: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states of the `wanted` tokens, given by their indices in the step, and the source's features, if they
        are wanted."""
        if self.graphs is not None and self.graphs.fits(rows):
            return self.graphs.hidden_and_features(rows, self.sampled, features=features)  # every token is wanted
        captures = self.source.captures if features and self.source is not None else ()
        return hidden_and_features(rows, wanted, self.model, self.pool.layers, self.group, captures, self.sampled)

    def decide(self, logits_OV: torch.Tensor | None, outputs: SampledPositions) -> torch.Tensor:
        """int64 [O]: what rank 0 samples."""
        if is_rank_zero(self.group):
            assert logits_OV is not None
            return self.group.broadcast(sample(self.model.ops, logits_OV, outputs.samples, outputs.masks))
        return self.group.broadcast(torch.empty(len(outputs), dtype=torch.int64, device=self.model.device))


class InFlightStep:
    """One step, as `pipeline.Launched` has it. To be made, sampled and waited for under `torch.inference_mode`."""

    def __init__(self, device: ModelRunner, plan: ForwardPlan) -> None:
        self._began = time.perf_counter()
        self._device = device
        self._plan = plan
        num_R = [len(row.tokens) for row in plan.rows]
        self._starts_R: list[int] = (np.cumsum(num_R) - num_R).astype(np.int64).tolist()
        self._logits_OV: torch.Tensor | None = None
        self._features_TE: torch.Tensor | None = None
        self._sampling: list[int] = []  # indices of the rows that sample
        self._way: Deferred[tuple[list[int], list[list[int]]]] = lambda: ([], [])
        self._logprobs: Deferred[dict[int, TokenLogprob]] = dict
        self._scores: Deferred[list[list[TokenLogprob]]] = list
        self._pools: Deferred[list[np.ndarray]] = list
        device.pool.copy(plan.copies)
        if device.source is not None and plan.copies:
            device.source.copy(plan.copies)
        if plan.rows:
            self._compute(plan.rows)
        if not plan.is_open:
            self._decide(plan.rows)

    @torch.inference_mode()
    def sample(self, sampling: SamplingPlan) -> None:
        """What the rows sample that follow others."""
        assert sampling.step == self._plan.step
        own = iter(sampling.rows)
        self._decide([row if row.follows is None else _with_sampling(row, next(own)) for row in self._plan.rows])

    @torch.inference_mode()
    def wait(self) -> ForwardResult:
        tokens, ways = self._way()
        logprobs, scores, pools = self._logprobs(), iter(self._scores()), iter(self._pools())
        way_of = dict(zip(self._sampling, ways, strict=True))
        results = [
            RowResult(
                tokens=[tokens[output] for output in way_of.get(index, ())],
                logprobs=[logprobs[output] for output in way_of.get(index, ()) if output in logprobs],
                scores=[] if row.score is None else next(scores),
                pooled=None if row.pool_from is None else next(pools).astype("<f4").tobytes(),
            )
            for index, row in enumerate(self._plan.rows)
        ]
        if self._device.source is not None and results:
            results = self._tell(self._device.source, results)
        return ForwardResult(step=self._plan.step, rows=results, seconds=time.perf_counter() - self._began)

    def _tell(self, source: DraftSource, results: list[RowResult]) -> list[RowResult]:
        """The source, of the step. The results, with the guesses that it answers."""
        rows, device = self._plan.rows, self._device
        if not self._plan.followed:
            source.skip([_with_token(row, device.said) for row in rows] if self._plan.is_open else rows)
            device.said = results
            return results
        drafts = source.follow(draft_step(rows, results, self._starts_R, self._features_TE))
        results = [
            result if draft is None else msgspec.structs.replace(result, draft=draft)
            for result, draft in zip(results, drafts, strict=True)
        ]
        device.said = results
        return results

    def _compute(self, rows: list[Row]) -> None:
        """The forward, and what is read off it without sampling."""
        device, model, starts_R = self._device, self._device.model, self._starts_R
        sampled = _indices(rows, starts_R, _sampled)
        scored = _indices(rows, starts_R, _scored)
        pooled = _indices(rows, starts_R, _pooled)
        hidden_OE, self._features_TE = device.forward(
            rows, np.concatenate((*sampled, *scored, *pooled, _NONE)), features=self._plan.followed
        )
        if not device.group.stage.has_ends:
            return  # it is all read off hidden states
        sizes = [sum(map(len, sampled)), sum(map(len, scored)), *map(len, pooled)]
        sampled_OE, scored_OE, *pools_PE = hidden_OE.split(sizes)
        if sampled:
            self._logits_OV = model.logits(sampled_OE)
        if scored:
            scores = [row.score for row in rows if row.score is not None]
            self._scores = score(model.ops, scored_OE, scores, model.logits, model.config.vocab_size)
        if pooled:
            self._pools = to_host([pool_PE.float().sum(dim=0) for pool_PE in pools_PE])

    def _decide(self, rows: list[Row]) -> None:
        """Sample, see what that says about guesses, and keep the tokens for the step after this one."""
        device, logits_OV = self._device, self._logits_OV
        self._sampling = [index for index, row in enumerate(rows) if row.sample is not None]
        outputs = SampledPositions.of(rows[index] for index in self._sampling)
        device.sampled = NO_LAST_TOKENS
        if not self._sampling:
            return
        if logits_OV is not None and len(outputs) < len(
            logits_OV
        ):  # not every row that follows another does sample; none of these has guesses
            open_rows = [row for row in rows if row.sample is not None or row.follows is not None]
            kept = [output for output, row in enumerate(open_rows) if row.sample is not None]
            logits_OV = logits_OV[to_device([np.array(kept)], logits_OV.device)[0]]
        tokens_O = device.decide(logits_OV, outputs)
        self._way = outputs.walk(device.model.ops, tokens_O, device.pool)
        if logits_OV is not None:
            self._logprobs = chosen_logprobs(device.model.ops, logits_OV, tokens_O, outputs.samples)
        device.sampled = LastTokens(tokens_O, dict(zip(self._sampling, outputs.starts, strict=False)))


_NONE = np.empty(0, dtype=np.int64)


def _with_token(row: Row, before: Sequence[RowResult]) -> Row:
    """The row with the token that it follows, if it does; `before` are the results of the step before."""
    return row if row.follows is None else msgspec.structs.replace(row, tokens=[before[row.follows].tokens[-1]])


def _with_sampling(row: Row, own: RowSampling | None) -> Row:
    return row if own is None else msgspec.structs.replace(row, sample=own.sample, mask=own.mask)


def _indices(rows: Sequence[Row], starts_R: Sequence[int], tokens: Callable[[Row], range | None]) -> list[np.ndarray]:
    """Of each row that has any, which of the step's tokens they are, given which of the row's."""
    found = ((tokens(row), start) for row, start in zip(rows, starts_R, strict=True))
    return [np.arange(start + own.start, start + own.stop) for own, start in found if own is not None]


def _sampled(row: Row) -> range | None:
    """Tokens after which one is sampled, or may be: that of a row that follows another, or a last one and guesses."""
    if row.sample is None and row.follows is None:
        return None
    return range(row.num_committed - 1, row.num_committed + len(row.nodes))


def _scored(row: Row) -> range | None:
    """Tokens of which those after them are scored."""
    if row.score is None:
        return None
    last = row.score.first + len(row.score.targets)
    assert last <= len(row.tokens), "scores of tokens that the row does not hold"
    return range(row.score.first, last)


def _pooled(row: Row) -> range | None:
    if row.pool_from is None:
        return None
    assert row.pool_from < len(row.tokens), "hidden states of tokens that the row does not hold"
    return range(row.pool_from, len(row.tokens))
