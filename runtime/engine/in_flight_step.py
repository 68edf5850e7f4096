"""A step in flight on the device: queued by its constructor, completed by `sample` if its plan is open, read by `wait`.

Only `wait` waits for the device. Work runs in the order in which it is queued. So a step that is launched before this
one's result is read finds keys, values and tokens in place.

Legend: R rows, T tokens of the step, E hidden size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from ...kernels import NOT_FINITE, Deferred, to_host
from ..scheduler.plan import ForwardPlan, ForwardResult, Row, RowResult, RowSampling, SamplingPlan
from .draft_source import DraftRow, DraftSource, DraftStep
from .kv_pool import slots_of
from .last_tokens import NO_LAST_TOKENS, LastTokens
from .needs import Need, needs_of, sampling_needs
from .paths import NO_FORWARD, NOTHING_SAMPLED, EngineParts, Forward, Path, paths_of


@dataclass
class ModelRunner(EngineParts):
    """Model, memory and draft source of an engine, its paths, and the results of its last step."""

    last_tokens: LastTokens = NO_LAST_TOKENS
    last_results: Sequence[RowResult] = ()  # of the step that was waited for last
    is_interrupted: Callable[[], bool] = lambda: False  # True: a plan's further decode steps are not computed

    def __post_init__(self) -> None:
        self.choose_paths()

    def choose_paths(self) -> None:
        """Decide which paths the model and its memory have."""
        self.paths = paths_of(self)

    def forward(self, rows: list[Row], needs: frozenset[Need], *, features: bool) -> tuple[Path, Forward]:
        """Queue the forward of rows on the first path that meets its needs and has room; return both. Widened rows are
        a part of their own."""
        parts = [rows]
        if "Row.widened" in needs:
            first = [row.widened for row in rows].index(True)
            assert all(row.widened for row in rows[first:]), "widened rows come after the others"
            parts = [part for part in (rows[:first], rows[first:]) if part]
        for path in self.paths:
            if not path.meets(needs):
                continue
            forwards = [path.forward(part, self.last_tokens, features=features) for part in parts]
            queued = [forward for forward in forwards if forward is not None]
            if len(queued) == len(parts):
                return path, Forward.joined(queued)
            assert not queued, "a path without room for some rows"
        raise AssertionError("the last path meets every need")


class InFlightStep:
    """A step on the device. Construct it under `torch.inference_mode`."""

    def __init__(self, runner: ModelRunner, plan: ForwardPlan) -> None:
        self._began = time.perf_counter()
        self._drafting = self._catching_up = 0.0  # seconds of the draft source
        self._runner = runner
        self._earlier: list[list[int]] = []  # tokens of the decode steps before the last one
        self._plan = plan
        self._path, self._forward, self._sampled = runner.paths[-1], NO_FORWARD, NOTHING_SAMPLED
        self._sampling_needs: frozenset[Need] = frozenset()
        self._routes: Deferred[list[np.ndarray]] = list  # of the rows that want their tokens' experts
        runner.pool.copy(plan.copies)
        runner.pool.copy_windows(plan.window_copies)
        if runner.source is not None and plan.copies:
            runner.source.copy(plan.copies)
        runner.model.change_states(plan.states)
        if not plan.rows:
            runner.last_tokens = NO_LAST_TOKENS
            return
        needs = needs_of(plan)
        self._path, self._forward = runner.forward(plan.rows, needs.rows, features=plan.followed)
        if "Row.routes_from" in needs.rows:
            self._routes = self._read_routes()
        if "Row.follows" not in needs.rows:  # else the plan is open
            self._sample(plan.rows, needs.sampling)
        for number in range(1, plan.num_decodes):
            if runner.is_interrupted() or not self._decode_again(number):
                break

    @torch.inference_mode()
    def sample(self, sampling: SamplingPlan) -> None:
        """Queue sampling of an open plan, with the parameters of the rows that follow others."""
        assert sampling.step == self._plan.step
        own = iter(sampling.rows)
        rows = [row if row.follows is None else _with_sampling(row, next(own)) for row in self._plan.rows]
        self._sample(rows, sampling_needs(rows))

    def wait(self) -> ForwardResult:
        tokens_R = self._sampled.tokens_R
        results = self._results() if tokens_R is None else self._token_results(tokens_R)
        if self._runner.source is not None and results:
            results = self._notify(self._runner.source, results)
        return ForwardResult(
            step=self._plan.step,
            rows=results,
            seconds=time.perf_counter() - self._began,
            drafting=self._drafting,
            catching_up=self._catching_up,
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
        forward, sampled = self._forward, self._sampled
        tokens, paths = sampled.verified()
        logprobs, scores, pools = sampled.logprobs(), iter(forward.scores()), iter(forward.pools())
        path_of, routes = dict(zip(sampled.rows, paths, strict=True)), iter(self._routes())
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
                routes=b"" if row.routes_from is None else _accepted(next(routes), row, path).astype("<i2").tobytes(),
            )
            results.append(result)
        return results

    def _read_routes(self) -> Deferred[list[np.ndarray]]:
        """Queue the reading of the experts that rows want, before accepted nodes are moved to their places."""
        routes = self._runner.pool.routes
        assert routes is not None, "a runtime without them refuses requests for experts"
        spans = [
            (row.pages, row.routes_from, row.first_position + len(row.tokens))
            for row in self._plan.rows
            if row.routes_from is not None
        ]
        slots = np.concatenate([slots_of(*span) for span in spans])
        read = to_host([routes.memory_1SLK[0, torch.from_numpy(slots).to(routes.memory_1SLK.device)]])
        ends = np.cumsum([end - start for _, start, end in spans])[:-1]
        return lambda: np.split(read()[0], ends)

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
        began = time.perf_counter()
        drafts = source.follow(_draft_step(rows, results, self._forward.features_TE))
        if source.caught_up or any(row.draft is not None for row in rows):
            self._catching_up = source.caught_up
            self._drafting = time.perf_counter() - began - source.caught_up
        results = [
            result if draft is None else msgspec.structs.replace(result, draft=draft)
            for result, draft in zip(results, drafts, strict=True)
        ]
        runner.last_results = results
        return results

    def _decode_again(self, number: int) -> bool:
        """Compute the plan's decode step `number` from the tokens sampled last. Returns False, with nothing computed,
        if one is missing or ends an output."""
        sampled = self._sampled
        tokens = sampled.verified()[0] if sampled.tokens_R is None else sampled.tokens_R
        if NOT_FINITE in tokens or not self._plan.end_tokens.isdisjoint(tokens):
            return False
        self._earlier.append(tokens)
        self._forward, self._sampled = self._path.decode_again(
            self._plan.rows, number, tokens, sampled, self._sampling_needs
        )
        self._runner.last_tokens = self._sampled.last_tokens
        return True

    def _sample(self, rows: Sequence[Row], needs: frozenset[Need]) -> None:
        """Queue sampling and verification, and keep the tokens for the next step."""
        self._sampled, self._sampling_needs = self._path.sample(self._forward, rows, needs), needs
        self._runner.last_tokens = self._sampled.last_tokens


def _accepted(routes_TLK: np.ndarray, row: Row, path: Sequence[int]) -> np.ndarray:
    """Return the experts of a row's tokens without those of rejected draft nodes; `path` are the accepted outputs."""
    if row.parents is None:
        return routes_TLK
    num_before = len(routes_TLK) - len(row.parents)
    return routes_TLK[[*range(num_before), *(num_before + output - path[0] - 1 for output in path[1:])]]


def _draft_step(rows: Sequence[Row], results: Sequence[RowResult], features_TE: torch.Tensor | None) -> DraftStep:
    """Return the committed tokens of a step and their features, for the draft source. `features_TE` are those of all
    tokens."""
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
    kept_rows, indices, start = [], [], 0
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
        indices.extend(range(start, start + num_committed))
        node = -1
        for token in tokens[:-1]:
            node = next(
                child
                for child, parent in enumerate(row.parents or ())
                if parent == node and row.tokens[num_committed + child] == token
            )
            indices.append(start + num_committed + node)
        start += len(row.tokens)
    if features_TE is not None and len(indices) < len(features_TE):
        features_TE = features_TE[torch.tensor(indices, device=features_TE.device)]
    return DraftStep(kept_rows, features_TE)


def _with_token(row: Row, before: Sequence[RowResult]) -> Row:
    """Return the row with the token that it follows, if it follows one; `before` are the results of the last step."""
    return row if row.follows is None else msgspec.structs.replace(row, tokens=[before[row.follows].token or 0])


def _with_sampling(row: Row, own: RowSampling | None) -> Row:
    return row if own is None else msgspec.structs.replace(row, sample=own.sample, mask=own.mask)
