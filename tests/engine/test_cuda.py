"""On a CUDA device the engine answers as on the CPU. Needs one: `make gpu-check`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from ramify.runtime.engine import Engine, build_engine
from ramify.runtime.protocol.config import CoreConfig
from ramify.runtime.scheduler.plan import ForwardPlan, Row, Sample, Score

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_tokens_and_logprobs_equal_the_cpu_s(engine: Engine, checkpoint: Path) -> None:
    on_gpu = build_engine(CoreConfig(device="cuda", dtype="float32", num_pages=300), checkpoint)
    draw = random.Random(5)
    rows = []
    for index, (length, temperature) in enumerate([(1, 0.0), (16, 0.0), (33, 1.0), (70, 0.7)]):
        tokens = draw.choices(range(150), k=length)
        sample = Sample(
            temperature=temperature, top_k=20, top_p=0.9, min_p=0.0, draw=draw.getrandbits(62), num_top_logprobs=3
        )
        score = Score(first=0, targets=tokens[1:], num_top=2) if length > 1 else None
        pages = list(range(index * 8, index * 8 + 5))
        rows.append(Row(rid=str(index), tokens=tokens, first_position=0, pages=pages, sample=sample, score=score))
    plan = ForwardPlan(step=1, copies=[], rows=rows)
    for mine, judge in zip(on_gpu.run(plan).rows, engine.run(plan).rows, strict=True):
        assert mine.token == judge.token
        [mine_logprob], [judge_logprob] = mine.logprobs, judge.logprobs
        assert mine_logprob.logprob == pytest.approx(judge_logprob.logprob, abs=1e-4)
        assert [s.logprob for s in mine.scores] == pytest.approx([s.logprob for s in judge.scores], abs=1e-4)
