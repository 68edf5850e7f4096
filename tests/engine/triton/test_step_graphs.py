"""Decode steps on static buffers, padded to a few numbers of rows. Judge: the same rows, computed without graphs.

Without a GPU a "graph" calls the function that would have been captured, and the judge computes by plain torch, because
Triton's interpreter takes seconds for a step.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from ramiform.kernels import NOT_FINITE, attention_groups
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.last_tokens import NO_LAST_TOKENS, LastTokens
from ramiform.runtime.engine.paths import EngineParts
from ramiform.runtime.engine.paths.graph_inputs import PageTables, segments
from ramiform.runtime.engine.paths.step_graphs import (
    CudaCapture,
    Forward,
    LargestStep,
    StepGraphs,
    graph_sizes,
    row_shapes,
)
from ramiform.runtime.protocol.config import CoreConfig, KernelsName
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.plan import PENDING, DraftNode, ForwardPlan, Row, RowResult, Sample, Score
from ramiform.tests.composition.alone import run
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


def plain_engine(checkpoint: Path, kernels: KernelsName = "triton") -> ForwardEngine:
    config = CoreConfig(
        device="cuda" if GPU else "cpu", dtype="float32", num_pages=60, kernels=kernels, cuda_graphs=False
    )
    return build_engine(config, checkpoint)


def judging_engine(checkpoint: Path) -> ForwardEngine:
    return plain_engine(checkpoint, "triton" if GPU else "reference")


def with_graphs(engine: ForwardEngine, capture: CountedCapture, **sizes: int) -> ForwardEngine:
    model, pool = engine._runner.model, engine._runner.pool
    assert StepGraphs.supports(model, pool.layers)
    graphs = StepGraphs(model, pool, LargestStep(max_rows=5, num_places=128, **sizes), capture)
    return ForwardEngine(EngineParts(model, pool, graphs=graphs))


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
    ours, judge = generate(engine), generate(judging_engine(checkpoint))
    assert capture.num_replayed - replayed == 3  # six rows are too many
    for mine, wanted in zip(ours, judge, strict=True):
        assert [result.tokens for result in mine] == [result.tokens for result in wanted]
        for a, b in zip(mine, wanted, strict=True):
            assert [p for p, _ in a.logprobs[0].top] == pytest.approx([p for p, _ in b.logprobs[0].top], abs=1e-4)


def test_rows_that_share_keys_give_the_results_of_rows_that_do_not(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_groups, "PASS_KEYS", 0)
    ours, judge = plain_engine(checkpoint), judging_engine(checkpoint)
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
    fill = graphs._inputs.fill_decode
    monkeypatch.setattr(graphs._inputs, "fill_decode", lambda *args: kinds.append(fill(*args)) or kinds[-1])
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


def test_a_row_that_follows_a_missing_token_computes_with_another_token(checkpoint: Path) -> None:
    """Its request fails when the last step is read. Judge: the same step without graphs."""
    results = []
    for engine in (with_graphs(plain_engine(checkpoint), CountedCapture()), plain_engine(checkpoint)):
        engine.warm_up()
        runner = engine._runner
        tokens = torch.tensor([NOT_FINITE, 5], device=runner.model.device)
        runner.last_tokens = LastTokens(tokens, {0: 0, 1: 1})
        rows = [
            Row(rid=str(i), tokens=[PENDING], first_position=0, pages=pages(i), follows=i, sample=SAMPLE)
            for i in range(2)
        ]
        results.append([result.tokens for result in step(engine, rows)])
    assert results[0] == results[1]


def test_a_page_table_that_changes_in_many_places_is_copied_whole() -> None:
    """Also where its bytes are no multiple of the packed arrays' alignment."""
    tables = PageTables(3, 65, torch.device("cpu"))
    own = [random.Random(row).sample(range(1000), k=65) for row in range(3)]
    for row in range(3):
        tables.update(row, own[row])
    places, new = tables.changes([0] * 3)
    assert len(places) > 64
    tables.write(*map(torch.from_numpy, tables.padded(places, new, 64)))
    assert tables.table_RP[:3].tolist() == own


def test_capturing_writes_nothing(checkpoint: Path) -> None:
    engine = plain_engine(checkpoint)
    pool = engine._runner.pool
    for memory in pool.memories:
        memory.fill_(7.0)
    model = engine._runner.model
    graphs = StepGraphs(model, pool, LargestStep(2, num_places=32), CountedCapture(), captures=(0,))
    with torch.inference_mode():
        graphs.capture_all()
    assert all(bool((memory == 7.0).all()) for memory in pool.memories)


def test_features_survive_the_next_replay_of_a_graph(checkpoint: Path) -> None:
    """A draft source keeps features for many steps; a graph always writes its outputs to the same memory."""
    engine = plain_engine(checkpoint)
    model, pool = engine._runner.model, engine._runner.pool
    capture = CountedCapture()
    graphs = StepGraphs(model, pool, LargestStep(1, num_places=32), capture, captures=(0, 2))
    row = Row(rid="a", tokens=[1], first_position=0, pages=[0], sample=SAMPLE)
    with torch.inference_mode():
        graphs.capture_all()
        found = graphs.hidden_and_features([row], np.arange(1), NO_LAST_TOKENS, features=True)
        assert found is not None
        _, features = found
        assert features is not None
        kept = features.clone()
        [(_, written)] = graphs._outputs.values()
        assert written is not None
        written.zero_()
    assert kept.abs().max() > 0
    assert torch.equal(features, kept)


def random_rows(draw: random.Random, vocab_size: int) -> list[list[Row]]:
    """Steps of prompts in chunks, decode rows, forks, chains and trees of drafts, scores and pooling, of four
    sequences with pages of their own."""
    lengths, steps = [0] * 4, []
    for _ in range(8):
        rows = []
        for index in draw.sample(range(4), k=draw.randint(1, 4)):
            first = lengths[index]
            kind = draw.choice(["chunk", "decode", "chain", "tree", "score", "pool", "silent"])
            count = 1 if kind in ("decode", "chain", "tree") else draw.choice([2, 5, 9, 17])
            if first + count + 6 > 120:
                continue
            tokens, settings = draw.choices(range(vocab_size), k=count), {"sample": SAMPLE}
            lengths[index] += count
            if kind in ("chain", "tree"):
                tokens += draw.sample(range(vocab_size), k=5)
                settings |= {
                    "parents": [-1, 0, 1, 2, 3] if kind == "chain" else [-1, 0, 0, 1, -1],
                    "nodes": [DraftNode(draw=0)] * 5,
                }
            elif kind == "score":
                settings = {"score": Score(first=1, targets=tokens[1:], num_top=2)}
            elif kind == "pool":
                settings = {"pool_from": 1}
            elif kind == "silent":
                settings = {}
            rows.append(Row(rid=str(index), tokens=tokens, first_position=first, pages=pages(index), **settings))
        if rows:
            steps.append(rows)
    return steps


@pytest.mark.parametrize("seed", range(20 if GPU else 1))
def test_steps_of_any_rows_give_the_results_of_plain_steps(checkpoint: Path, seed: int) -> None:
    """Between two steps a row's pages grow; a draft's slots are written again."""
    capture = CountedCapture()
    ours, judge = with_graphs(plain_engine(checkpoint), capture, max_tokens=64), judging_engine(checkpoint)
    graphs = ours._runner.graphs
    assert graphs is not None
    with torch.inference_mode():
        assert graphs.capture_all() == len(graphs.shapes) > 3
    steps = random_rows(random.Random(seed), 150 if GPU else 70)
    replayed = capture.num_replayed
    for rows in steps:
        for mine, wanted in zip(step(ours, rows), step(judge, rows), strict=True):
            assert mine.tokens == wanted.tokens
            for a, b in zip((*mine.logprobs, *mine.scores), (*wanted.logprobs, *wanted.scores), strict=True):
                assert [p for p, _ in a.top] == pytest.approx([p for p, _ in b.top], abs=1e-4)
            if wanted.pooled is not None:
                assert mine.pooled is not None
                own, plain = (np.frombuffer(pooled, dtype="<f4") for pooled in (mine.pooled, wanted.pooled))
                assert own == pytest.approx(plain, abs=1e-3)
    assert capture.num_replayed - replayed == sum(sum(len(row.tokens) for row in rows) <= 64 for rows in steps)


def test_rows_are_cut_into_segments_that_hold_trees_whole() -> None:
    tree = [-1, 0, 0, 1, -1]
    rows = [
        Row(rid="a", tokens=[1] * 20, first_position=4, pages=[0, 1]),
        Row(rid="b", tokens=[1] * 8, first_position=0, pages=[2], parents=tree, nodes=[DraftNode(draw=0)] * 5),
        Row(rid="c", tokens=[1] * 15, first_position=0, pages=[3], parents=tree, nodes=[DraftNode(draw=0)] * 5),
    ]
    assert segments(rows, 8) == [(0, 0, 8), (0, 8, 8), (0, 16, 4), (1, 0, 8), (2, 0, 8), (2, 8, 2), (2, 10, 5)]
    assert segments(rows, 4) is None


def test_sizes_that_memory_does_not_hold_are_left_out(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The largest graphs fail; larger steps run without one, and give the same results."""
    capture = CountedCapture()

    def small(forward: Forward) -> Forward:
        shape = forward.args[0]  # type: ignore[attr-defined]
        if shape.tokens > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return capture(forward)

    engine = plain_engine(checkpoint)
    model, pool = engine._runner.model, engine._runner.pool
    graphs = StepGraphs(model, pool, LargestStep(4, num_places=128, max_tokens=16), small)
    with caplog.at_level(logging.WARNING, "ramiform.engine"), torch.inference_mode():
        assert graphs.capture_all() == 3
    assert "no memory for 3 of 6 CUDA graphs: steps of more than 2 rows" in caplog.text
    rows = [Row(rid=str(i), tokens=[i], first_position=0, pages=pages(i), sample=SAMPLE) for i in range(3)]
    ours, judge = ForwardEngine(EngineParts(model, pool, graphs=graphs)), judging_engine(checkpoint)
    for num, replays in ((3, 0), (2, 1)):
        replayed = capture.num_replayed
        assert [r.tokens for r in step(ours, rows[:num])] == [r.tokens for r in step(judge, rows[:num])]
        assert capture.num_replayed - replayed == replays


@pytest.mark.parametrize("max_rows", [1, 8, 256])
def test_graphs_of_any_rows_have_room_for_a_plan_s_rows_and_for_one_long_row(max_rows: int) -> None:
    for shape in row_shapes(max_rows, 256, 8):
        assert shape.rows >= min(shape.tokens, max_rows)
        assert shape.rows > (shape.tokens - 1) // shape.queries


@pytest.mark.parametrize("max_rows", [1, 2, 5, 8, 24, 64, 100, 256])
def test_every_number_of_rows_has_a_graph_that_is_not_much_larger(max_rows: int) -> None:
    sizes = graph_sizes(max_rows)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_rows
    for num in range(1, max_rows + 1):
        size = next(size for size in sizes if size >= num)
        assert size - num <= max(3, num / 2)


def test_rows_of_graphs_read_their_window_pages(tmp_path: Path) -> None:
    """Requests of a model whose layers differ, until their windows have moved by pages; judge: all pages are kept."""
    torch.manual_seed(3)
    config = transformers.Gemma3TextConfig(
        vocab_size=150, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, sliding_window=36,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    transformers.Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    draw = random.Random(2)
    requests = [
        Generate(
            rid=str(index),
            tokens=draw.choices(range(150), k=length),
            sampling=SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True),
        )
        for index, length in enumerate((58, 9))
    ]
    device = "cuda" if GPU else "cpu"
    settings = {"device": device, "num_pages": 40, "prefill_budget": 32, "max_running": 4, "speculative": "off"}
    judge = build_engine(CoreConfig(**settings, dtype="float32", cuda_graphs=False, window_ratio=1), tmp_path)
    plain = CoreConfig(**settings, dtype="float32", kernels="triton", cuda_graphs=False, window_ratio=0.5)
    engine = build_engine(plain, tmp_path)
    assert engine._runner.pool.windows is not None
    capture = CountedCapture()
    ours = with_graphs(engine, capture, max_tokens=48)
    ours.warm_up()
    replayed = capture.num_replayed
    got, _, plans = run(requests, engine=ours, **settings)
    wanted, _, _ = run(requests, engine=judge, **settings)
    assert {rid: mine.ids for rid, mine in got.items()} == {rid: mine.ids for rid, mine in wanted.items()}
    assert capture.num_replayed - replayed >= len(plans) - 3, "all but long prompts"
    assert max(plan.rows[0].window_pages.count(plan.rows[0].window_pages[0]) for plan in plans) > 1
