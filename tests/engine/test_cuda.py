"""The engine on a CUDA device. Judge: the engine on the CPU. Run by `make gpu-check`."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch

from ramiform.kernels import attention_groups
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, Sample, Score

from .same_bits import check_same_bits
from .test_launch import ahead, one_by_one, random_steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_tokens_and_logprobs_equal_those_of_the_cpu(engine: ForwardEngine, checkpoint: Path) -> None:
    on_gpu = build_engine(CoreConfig(device="cuda", dtype="float32", num_pages=300), checkpoint)
    draw = random.Random(5)
    rows = []
    for index, (length, temperature) in enumerate([(1, 0.0), (16, 0.0), (33, 1.0), (70, 0.7)]):
        tokens = draw.choices(range(150), k=length)
        sample = Sample(temperature=temperature, top_k=20, top_p=0.9, draw=draw.getrandbits(62), num_top_logprobs=3)
        score = Score(first=0, targets=tokens[1:], num_top=2) if length > 1 else None
        pages = list(range(index * 8, index * 8 + 5))
        rows.append(Row(rid=str(index), tokens=tokens, first_position=0, pages=pages, sample=sample, score=score))
    plan = ForwardPlan(step=1, copies=[], rows=rows)
    for mine, judge in zip(on_gpu.run(plan).rows, engine.run(plan).rows, strict=True):
        assert mine.token == judge.token
        [mine_logprob], [judge_logprob] = mine.logprobs, judge.logprobs
        assert mine_logprob.logprob == pytest.approx(judge_logprob.logprob, abs=1e-4)
        assert [s.logprob for s in mine.scores] == pytest.approx([s.logprob for s in judge.scores], abs=1e-4)


def test_a_captured_step_gives_the_results_of_a_launched_one(checkpoint: Path) -> None:
    captured, launched = (
        build_engine(CoreConfig(device="cuda", dtype="float32", num_pages=300, cuda_graphs=graphs), checkpoint)
        for graphs in (True, False)
    )
    captured.warm_up()
    draw = random.Random(6)
    sample = Sample(temperature=0.0, draw=0, num_top_logprobs=5)
    prompts = [draw.choices(range(150), k=length) for length in (1, 16, 33, 70, 5)]
    tables = [list(range(index * 8, index * 8 + 8)) for index in range(len(prompts))]
    rows = [
        Row(rid=str(index), tokens=tokens, first_position=0, pages=tables[index], sample=sample)
        for index, tokens in enumerate(prompts)
    ]
    for num in (5, 5, 3, 1):
        plan = ForwardPlan(step=0, copies=[], rows=rows[:num])
        ours, judge = captured.run(plan).rows, launched.run(plan).rows
        for mine, wanted in zip(ours, judge, strict=True):
            assert mine.tokens == wanted.tokens
            assert mine.logprobs[0].logprob == pytest.approx(wanted.logprobs[0].logprob, abs=1e-4)
        rows = [
            Row(
                rid=row.rid,
                tokens=result.tokens,
                first_position=row.first_position + len(row.tokens),
                pages=row.pages,
                sample=sample,
            )
            for row, result in zip(rows, ours, strict=False)
        ]


@pytest.mark.parametrize("graphs", [True, False])
def test_rows_that_share_keys_give_the_results_of_the_cpu(
    graphs: bool, engine: ForwardEngine, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_groups, "PASS_KEYS", 0)
    config = CoreConfig(device="cuda", dtype="float32", num_pages=300, max_running=16, cuda_graphs=graphs)
    on_gpu = build_engine(config, checkpoint)
    on_gpu.warm_up()
    draw = random.Random(7)
    prefix = draw.choices(range(150), k=64)
    sample = Sample(temperature=0.0, draw=0, num_top_logprobs=5)
    steps = [[Row(rid="a", tokens=prefix, first_position=0, pages=[90, 91, 92, 93], sample=sample)]]
    for tokens in ([1, 5, 9, 1, 12, 3, 2, 16], *([[1] * 8] * 3)):
        before = steps[-1] if len(steps) > 1 else None
        steps.append(
            [
                Row(
                    rid=str(index),
                    tokens=draw.choices(range(150), k=num),
                    first_position=64 if before is None else before[index].first_position + len(before[index].tokens),
                    pages=[90, 91, 92, 93, *range(index * 4, index * 4 + 3)],
                    sample=sample,
                )
                for index, num in enumerate(tokens)
            ]
        )
    for rows in steps:
        plan = ForwardPlan(step=0, copies=[], rows=rows)
        for mine, judge in zip(on_gpu.run(plan).rows, engine.run(plan).rows, strict=True):
            assert mine.tokens == judge.tokens
            assert [p for p, _ in mine.logprobs[0].top] == pytest.approx(
                [p for p, _ in judge.logprobs[0].top], abs=1e-4
            )


@pytest.mark.parametrize("graphs", [True, False])
def test_steps_launched_ahead_do_not_wait_and_give_the_same_results(checkpoint: Path, graphs: bool) -> None:
    config = CoreConfig(device="cuda", dtype="float32", num_pages=300, max_running=16, cuda_graphs=graphs)
    engine = build_engine(config, checkpoint)
    engine.warm_up()
    for seed in range(8):
        steps = random_steps(random.Random(seed), engine.info.vocab_size, 8)
        judge = one_by_one(engine, steps)  # what is compiled or allocated once is there now
        torch.cuda.set_sync_debug_mode("error")  # of waiting for an event it does not complain
        try:
            ours = ahead(engine, steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert [[row.tokens for row in step_results] for step_results in ours] == [
            [row.tokens for row in step_results] for step_results in judge
        ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_deterministic_gives_the_same_bits_in_any_batch(dtype: str, kernels: str, checkpoint: Path) -> None:
    config = {"device": "cuda", "dtype": dtype, "num_pages": 40, "kernels": kernels, "deterministic": True}
    engine = build_engine(msgspec.convert(config, CoreConfig), checkpoint)
    engine.warm_up()
    check_same_bits(engine)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_kernels_are_launched_on_the_device_that_is_asked_for(checkpoint: Path) -> None:
    rows = [
        Row(rid="a", tokens=[5, 9, 1], first_position=0, pages=[0], score=Score(first=0, targets=[9, 1], num_top=0))
    ]
    plan = ForwardPlan(step=1, copies=[], rows=rows)
    scores = []
    for device in ("cuda:1", "cuda:0"):
        torch.cuda.set_device(0)
        engine = build_engine(CoreConfig(device=device, dtype="float32", num_pages=30), checkpoint)
        scores.append([score.logprob for score in engine.run(plan).rows[0].scores])
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
