"""A plan in, its results out. The only state is the KV pool, which plans address by page, and that of a draft source.

Legend: R rows, T tokens of the step, O outputs, P outputs of one row that are pooled, E hidden size, V vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from ..models.decoder import Decoder
from ..parallel.group import ALONE, Group, leads
from ..scheduler.plan import ForwardPlan, ForwardResult, Row, RowResult, Sample
from ..speculation.source import DraftRow, DraftSource, DraftStep
from .decode_graphs import DecodeGraphs
from .kv_format import kv_dtype_name
from .kv_pool import PAGE_SIZE, KvPool
from .outputs import Outputs
from .pipeline import hidden_and_features
from .sampler import chosen_logprobs, sample
from .scores import score
from .threads import Threads


@dataclass(frozen=True)
class EngineInfo:
    """Facts of the model and its memory."""

    architecture: str
    num_parameters: int
    vocab_size: int
    context_length: int  # tokens of one sequence
    dtype: str  # e.g. "bfloat16"
    kv_dtype: str  # as `--kv-dtype` names it
    kv_scales: str  # where those of eight-bit keys and values come from; "none": nowhere
    device: str  # e.g. "cpu", "cuda:0"
    page_size: int
    num_pages: int
    num_host_pages: int


class Engine:
    def __init__(
        self,
        model: Decoder,
        pool: KvPool,
        *,
        context_length: int | None = None,
        source: DraftSource | None = None,
        graphs: DecodeGraphs | None = None,
        kv_scales: str = "none",
        group: Group = ALONE,
        threads: Threads | None = None,
    ) -> None:
        """`group` are the ranks that compute the same plans, each with its part of the model; rank 0 has the source."""
        config = model.config
        self._model = model
        self._pool = pool
        self._source = source
        self._group = group
        self._graphs = graphs
        self._threads = threads
        self._captures = () if source is None else source.captures
        self.info = EngineInfo(
            architecture=config.architecture,
            num_parameters=model.num_parameters,
            vocab_size=config.vocab_size,
            context_length=context_length or config.context_length,
            dtype=str(model.dtype).removeprefix("torch."),
            kv_dtype=kv_dtype_name(pool.dtype),
            kv_scales=kv_scales,
            device=str(model.device),
            page_size=PAGE_SIZE,
            num_pages=pool.num_pages,
            num_host_pages=pool.num_host_pages,
        )

    @torch.inference_mode()
    def run(self, plan: ForwardPlan) -> ForwardResult:
        """Copy pages, compute every row's tokens, sample, verify guesses, score, and ask for new guesses. Rows write
        to distinct slots and to no slot that another row of the plan reads."""
        began = time.perf_counter()
        if self._threads is not None:
            self._threads.choose(sum(len(row.tokens) for row in plan.rows))
        self._pool.copy(plan.copies)
        if self._source is not None:
            self._source.copy(plan.copies)
        rows = self._run(plan.rows) if plan.rows else []
        return ForwardResult(step=plan.step, rows=rows, seconds=time.perf_counter() - began)

    def _run(self, rows: list[Row]) -> list[RowResult]:
        ops = self._model.ops
        num_R = [len(row.tokens) for row in rows]
        starts_R = (np.cumsum(num_R) - num_R).tolist()
        sampled = [index for index, row in enumerate(rows) if row.sample is not None]
        scored = [index for index, row in enumerate(rows) if row.score is not None]
        pooled = [index for index, row in enumerate(rows) if row.pool_from is not None]
        outputs = Outputs.of(rows, sampled, starts_R)
        wanted = np.concatenate((np.array(outputs.indices, dtype=np.int64), _read(rows, starts_R, scored, pooled)))
        hidden_OE, features_TE = self._forward(rows, wanted)
        if not self._group.stage.has_ends:
            if sampled:  # what rank 0 says of it moves this stage's KV of guesses
                outputs.walk(ops, self._decided(outputs), self._pool)
            return [RowResult() for _ in rows]
        num_pooled = [len(rows[index].tokens) - (rows[index].pool_from or 0) for index in pooled]
        hidden_OE, *pools_PE = hidden_OE.split([len(hidden_OE) - sum(num_pooled), *num_pooled])
        results = dict.fromkeys(range(len(rows)), RowResult())
        if sampled:
            logits_OV = self._model.logits(hidden_OE[: len(outputs)])
            tokens_O = self._decide(logits_OV, outputs)
            tokens, ways = outputs.walk(ops, tokens_O, self._pool)
            logprobs = chosen_logprobs(
                ops, logits_OV, tokens_O, outputs.samples, [output for way in ways for output in way]
            )
            for index, way in zip(sampled, ways, strict=True):
                results[index] = RowResult(
                    tokens=[tokens[output] for output in way],
                    logprobs=[logprobs[output] for output in way if output in logprobs],
                )
        if scored:
            scores = [row.score for row in rows if row.score is not None]
            found = score(ops, hidden_OE[len(outputs) :], scores, self._model.logits, self.info.vocab_size)
            for index, entries in zip(scored, found, strict=True):
                results[index] = msgspec.structs.replace(results[index], scores=entries)
        for index, pool_PE in zip(pooled, pools_PE, strict=True):
            sum_E = pool_PE.float().sum(dim=0).cpu().numpy().astype("<f4")
            results[index] = msgspec.structs.replace(results[index], pooled=sum_E.tobytes())
        if self._source is not None:
            drafts = self._source.follow(_draft_step(rows, results, starts_R, features_TE))
            for index, draft in enumerate(drafts):
                results[index] = msgspec.structs.replace(results[index], draft=draft)
        return list(results.values())

    def _forward(self, rows: list[Row], wanted: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._graphs is not None and self._graphs.fits(rows):
            return self._graphs.hidden_and_features(rows)  # every row's one token is wanted
        return hidden_and_features(rows, wanted, self._model, self._pool.layers, self._group, self._captures)

    def _decide(self, logits_OV: torch.Tensor, outputs: Outputs) -> torch.Tensor:
        """int64 [O]: what rank 0 samples."""
        if leads(self._group):
            return self._group.decide(sample(self._model.ops, logits_OV, outputs.samples, outputs.masks))
        return self._decided(outputs)

    def _decided(self, outputs: Outputs) -> torch.Tensor:
        return self._group.decide(torch.empty(len(outputs), dtype=torch.int64, device=self._model.device))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one small plan, so that the first request finds libraries loaded, memory touched and graphs captured."""
        if self._graphs is not None:
            self._graphs.capture_all()
        self.run(self.warm_up_plan())

    @staticmethod
    def warm_up_plan() -> ForwardPlan:
        """Writes to pages 0 and 1."""
        draw = Sample(temperature=1.0, top_k=8, top_p=0.9, min_p=0.0, draw=5, num_top_logprobs=1)
        prefill = Row(rid="warm-up", tokens=[0] * PAGE_SIZE, first_position=0, pages=[0], sample=draw)
        decode = Row(rid="warm-up", tokens=[0], first_position=0, pages=[1], sample=draw)
        return ForwardPlan(step=0, copies=[], rows=[prefill, decode])


def _draft_step(
    rows: list[Row], results: dict[int, RowResult], starts_R: list[int], features_TE: torch.Tensor | None
) -> DraftStep:
    """What the source may know: what was computed for good."""
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


def _read(rows: list[Row], starts_R: list[int], scored: list[int], pooled: list[int]) -> np.ndarray:
    """Indices of the tokens whose hidden states are read besides the outputs': the scored ones', the pooled ones'."""
    ranges = [np.empty(0, dtype=np.int64)]
    for index in scored:
        row = rows[index]
        assert row.score is not None
        assert row.score.first + len(row.score.targets) <= len(row.tokens), (
            "scores of tokens that the row does not hold"
        )
        first = starts_R[index] + row.score.first
        ranges.append(np.arange(first, first + len(row.score.targets)))
    for index in pooled:
        row = rows[index]
        assert row.pool_from is not None
        assert row.pool_from < len(row.tokens), "hidden states of tokens that the row does not hold"
        ranges.append(np.arange(starts_R[index] + row.pool_from, starts_R[index] + len(row.tokens)))
    return np.concatenate(ranges)
