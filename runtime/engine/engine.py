"""A plan in, its results out. The only state is the KV pool, which plans address by page.

Legend: O outputs read, P outputs of one row that are pooled, E hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from ..models.decoder import Decoder
from ..scheduler.plan import ForwardPlan, ForwardResult, Row, RowResult, Sample
from .inputs import decoder_inputs
from .kv_pool import PAGE_SIZE, KvPool
from .sampler import sample
from .scores import score


@dataclass(frozen=True)
class EngineInfo:
    """Facts of the model and its memory."""

    architecture: str
    num_parameters: int
    vocab_size: int
    context_length: int  # tokens of one sequence
    dtype: str  # e.g. "bfloat16"
    device: str  # e.g. "cpu", "cuda:0"
    page_size: int
    num_pages: int
    num_host_pages: int


class Engine:
    def __init__(self, model: Decoder, pool: KvPool, *, context_length: int | None = None) -> None:
        config = model.config
        self._model = model
        self._pool = pool
        self.info = EngineInfo(
            architecture=config.architecture,
            num_parameters=model.num_parameters,
            vocab_size=config.vocab_size,
            context_length=context_length or config.context_length,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            page_size=PAGE_SIZE,
            num_pages=pool.num_pages,
            num_host_pages=pool.num_host_pages,
        )

    @torch.inference_mode()
    def run(self, plan: ForwardPlan) -> ForwardResult:
        """Copy pages, compute every row's tokens, sample and score. Rows write to distinct slots and to no slot that
        another row of the plan reads."""
        self._pool.copy(plan.copies)
        if not plan.rows:
            return ForwardResult(step=plan.step, rows=[])
        rows = plan.rows
        num_R = [len(row.tokens) for row in rows]
        starts_R = (np.cumsum(num_R) - num_R).tolist()
        sampled = [index for index, row in enumerate(rows) if row.sample is not None]
        scored = [index for index, row in enumerate(rows) if row.score is not None]
        pooled = [index for index, row in enumerate(rows) if row.pool_from is not None]
        hidden_OE = self._model.hidden(
            decoder_inputs(rows, self._model, _wanted(rows, starts_R, sampled, scored, pooled)), self._pool.layers
        )
        num_pooled = [len(rows[index].tokens) - (rows[index].pool_from or 0) for index in pooled]
        hidden_OE, *pools_PE = hidden_OE.split([len(hidden_OE) - sum(num_pooled), *num_pooled])
        results = dict.fromkeys(range(len(rows)), RowResult())
        if sampled:
            logits_RV = self._model.logits(hidden_OE[: len(sampled)])
            samples, masks = zip(*((rows[index].sample, rows[index].mask) for index in sampled), strict=True)
            results.update(zip(sampled, sample(logits_RV, samples, masks), strict=True))
        if scored:
            scores = [row.score for row in rows if row.score is not None]
            found = score(hidden_OE[len(sampled) :], scores, self._model.logits, self.info.vocab_size)
            for index, entries in zip(scored, found, strict=True):
                results[index] = msgspec.structs.replace(results[index], scores=entries)
        for index, pool_PE in zip(pooled, pools_PE, strict=True):
            sum_E = pool_PE.float().sum(dim=0).cpu().numpy().astype("<f4")
            results[index] = msgspec.structs.replace(results[index], pooled=sum_E.tobytes())
        return ForwardResult(step=plan.step, rows=list(results.values()))

    def warm_up(self) -> None:
        """Run one small plan in pages 0 and 1, so that the first request finds libraries loaded and memory touched."""
        draw = Sample(temperature=1.0, top_k=8, top_p=0.9, min_p=0.0, draw=5, num_top_logprobs=1)
        prefill = Row(rid="warm-up", tokens=[0] * PAGE_SIZE, first_position=0, pages=[0], sample=draw)
        decode = Row(rid="warm-up", tokens=[0], first_position=0, pages=[1], sample=draw)
        self.run(ForwardPlan(step=0, copies=[], rows=[prefill, decode]))


def _wanted(
    rows: list[Row], starts_R: list[int], sampled: list[int], scored: list[int], pooled: list[int]
) -> np.ndarray:
    """Indices of the tokens whose hidden states are read: the sampled rows' last ones, then the scored ones, then the
    pooled one."""
    last = [starts_R[index] + len(rows[index].tokens) - 1 for index in sampled]
    ranges = [np.array(last, dtype=np.int64)]
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
