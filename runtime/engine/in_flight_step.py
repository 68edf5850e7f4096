"""A step in flight on the device: queued by its constructor, completed by `sample` if its plan is open, read by `wait`.

Only `wait` waits for the device. Work runs in the order in which it is queued. So a step that is launched before this
one's result is read finds keys, values and tokens in place.

Legend: R rows, T tokens of the step, O outputs, P outputs of one row that are pooled, E hidden size, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from ...kernels import NOT_FINITE, Deferred, to_device, to_host
from ..models.decoder import Decoder
from ..models.parallel.group import Group, is_rank_zero
from ..protocol.sampling import TokenLogprob
from ..scheduler.plan import ForwardPlan, ForwardResult, Row, RowResult, RowSampling, Sample, SamplingPlan
from .draft_source import DraftRow, DraftSource, DraftStep
from .inputs import decoder_inputs
from .kv_pool import KvPool
from .last_tokens import NO_LAST_TOKENS, LastTokens
from .logprobs import chosen_logprobs, score
from .sampled_positions import SampledPositions
from .sampler import sample
from .stages import hidden_and_features
from .step_graphs import StepGraphs

if TYPE_CHECKING:
    from .decode_steps import DecodeSteps


@dataclass
class ModelRunner:
    """Model, memory and draft source of an engine, and the results of its last step."""

    model: Decoder
    pool: KvPool
    group: Group
    source: DraftSource | None = None
    graphs: StepGraphs | None = None
    last_tokens: LastTokens = NO_LAST_TOKENS
    last_results: Sequence[RowResult] = ()  # of the step that was waited for last
    is_interrupted: Callable[[], bool] = lambda: False  # True: a plan's further decode steps are not computed
    _decodes: DecodeSteps | None = None  # of the layers and caches of the last step

    def decode_steps(self, rows: Sequence[Row]) -> DecodeSteps | None:
        """Return the decode steps that compute these rows with few calls, or None."""
        layers = self.model.compiled_head
        if layers is None or self.graphs is not None or self.group.stage.size > 1 or self.group.shard.size > 1:
            return None
        kv = self.pool.layers
        if self._decodes is None or self._decodes.layers is not layers or self._decodes.kv is not kv:
            from .decode_steps import DecodeSteps  # here, because it imports numba

            self._decodes = DecodeSteps.of(self.model, kv)
        return self._decodes if self._decodes is not None and self._decodes.supports(rows) else None

    def forward(
        self, rows: list[Row], wanted: np.ndarray, *, features: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the hidden states of the `wanted` tokens, given by their indices in the step, and the draft source's
        features if these are wanted."""
        if self.graphs is not None and not any(row.adapter for row in rows):
            replayed = self.graphs.hidden_and_features(
                rows, wanted, self.last_tokens, features=features, before=self.pool.settle
            )
            if replayed is not None:
                return replayed
        captures = self.source.captures if features and self.source is not None else ()
        kv = self.pool.arriving_layers()
        return hidden_and_features(rows, wanted, self.model, kv, self.group, captures, self.last_tokens)

    def logits(self, rows: list[Row], wanted: np.ndarray) -> torch.Tensor | None:
        """Return the logits of the `wanted` tokens, if one call computes them with the layers; else None."""
        if self.graphs is not None or self.group.stage.size > 1 or self.model.compiled_head is None:
            return None
        kv = self.pool.arriving_layers()
        return self.model.logits_of_step(decoder_inputs(rows, self.model, wanted, kv[0], self.last_tokens), kv)

    def sample(self, logits_OV: torch.Tensor | None, outputs: SampledPositions) -> torch.Tensor:
        """Return the tokens that rank 0 samples, or NOT_FINITE, int64 [O]."""
        if is_rank_zero(self.group):
            assert logits_OV is not None
            return self.group.broadcast(sample(self.model.ops, logits_OV, outputs.samples, outputs.masks))
        return self.group.broadcast(torch.empty(len(outputs), dtype=torch.int64, device=self.model.device))


class InFlightStep:
    """A step on the device. Construct it under `torch.inference_mode`."""

    def __init__(self, runner: ModelRunner, plan: ForwardPlan) -> None:
        self._began = time.perf_counter()
        self._runner = runner
        self._earlier: list[list[int]] = []  # tokens of the decode steps before the last one
        self._plan = plan
        self._starts_R = [0, *accumulate([len(row.tokens) for row in plan.rows])]  # and where the last row's tokens end
        self._logits_OV: torch.Tensor | None = None
        self._features_TE: torch.Tensor | None = None
        self._decodes: DecodeSteps | None = None  # if it computes the step
        self._tokens_R: list[int] | None = None  # sampled by it
        self._sampling: list[int] = []  # indices of the rows that sample
        self._verified: Deferred[tuple[list[int], list[list[int]]]] = lambda: ([], [])
        self._logprobs: Deferred[dict[int, TokenLogprob]] = dict
        self._scores: Deferred[list[list[TokenLogprob]]] = list
        self._pools: Deferred[list[np.ndarray]] = list
        runner.pool.copy(plan.copies)
        runner.pool.copy_windows(plan.window_copies)
        if runner.source is not None and plan.copies:
            runner.source.copy(plan.copies)
        runner.model.change_states(plan.states)
        if plan.rows:
            self._compute(plan.rows)
        if not plan.is_open:
            self._sample(plan.rows)
        for number in range(1, plan.num_decodes):
            if runner.is_interrupted() or not self._decode_again(number):
                break

    @torch.inference_mode()
    def sample(self, sampling: SamplingPlan) -> None:
        """Queue sampling of an open plan, with the parameters of the rows that follow others."""
        assert sampling.step == self._plan.step
        own = iter(sampling.rows)
        self._sample([row if row.follows is None else _with_sampling(row, next(own)) for row in self._plan.rows])

    def wait(self) -> ForwardResult:
        results = self._results() if self._tokens_R is None else self._token_results(self._tokens_R)
        if self._runner.source is not None and results:
            results = self._notify(self._runner.source, results)
        return ForwardResult(
            step=self._plan.step,
            rows=results,
            seconds=time.perf_counter() - self._began,
            num_decodes=1 + len(self._earlier),
        )

    def _token_results(self, tokens_R: Sequence[int]) -> list[RowResult]:
        """Return the results of rows that have a token, or none, for each decode step."""
        if not self._earlier and NOT_FINITE not in tokens_R:
            return [RowResult(tokens=[token]) for token in tokens_R]
        steps = [*self._earlier, tokens_R]
        return [
            RowResult(tokens=[*own]) if own[-1] != NOT_FINITE else RowResult(tokens=[*own[:-1]], is_finite=False)
            for own in zip(*steps, strict=True)
        ]

    def _results(self) -> list[RowResult]:
        tokens, paths = self._verified()
        logprobs, scores, pools = self._logprobs(), iter(self._scores()), iter(self._pools())
        path_of = dict(zip(self._sampling, paths, strict=True))
        results = []
        for index, row in enumerate(self._plan.rows):
            path = path_of.get(index, [])
            # Only the last token of a path can be missing: no draft token equals NOT_FINITE.
            is_finite = not path or tokens[path[-1]] != NOT_FINITE
            kept = path if is_finite else path[:-1]
            result = RowResult(
                is_finite=is_finite,
                tokens=[step[index] for step in self._earlier] + [tokens[output] for output in kept],
                logprobs=[logprobs[output] for output in kept if output in logprobs] if logprobs else [],
                after_nodes=[] if row.parents is None else tokens[path[0] + 1 :][: len(row.parents)],
                scores=[] if row.score is None else next(scores),
                pooled=None if row.pool_from is None else next(pools).astype("<f4").tobytes(),
            )
            results.append(result)
        return results

    @torch.inference_mode()
    def _notify(self, source: DraftSource, results: list[RowResult]) -> list[RowResult]:
        """Pass the step to the draft source, and return the results with its drafts."""
        rows, runner = self._plan.rows, self._runner
        if self._plan.is_open:
            rows = [_with_token(row, runner.last_results) for row in rows]
        if not self._plan.followed:
            source.skip(rows)
            runner.last_results = results
            return results
        drafts = source.follow(_draft_step(rows, results, self._starts_R, self._features_TE))
        results = [
            result if draft is None else msgspec.structs.replace(result, draft=draft)
            for result, draft in zip(results, drafts, strict=True)
        ]
        runner.last_results = results
        return results

    def _decode_again(self, number: int) -> bool:
        """Compute the plan's decode step `number` from the tokens sampled last. Returns False, with nothing computed,
        if one is missing or ends an output."""
        tokens = self._verified()[0] if self._tokens_R is None else self._tokens_R
        if NOT_FINITE in tokens or not self._plan.end_tokens.isdisjoint(tokens):
            return False
        self._earlier.append(tokens)
        if self._decodes is not None and self._tokens_R is not None:
            self._logits_OV = self._decodes.next_logits(np.array(tokens))
            self._sample_plainly([_next_sample(row, number) for row in self._plan.rows])
            return True
        rows = [_next_row(row, token, number) for row, token in zip(self._plan.rows, tokens, strict=True)]
        self._compute(rows)
        self._sample(rows)
        return True

    def _compute(self, rows: list[Row]) -> None:
        """Queue the forward, and the scores and pooled states, which need no samples."""
        runner, model, starts_R = self._runner, self._runner.model, self._starts_R
        if not (self._plan.followed and runner.source is not None):
            self._decodes = runner.decode_steps(rows)
            if self._decodes is not None:
                self._logits_OV = self._decodes.logits(rows, runner.last_tokens)
                return
        sampled = _sampled(rows, starts_R)
        scored: list[range] = []
        pooled: list[range] = []
        if any(row.score is not None or row.pool_from is not None for row in rows):
            scored, pooled = _indices(rows, starts_R, _scored), _indices(rows, starts_R, _pooled)
        indices = [*sampled, *chain.from_iterable(scored), *chain.from_iterable(pooled)]
        wanted = np.fromiter(indices, np.int64, len(indices))
        features = self._plan.followed and runner.source is not None and bool(runner.source.captures)
        if sampled and not (scored or pooled or features):
            self._logits_OV = runner.logits(rows, wanted)
            if self._logits_OV is not None:
                return
        hidden_OE, self._features_TE = runner.forward(rows, wanted, features=self._plan.followed)
        if not runner.group.stage.has_ends:
            return  # only the first stage has hidden states
        sampled_OE = hidden_OE
        if scored or pooled:
            sizes = [len(sampled), sum(map(len, scored)), *map(len, pooled)]
            sampled_OE, scored_OE, *pools_PE = hidden_OE.split(sizes)
        if sampled:
            self._logits_OV = model.logits(sampled_OE)
        if scored:
            scores = [row.score for row in rows if row.score is not None]
            self._scores = score(model.ops, scored_OE, scores, model.logits, model.config.vocab_size)
        if pooled:
            self._pools = to_host([pool_PE.float().sum(dim=0) for pool_PE in pools_PE])

    def _sample(self, rows: list[Row]) -> None:
        """Queue sampling and verification, and keep the tokens for the next step."""
        runner, logits_OV = self._runner, self._logits_OV
        if self._decodes is not None:
            samples = self._decodes.plain_samples(rows)
            if samples is not None:
                self._sample_plainly(samples)
                return
        self._sampling = [index for index, row in enumerate(rows) if row.sample is not None]
        outputs = SampledPositions.from_rows(rows[index] for index in self._sampling)
        runner.last_tokens = NO_LAST_TOKENS
        if not self._sampling:
            return
        # A row that follows another may turn out not to sample.
        if logits_OV is not None and len(outputs) < logits_OV.shape[0]:
            open_rows = [row for row in rows if row.sample is not None or row.follows is not None]
            kept_O = np.repeat([row.sample is not None for row in open_rows], [1 + len(row.nodes) for row in open_rows])
            logits_OV = logits_OV[to_device([np.flatnonzero(kept_O)], logits_OV.device)[0]]
        tokens_O = runner.sample(logits_OV, outputs)
        self._verified = outputs.verify(runner.model.ops, tokens_O, runner.pool)
        if logits_OV is not None:
            self._logprobs = chosen_logprobs(runner.model.ops, logits_OV, tokens_O, outputs.samples, outputs.masks)
        runner.last_tokens = LastTokens(tokens_O, dict(zip(self._sampling, outputs.starts, strict=False)))

    def _sample_plainly(self, samples: Sequence[Sample]) -> None:
        """Sample one token for each row. `samples` are `plain_samples`."""
        assert self._decodes is not None
        assert self._logits_OV is not None
        tokens_R = self._decodes.sample(self._logits_OV, samples)
        self._tokens_R = tokens_R.tolist()
        self._runner.last_tokens = LastTokens(torch.from_numpy(tokens_R), range(len(samples)))


def _draft_step(
    rows: Sequence[Row], results: Sequence[RowResult], starts_R: Sequence[int], features_TE: torch.Tensor | None
) -> DraftStep:
    """Return the committed tokens of a step and their features, for the draft source.

    `starts_R` are the indices of the rows' first tokens in the step; `features_TE` are the features of all tokens.
    """
    if all(row.parents is None for row in rows):
        return DraftStep(
            [
                DraftRow(
                    row.tokens, row.first_position, row.pages, result.token, row.draft if result.is_finite else None
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
                want=row.draft if results[index].is_finite else None,
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


def _with_token(row: Row, before: Sequence[RowResult]) -> Row:
    """Return the row with the token that it follows, if it follows one; `before` are the results of the last step."""
    return row if row.follows is None else msgspec.structs.replace(row, tokens=[before[row.follows].token or 0])


def _next_row(row: Row, token: int, number: int) -> Row:
    """Return the row of decode step `number` of a plan, which computes the `token` sampled before it."""
    return Row(
        rid=row.rid,
        tokens=[token],
        first_position=row.first_position + number,
        pages=row.pages,
        sample=_next_sample(row, number),
        adapter=row.adapter,
    )


def _next_sample(row: Row, number: int) -> Sample:
    """Return the sampling of decode step `number` of a plan."""
    assert row.sample is not None
    return msgspec.structs.replace(row.sample, draw=row.draws[number - 1]) if row.draws else row.sample


def _with_sampling(row: Row, own: RowSampling | None) -> Row:
    return row if own is None else msgspec.structs.replace(row, sample=own.sample, mask=own.mask)


def _indices(rows: Sequence[Row], starts_R: Sequence[int], tokens: Callable[[Row], range | None]) -> list[range]:
    """Return the indices in the step of the `tokens` of each row that has any; `tokens` gives indices in the row."""
    found = ((tokens(row), start) for row, start in zip(rows, starts_R, strict=False))
    return [range(start + own.start, start + own.stop) for own, start in found if own is not None]


def _sampled(rows: Sequence[Row], starts_R: Sequence[int]) -> list[int]:
    """Return the indices in the step of the tokens after which one is sampled, or may be: each row's last committed
    token and its draft tokens."""
    found: list[int] = []
    for row, start in zip(rows, starts_R, strict=False):
        if row.sample is None and row.follows is None:
            continue
        if row.parents is None:
            found.append(start + len(row.tokens) - 1)
        else:
            last = start + row.num_committed - 1
            found += range(last, last + 1 + len(row.nodes))
    return found


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
