"""Decode steps on static buffers, padded to a few numbers of rows. Judge: the same rows, computed without graphs.

Without a GPU a "graph" calls the function that would have been captured.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers

from ramiform.kernels import attention_groups
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.decode_graphs import CudaCapture, DecodeGraphs, Forward, graph_sizes
from ramiform.runtime.engine.last_tokens import NO_LAST_TOKENS
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, RowResult, Sample, Score
from ramiform.tests.engine.test_launch import ahead, one_by_one, random_steps

pytestmark = pytest.mark.exhaustive

GPU = torch.cuda.is_available()
NUM_ROWS, NUM_PAGES = 6, 8
SAMPLE = Sample(temperature=0.0, draw=0, num_top_logprobs=5)


def pages(index: int) -> list[int]:
    own = list(range(index * NUM_PAGES, (index + 1) * NUM_PAGES))
    random.Random(index).shuffle(own)
    return own


class CountedCapture:
    """A capture that calls the function again, or a CUDA capture on a GPU, and counts."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0
        self._capture = CudaCapture() if GPU else None

    def __call__(self, forward: Forward) -> Forward:
        self.num_captured += 1
        replay = forward if self._capture is None else self._capture(forward)

        def again() -> None:
            self.num_replayed += 1
            replay()

        return again


def plain_engine(checkpoint: Path) -> ForwardEngine:
    config = CoreConfig(
        device="cuda" if GPU else "cpu", dtype="float32", num_pages=60, kernels="triton", cuda_graphs=False
    )
    return build_engine(config, checkpoint)


def with_graphs(engine: ForwardEngine, capture: CountedCapture) -> ForwardEngine:
    model, pool = engine._runner.model, engine._runner.pool
    assert DecodeGraphs.supports(model, pool.layers)
    graphs = DecodeGraphs(model, pool.layers, max_rows=5, num_places=128, captures=(), capture=capture)
    return ForwardEngine(model, pool, graphs=graphs)


def step(engine: ForwardEngine, rows: list[Row]) -> list[RowResult]:
    return engine.run(ForwardPlan(step=0, copies=[], rows=rows)).rows


def prompts() -> list[Row]:
    draw = random.Random(0)
    lengths = [1, 17, 5, 33, 16, 2]
    return [
        Row(rid=str(i), tokens=draw.choices(range(150), k=n), first_position=0, pages=pages(i), sample=SAMPLE)
        for i, n in enumerate(lengths)
    ]


def following(row: Row, result: RowResult) -> Row:
    first = row.first_position + len(row.tokens)
    return Row(rid=row.rid, tokens=result.tokens, first_position=first, pages=row.pages, sample=SAMPLE)


def generate(engine: ForwardEngine) -> list[list[RowResult]]:
    """The prompts, then steps of 6, 5, 3 and 1 rows."""
    rows = prompts()
    step_results = [step(engine, rows)]
    for num in (6, 5, 3, 1):
        rows = [following(row, result) for row, result in zip(rows[:num], step_results[-1], strict=False)]
        step_results.append(step(engine, rows))
    return step_results


@pytest.fixture(params=["dense", "mixture"])
def either(request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path) -> Path:
    if request.param == "dense":
        return checkpoint
    torch.manual_seed(6)
    config = transformers.MixtralConfig(
        vocab_size=150, hidden_size=48, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=3, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_graphs_give_the_results_of_plain_steps(either: Path) -> None:
    checkpoint = either
    capture = CountedCapture()
    engine = with_graphs(plain_engine(checkpoint), capture)
    engine.warm_up()
    assert capture.num_captured == 2 * len(graph_sizes(5)) - 1  # one row shares nothing
    replayed = capture.num_replayed
    ours, judge = generate(engine), generate(plain_engine(checkpoint))
    assert capture.num_replayed - replayed == 3  # six rows are too many
    for mine, wanted in zip(ours, judge, strict=True):
        assert [result.tokens for result in mine] == [result.tokens for result in wanted]
        for a, b in zip(mine, wanted, strict=True):
            assert [p for p, _ in a.logprobs[0].top] == pytest.approx([p for p, _ in b.logprobs[0].top], abs=1e-4)


def test_rows_that_share_keys_give_the_results_of_rows_that_do_not(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_groups, "PASS_KEYS", 0)
    ours, judge = plain_engine(checkpoint), plain_engine(checkpoint)
    prefix = random.Random(3).choices(range(150), k=64)
    draw = random.Random(4)
    prompts = [prefix + draw.choices(range(150), k=k) for k in (1, 9, 17)] + [draw.choices(range(150), k=70)]
    tables = [[50, 51, 52, 53, *pages(index)[:4]] for index in range(3)] + [pages(3)]
    one = [Row(rid="a", tokens=prefix, first_position=0, pages=tables[0][:4], sample=SAMPLE)]
    rows = [
        Row(rid=str(index), tokens=prompt[first:], first_position=first, pages=table, sample=SAMPLE)
        for index, (prompt, table, first) in enumerate(zip(prompts, tables, (64, 64, 64, 0), strict=True))
    ]
    capture = CountedCapture()
    ours = with_graphs(ours, capture)
    ours.warm_up()
    kinds: list[bool] = []
    graphs = ours._runner.graphs
    assert graphs is not None
    fill = graphs._fill
    monkeypatch.setattr(graphs, "_fill", lambda *args: kinds.append(fill(*args)) or kinds[-1])
    for engine in (ours, judge):
        step(engine, one)
    for num in (4, 4, 3, 1):
        rows = rows[:num]
        mine, wanted = step(ours, rows), step(judge, rows)
        assert [result.tokens for result in mine] == [result.tokens for result in wanted]
        for a, b in zip(mine, wanted, strict=True):
            assert [p for p, _ in a.logprobs[0].top] == pytest.approx([p for p, _ in b.logprobs[0].top], abs=1e-4)
        rows = [following(row, result) for row, result in zip(rows, mine, strict=True)]
    assert kinds == [True, True, False]  # the first step is no decode step


def test_rows_that_follow_take_their_tokens_from_the_last_step(checkpoint: Path) -> None:
    capture = CountedCapture()
    engine = with_graphs(plain_engine(checkpoint), capture)
    engine.warm_up()
    steps = random_steps(random.Random(2), engine.info.vocab_size, 4, newcomers=[0])
    ours, judge = ahead(engine, steps), one_by_one(plain_engine(checkpoint), steps)
    assert capture.num_replayed == 3
    assert [[row.tokens for row in step_results] for step_results in ours] == [
        [row.tokens for row in step_results] for step_results in judge
    ]


def test_capturing_writes_nothing(checkpoint: Path) -> None:
    engine = plain_engine(checkpoint)
    pool = engine._runner.pool
    for memory in pool.memories:
        memory.fill_(7.0)
    model = engine._runner.model
    graphs = DecodeGraphs(model, pool.layers, max_rows=2, num_places=32, captures=(0,), capture=CountedCapture())
    with torch.inference_mode():
        graphs.capture_all()
    assert all(bool((memory == 7.0).all()) for memory in pool.memories)


def test_features_survive_the_next_replay_of_a_graph(checkpoint: Path) -> None:
    """A draft source keeps features for many steps; a graph always writes its outputs to the same memory."""
    engine = plain_engine(checkpoint)
    model, pool = engine._runner.model, engine._runner.pool
    capture = CountedCapture()
    graphs = DecodeGraphs(model, pool.layers, max_rows=1, num_places=32, captures=(0, 2), capture=capture)
    row = Row(rid="a", tokens=[1], first_position=0, pages=[0], sample=SAMPLE)
    with torch.inference_mode():
        graphs.capture_all()
        _, features = graphs.hidden_and_features([row], NO_LAST_TOKENS, features=True)
        assert features is not None
        kept = features.clone()
        [(_, written)] = graphs._outputs.values()
        assert written is not None
        written.zero_()
    assert kept.abs().max() > 0
    assert torch.equal(features, kept)


def test_only_rows_that_decode_fit(checkpoint: Path) -> None:
    engine = plain_engine(checkpoint)
    graphs = DecodeGraphs(
        engine._runner.model,
        engine._runner.pool.layers,
        max_rows=2,
        num_places=32,
        captures=(),
        capture=CountedCapture(),
    )
    one = Row(rid="a", tokens=[1], first_position=4, pages=[0], sample=SAMPLE)
    assert graphs.fits([one, one])
    assert not graphs.fits([one, one, one])
    for other in (
        Row(rid="a", tokens=[1, 2], first_position=4, pages=[0], sample=SAMPLE),
        Row(rid="a", tokens=[1], first_position=4, pages=[0]),
        Row(rid="a", tokens=[1], first_position=4, pages=[0], sample=SAMPLE, pool_from=0),
        Row(
            rid="a",
            tokens=[1],
            first_position=4,
            pages=[0],
            sample=SAMPLE,
            score=Score(first=0, targets=[1], num_top=0),
        ),
    ):
        assert not graphs.fits([one, other])


@pytest.mark.parametrize("max_rows", [1, 2, 5, 8, 24, 64, 100, 256])
def test_every_number_of_rows_has_a_graph_that_is_not_much_larger(max_rows: int) -> None:
    sizes = graph_sizes(max_rows)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_rows
    for num in range(1, max_rows + 1):
        size = next(size for size in sizes if size >= num)
        assert size - num <= max(3, num / 2)
