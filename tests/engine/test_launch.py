"""Steps launched before the last one's result is read.

Judges: the same rows run one step after the other; and fake tensors, of which reading a value fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.draft_source import DraftStep
from ramiform.runtime.models import packed_linear
from ramiform.runtime.models.quantised import factory
from ramiform.runtime.models.rope.angles import Rope
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import (
    PENDING,
    ForwardPlan,
    PageCopy,
    Penalties,
    Row,
    RowResult,
    RowSampling,
    Sample,
    SamplingPlan,
    Score,
)

GREEDY = Sample(temperature=0.0, draw=0)
NUM_PAGES = 4  # of each row


def random_sample(draw: random.Random) -> Sample:
    return Sample(
        temperature=draw.choice([0.0, 0.8]),
        top_k=draw.choice([None, 9]),
        top_p=draw.choice([1.0, 0.9]),
        draw=draw.getrandbits(62),
        num_top_logprobs=draw.choice([None, 2]),
    )


@dataclass(frozen=True)
class Step:
    """Rows of known tokens, and rows that follow rows of the last step, with their indices and sampling."""

    prompts: list[Row]
    follows: list[tuple[int, RowSampling | None]]


def random_steps(draw: random.Random, vocab_size: int, num: int, *, newcomers: Sequence[int] = (0, 1, 3)) -> list[Step]:
    """Return steps of rows in random order. Some rows end, some do not sample. Five prompts come first, then
    `newcomers`."""
    words = -(-vocab_size // 32)
    steps: list[Step] = []
    sampled: list[int] = []  # rows of the last step
    num_prompts = 0
    for _ in range(num):
        prompts = []
        for _ in range(draw.choice(newcomers) if steps else 5):
            tokens = draw.choices(range(150), k=draw.choice([1, 5, 16, 17, 30]))
            pages = list(range(NUM_PAGES * num_prompts, NUM_PAGES * (num_prompts + 1)))
            sample = random_sample(draw)
            prompts.append(Row(rid=str(num_prompts), tokens=tokens, first_position=0, pages=pages, sample=sample))
            num_prompts += 1
        follows: list[tuple[int, RowSampling | None]] = []
        for index in draw.sample(sampled, k=draw.randint(min(1, len(sampled)), len(sampled))):
            mask = draw.choice([None, b"\xf0" * 4 * words])
            follows.append((index, None if draw.random() < 0.2 else RowSampling(random_sample(draw), mask)))
        steps.append(Step(prompts, follows))
        sampled = [index for index, (_, own) in enumerate(follows) if own is not None]
        sampled += range(len(follows), len(follows) + len(prompts))
    return steps


def ahead(engine: ForwardEngine, steps: Sequence[Step], *, followed: bool = True) -> list[list[RowResult]]:
    """Run the steps, each launched before the last one's result is read."""
    step_results, rows, launched = [], [], None
    for number, step in enumerate(steps):
        following = [_after(rows[index], PENDING, follows=index) for index, _ in step.follows]
        rows = [*following, *step.prompts]
        now = engine.launch(ForwardPlan(step=number, copies=[], rows=rows, followed=followed))
        if launched is not None:
            step_results.append(launched.wait().rows)
        if following:
            now.sample(SamplingPlan(number, [own for _, own in step.follows]))
        launched = now
    assert launched is not None
    return [*step_results, launched.wait().rows]


def one_by_one(engine: ForwardEngine, steps: Sequence[Step]) -> list[list[RowResult]]:
    step_results: list[list[RowResult]] = []
    rows: list[Row] = []
    for number, step in enumerate(steps):
        following = []
        for index, own in step.follows:
            (token,) = step_results[-1][index].tokens
            row = _after(rows[index], token)
            following.append(row if own is None else msgspec.structs.replace(row, sample=own.sample, mask=own.mask))
        rows = [*following, *step.prompts]
        step_results.append(engine.run(ForwardPlan(step=number, copies=[], rows=rows)).rows)
    return step_results


def _after(row: Row, token: int, *, follows: int | None = None) -> Row:
    first = row.first_position + len(row.tokens)
    return Row(rid=row.rid, tokens=[token], first_position=first, pages=row.pages, follows=follows)


@pytest.mark.parametrize("seed", range(8))
def test_a_following_row_gets_the_sampled_token_at_any_index(engine: ForwardEngine, seed: int) -> None:
    steps = random_steps(random.Random(seed), engine.info.vocab_size, 8)
    ours, judge = ahead(engine, steps), one_by_one(engine, steps)
    assert [[result.tokens for result in step_results] for step_results in ours] == [
        [result.tokens for result in step_results] for step_results in judge
    ]
    for mine, wanted in zip(chain(*ours), chain(*judge), strict=True):
        assert [entry.logprob for entry in mine.logprobs] == pytest.approx(
            [entry.logprob for entry in wanted.logprobs], abs=1e-4
        )


class TokenRecorder:
    """A draft source that notes the tokens of each step's rows, and drafts nothing."""

    caught_up = 0.0
    captures: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.steps: list[list[list[int]]] = []
        self.num_wanted = 0

    def copy(self, copies: Sequence[PageCopy]) -> None:
        pass

    def follow(self, step: DraftStep) -> list[None]:
        self.steps.append([row.kept for row in step.rows])
        self.num_wanted += sum(row.want is not None for row in step.rows)
        return [None] * len(step.rows)

    def skip(self, rows: Sequence[Row]) -> None:
        self.steps.append([row.tokens for row in rows])

    def use_loops(self) -> None:
        pass


@pytest.mark.parametrize("followed", [True, False])
def test_a_draft_source_sees_the_tokens_that_rows_followed(
    engine: ForwardEngine, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = random_steps(random.Random(3), engine.info.vocab_size, 6)
    seen = []
    for run in (partial(ahead, followed=followed), one_by_one):
        recorder = TokenRecorder()
        monkeypatch.setattr(engine._runner, "source", recorder)
        run(engine, steps)
        seen.append(recorder.steps)
    assert seen[0] == seen[1]


def test_a_draft_source_drafts_before_the_first_request(engine: ForwardEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading its weights for the first time takes seconds, which a trial would be charged with."""
    recorder = TokenRecorder()
    monkeypatch.setattr(engine._runner, "source", recorder)
    engine.warm_up()
    assert recorder.num_wanted == 1


@pytest.fixture
def without_numbers(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> ForwardEngine:
    """An engine on torch ops only, which run on tensors without values. Rotary angles, which a CPU looks up in tables,
    are computed as on other devices."""
    monkeypatch.setattr(packed_linear, "can_pack", lambda device, dtype: False)
    monkeypatch.setattr(factory, "can_pack", lambda device, dtype: False)
    monkeypatch.setattr(Rope, "angles", lambda rope, positions, lengths: rope._compute(positions, rope._frequencies))
    return build_engine(CoreConfig(device="cpu", dtype="bfloat16", num_pages=60, kernels="reference"), checkpoint)


@pytest.mark.slow
def test_launching_and_sampling_read_nothing_back_from_the_device(without_numbers: ForwardEngine) -> None:
    """Draws are left out: on a CUDA device they are a kernel, with a test of its own."""
    engine = without_numbers
    words = -(-engine.info.vocab_size // 32)
    everything = Sample(
        temperature=0.0,
        draw=0,
        penalties=Penalties(frequency=0.5, presence=0.1, repetition=1.2, prompt=[1, 2], output=[3]),
        logit_bias={3: 1.0},
        num_top_logprobs=2,
        logprobs_of=(5, 6),
    )
    mask = b"\xf0" * 4 * words
    rows = [
        Row(rid="a", tokens=[5, 6, 7], first_position=0, pages=[0], sample=everything, mask=mask),
        Row(rid="b", tokens=[5] * 20, first_position=0, pages=[1, 2], pool_from=0, sample=GREEDY),
        Row(rid="c", tokens=[5, 6, 7], first_position=0, pages=[3], score=Score(first=0, targets=[6, 7], num_top=2)),
    ]
    following = [
        _after(rows[1], PENDING, follows=1),
        _after(rows[0], PENDING, follows=0),
        Row(rid="d", tokens=[1, 2], first_position=0, pages=[4], sample=GREEDY),
    ]
    with FakeTensorMode(allow_non_fake_inputs=True):
        engine.launch(ForwardPlan(step=1, copies=[PageCopy(0, 5, 3)], rows=rows))
        open_step = engine.launch(ForwardPlan(step=2, copies=[], rows=following))
        open_step.sample(SamplingPlan(2, [None, RowSampling(everything, mask)]))
        with pytest.raises(RuntimeError):
            open_step.wait()


QUESTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x[0]),
    "if": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_reading_a_value_of_a_fake_tensor_fails(ask: Callable[[torch.Tensor], Any]) -> None:
    with FakeTensorMode(), pytest.raises(Exception, match=r".+"):
        ask(torch.zeros(3))
