"""Steps as graphs on ranks that share a model, and as graphs of a draft model. Judge: the same steps without graphs.

Ranks are threads. A "graph" calls its forward again, and attention is plain torch that reads lengths and pages from the
static tensors, as the kernels do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ramiform.kernels import DecodeAttentionArgs, KvCache, RopeAndStoreArgs
from ramiform.kernels.reference.ops import ReferenceOps
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.engine.kv_pool import KvPool
from ramiform.runtime.engine.paths import EngineParts
from ramiform.runtime.engine.paths.step_graphs import Forward, LargestStep, StepGraphs
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SINGLE_RANK, Group
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import DraftSpec, ForwardPlan, RowResult
from ramiform.runtime.speculation.draft_model import DraftModelSource
from ramiform.tests.composition.threads import groups, number, on_each
from ramiform.tests.engine.triton.test_step_graphs import random_rows

NUM_PAGES = 40  # the last one takes what is written to slot -1


@dataclass(frozen=True)
class PlainAttention:
    """Attention of one row after the other, as `DecodeAttentionArgs` state it."""

    args: DecodeAttentionArgs

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        args, out_THD = self.args, torch.zeros_like(q_THD)
        assert args.shared is None
        group = q_THD.shape[1] // kv.k_SKD.shape[1]
        for r, num_keys in enumerate(args.num_keys_R.tolist()):
            first, count = r, 1
            if args.queries is not None:
                first, count = int(args.queries.first_query_R[r]), int(args.queries.num_queries_R[r])
            place_L = torch.arange(num_keys)
            slots_L = (
                args.page_table_RP[r, place_L // args.page_size].long() * args.page_size + place_L % args.page_size
            )
            k_LHD, v_LHD = (x[slots_L].repeat_interleave(group, dim=1) for x in (kv.k_SKD, kv.v_SKD))
            for token in range(first, first + count) if num_keys else ():
                own_L = place_L - (num_keys - count)
                seen_L = own_L <= token - first
                if args.queries is not None and args.queries.visible_T is not None:
                    seen_L = (own_L < 0) | ((args.queries.visible_T[token] >> own_L.clamp(min=0)) & 1).bool()
                score_HL = torch.einsum("hd,lhd->hl", q_THD[token], k_LHD) * scale
                weight_HL = score_HL.masked_fill(~seen_L, -torch.inf).softmax(dim=-1)
                out_THD[token] = torch.einsum("hl,lhd->hd", weight_HL, v_LHD)
        return out_THD


class PlainOps(ReferenceOps):
    """Plain torch whose lengths may be on the device."""

    def decode_attention(self, args: DecodeAttentionArgs) -> PlainAttention:
        return PlainAttention(args)

    def rope_and_store(
        self, qkv_TND: torch.Tensor, kv: KvCache, qk_norm_HD: torch.Tensor | None, args: RopeAndStoreArgs
    ) -> torch.Tensor:
        args = args._replace(slots_T=args.slots_T.where(args.slots_T >= 0, len(kv.k_SKD) - 1))
        return super().rope_and_store(qkv_TND, kv, qk_norm_HD, args)


class CountedReplays:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, forward: Forward) -> Forward:
        forward()

        def replay() -> None:
            self.count += 1
            forward()

        return replay


def plain_engine(checkpoint: Path, group: Group = SINGLE_RANK) -> ForwardEngine:
    config = CoreConfig(device="cpu", dtype="float32", num_pages=NUM_PAGES, kernels="reference")
    return build_engine(config, checkpoint, group=group)


def with_graphs(engine: ForwardEngine, group: Group, capture: Callable[[Forward], Forward]) -> ForwardEngine:
    model, pool = engine._runner.model, engine._runner.pool
    model.ops = PlainOps()
    graphs = StepGraphs(model, pool, LargestStep(max_rows=4, num_places=128, max_tokens=64), capture, group=group)
    graphs._shares = False  # plain attention knows no shared keys
    graphs._inputs._shared = None
    with torch.inference_mode():
        graphs.capture_all()
    return ForwardEngine(EngineParts(model, pool, group, graphs=graphs))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "stages"), [(2, 1), (1, 2), (2, 2)], ids=["tp 2", "pp 2", "tp 2 pp 2"])
def test_ranks_replay_what_one_computes(checkpoint: Path, size: int, stages: int) -> None:
    ranks, captures = groups(checkpoint, size, stages=stages), [CountedReplays() for _ in range(size * stages)]
    engines = on_each(ranks, lambda group: with_graphs(plain_engine(checkpoint, group), group, captures[number(group)]))
    judge = plain_engine(checkpoint)
    steps = random_rows(random.Random(5), 150)
    for rows in steps:
        plan = ForwardPlan(step=0, copies=[], rows=rows)
        launched = on_each(ranks, lambda group, plan=plan: engines[number(group)].launch(plan))
        for mine, wanted in zip(launched[0].wait().rows, judge.run(plan).rows, strict=True):
            _check(mine, wanted)
    fitting = sum(sum(len(row.tokens) for row in rows) <= 64 for rows in steps)
    assert [capture.count for capture in captures] == [fitting] * len(ranks)


def _check(mine: RowResult, wanted: RowResult) -> None:
    assert mine.tokens == wanted.tokens
    for a, b in zip((*mine.logprobs, *mine.scores), (*wanted.logprobs, *wanted.scores), strict=True):
        assert [p for p, _ in a.top] == pytest.approx([p for p, _ in b.top], abs=1e-4)
    if wanted.pooled is not None:
        assert mine.pooled is not None
        own, plain = (np.frombuffer(pooled, dtype="<f4") for pooled in (mine.pooled, wanted.pooled))
        assert own == pytest.approx(plain, abs=1e-3)


def test_a_draft_model_replays_its_decode_steps(checkpoint: Path) -> None:
    """Prompts are caught up without a graph; every drafted token is a replay, over scratch pages made beforehand."""
    cpu, capture = torch.device("cpu"), CountedReplays()

    def source(**settings: Any) -> DraftModelSource:
        model = load_model(checkpoint, device=cpu, dtype=torch.float32, ops=PlainOps())
        return DraftModelSource(model, NUM_PAGES, **settings)

    def make_graphs(draft: Decoder, pool: KvPool) -> StepGraphs:
        graphs = StepGraphs(draft, pool, LargestStep(max_rows=4, num_places=128), capture)
        graphs._shares, graphs._inputs._shared = False, None
        return graphs

    with torch.inference_mode():
        ours, judge = source(num_scratch=12, make_graphs=make_graphs), source()
        draw, done = random.Random(1), [0, 0, 0]
        for counts in ((21, 5, 30), (1, 18, 2), (1, 1, 1)):
            rows = []
            for index, count in enumerate(counts):
                pages = list(range(8 * index, 8 * index + 8))
                tokens = draw.choices(range(150), k=count + 1)
                rows.append(DraftRow(tokens[:count], done[index], pages, tokens[count], DraftSpec(4, 2, 6, 1.0)))
                done[index] += count
            drafted, wanted = (each.follow(DraftStep(rows, None)) for each in (ours, judge))
            assert [tree and (tree.tokens, tree.parents) for tree in drafted] == [
                tree and (tree.tokens, tree.parents) for tree in wanted
            ]
    assert capture.count >= 12
    assert ours._graphs is not None
