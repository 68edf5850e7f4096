"""The decoder on random checkpoints of every family, in float32. Judge: transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from ramiform.runtime.engine import ForwardEngine, KvMemory, KvPool
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.paths import EngineParts
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.scheduler.plan import ForwardPlan, PageCopy, Row, Score

NAMES = [
    "llama2",
    "llama3",
    "llama with biases",
    "llama, one layer",
    "llama linear",
    "llama dynamic",
    "llama yarn",
    "llama yarn, untruncated",
    "mistral",
    "mistral, window",
    "qwen2",
    "qwen2, windows",
    "qwen3",
    "qwen3, layer types",
    "mixtral",
    "mixtral, window",
    "qwen3 moe",
    "qwen3 moe, some layers dense",
    "qwen2 moe",
]
TOLERANCE = 1e-4
every_family = pytest.mark.parametrize("name", NAMES)
Checkpoint = Callable[[str], Path]
Judge = Callable[[str], PreTrainedModel]


def load(path: Path) -> tuple[Decoder, KvPool]:
    model = load_model(path, device=torch.device("cpu"), dtype=torch.float32)
    memory = KvMemory(model.config, 64, device=model.device, dtype=model.dtype)
    memory.k_LSKD.fill_(float("nan"))  # what was never written must never count
    memory.v_LSKD.fill_(float("nan"))
    return model, KvPool(memory)


def forward(model: Decoder, pool: KvPool, rows: list[Row]) -> list[torch.Tensor]:
    """Logits of every token, one tensor per row."""
    sizes = [len(row.tokens) for row in rows]
    with torch.inference_mode():
        inputs = decoder_inputs(rows, model, np.arange(sum(sizes)), pool.layers[0])
        return list(model.logits(model.hidden(inputs, pool.layers)).split(sizes))


def expected(judge: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return judge(torch.tensor([tokens])).logits[0]


def tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(203), k=count)


def page_tables(*lengths: int) -> list[list[int]]:
    """Disjoint, shuffled page tables for sequences of these lengths."""
    pages = random.Random(5).sample(range(64), 64)
    return [[pages.pop() for _ in range(-(-length // 16))] for length in lengths]


def rows_of(tokens: list[int], pages: list[int], sizes: list[int]) -> list[Row]:
    """The sequence cut into consecutive rows of these sizes."""
    ends = np.cumsum(sizes).tolist()
    return [
        Row(
            rid="r",
            tokens=tokens[end - size : end],
            first_position=end - size,
            pages=pages[: -(-end // 16)],
            rope_length=len(tokens),
        )
        for size, end in zip(sizes, ends, strict=True)
    ]


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    assert float((got - want).abs().max()) <= TOLERANCE


@pytest.mark.slow
@every_family
def test_a_prompt_in_one_pass(name: str, checkpoint: Checkpoint, judge: Judge) -> None:
    model, pool = load(checkpoint(name))
    prompt = tokens(101, seed=1)
    [pages] = page_tables(101)
    [got] = forward(model, pool, rows_of(prompt, pages, [101]))
    want = expected(judge(name), prompt)
    assert float(want.std()) > 0.5, "the judge's model must not be trivial"
    assert_close(got, want)


@pytest.mark.slow
@every_family
def test_a_prompt_in_chunks_of_any_size(name: str, checkpoint: Checkpoint, judge: Judge) -> None:
    model, pool = load(checkpoint(name))
    prompt = tokens(101, seed=2)  # longer than the dynamic model's original context
    [pages] = page_tables(101)
    got = [forward(model, pool, [row])[0] for row in rows_of(prompt, pages, [5, 1, 27, 16, 1, 51])]
    assert_close(torch.cat(got), expected(judge(name), prompt))


@pytest.mark.slow
@every_family
def test_decode_rows_and_chunks_of_others_in_one_step(name: str, checkpoint: Checkpoint, judge: Judge) -> None:
    model, pool = load(checkpoint(name))
    lengths = (33, 48, 7, 60, 18, 2)
    sequences = [tokens(length, seed=length) for length in lengths]
    tables = page_tables(*lengths)
    parts = [[20, 13], [47, 1], [6, 1], [30, 30], [1, 17], [1, 1]]
    rows = [rows_of(*row) for row in zip(sequences, tables, parts, strict=True)]
    first = forward(model, pool, [row[0] for row in rows])
    second = forward(model, pool, [row[1] for row in rows])
    reference = judge(name)
    for sequence, *got in zip(sequences, first, second, strict=True):
        assert_close(torch.cat(got), expected(reference, sequence))


@pytest.mark.parametrize("length", [20, 21, 22, 23])
def test_a_window_as_long_as_the_prompt_or_nearly_so(length: int, checkpoint: Checkpoint, judge: Judge) -> None:
    model, pool = load(checkpoint("mistral, window"))
    assert model.config.windows == (21, 21, 21)
    prompt = tokens(length, seed=8)
    [pages] = page_tables(length)
    first, last = rows_of(prompt, pages, [length - 1, 1])
    got = torch.cat((forward(model, pool, [first])[0], forward(model, pool, [last])[0]))
    assert_close(got, expected(judge("mistral, window"), prompt))


@pytest.mark.slow
@every_family
def test_scores_of_a_prompt(name: str, checkpoint: Checkpoint, judge: Judge) -> None:
    model, pool = load(checkpoint(name))
    prompt = tokens(40, seed=3)
    [pages] = page_tables(40)
    row = Row(
        rid="r", tokens=prompt, first_position=0, pages=pages, score=Score(first=4, targets=prompt[5:], num_top=3)
    )
    [result] = ForwardEngine(EngineParts(model, pool)).run(ForwardPlan(step=1, copies=[], rows=[row])).rows
    logprobs = expected(judge(name), prompt).log_softmax(-1)
    assert [score.id for score in result.scores] == prompt[5:]
    for position, score in enumerate(result.scores, start=4):
        assert score.logprob == pytest.approx(float(logprobs[position, score.id]), abs=TOLERANCE)
        best = logprobs[position].topk(3)
        assert [token for _, token in score.top] == best.indices.tolist()
        assert [logprob for logprob, _ in score.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("name", ["llama3", "llama linear", "llama dynamic", "llama yarn", "qwen2"])
def test_the_older_spelling_of_rope_parameters(name: str, checkpoint: Checkpoint, judge: Judge, tmp_path: Path) -> None:
    for file in checkpoint(name).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, pool = load(tmp_path)
    prompt = tokens(101, seed=4)
    [pages] = page_tables(101)
    [got] = forward(model, pool, rows_of(prompt, pages, [101]))
    assert_close(got, expected(judge(name), prompt))


def test_a_copied_page_continues_like_its_source(checkpoint: Checkpoint, judge: Judge) -> None:
    model, pool = load(checkpoint("qwen3"))
    prompt, branch = tokens(30, seed=6), tokens(9, seed=7)
    forward(model, pool, rows_of(prompt, [8, 3], [30]))
    # The branch leaves the prompt at position 21: page 8 is shared, the first five slots of page 3 are copied.
    pool.copy([PageCopy(source=3, target=11, num_tokens=5)])
    row = Row(rid="b", tokens=branch, first_position=21, pages=[8, 11])
    [got] = forward(model, pool, [row])
    assert_close(got, expected(judge("qwen3"), prompt[:21] + branch)[21:])
