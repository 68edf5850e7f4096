"""Decode steps with few calls. Judge: the general way, tensors of a step's inputs, `logits_of_step` and `sample`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ramiform.kernels import NOT_FINITE
from ramiform.kernels.cpu.sampling import likeliest
from ramiform.runtime.engine import ForwardEngine
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
from ramiform.runtime.engine.last_tokens import NO_LAST_TOKENS, LastTokens
from ramiform.runtime.engine.needs import needs_of, sampling_needs
from ramiform.runtime.engine.paths import EngineParts, Forward
from ramiform.runtime.engine.paths.kept_arrays import KeptArrays, PageTableArray
from ramiform.runtime.engine.sampler import sample
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SINGLE_RANK
from ramiform.runtime.scheduler.plan import (
    PENDING,
    ForwardPlan,
    Penalties,
    Row,
    RowResult,
    RowSampling,
    Sample,
    SamplingPlan,
)
from ramiform.tests.models.test_families import make_judge

CPU = torch.device("cpu")
GREEDY = Sample(temperature=0.0, draw=0)
LENGTHS = [14, 31, 40]  # a step later the second row has another page
PAGES = [[3, 1], [0, 6, 7], [5, 2, 4, 8]]
WINDOW_PAGES = [[9, 10], [11, 12, 13], [14, 15, 16, 17]]


def caches(model: Decoder, *, window_pages: bool) -> KvPool:
    """Return a pool after the prompts of LENGTHS."""
    memory = KvMemory(model.config, 18, device=CPU, dtype=model.dtype)
    memory.k_LSKD.zero_()
    memory.v_LSKD.zero_()
    pool = KvPool(memory)
    rows = [row(r, 0, list(range(7, 7 + length)), window_pages) for r, length in enumerate(LENGTHS)]
    model.hidden(decoder_inputs(rows, model, np.array([0]), pool.layers[0]), pool.layers)
    return pool


def row(r: int, first: int, tokens: list[int], window_pages: bool) -> Row:
    own = WINDOW_PAGES[r] if window_pages else []
    return Row(rid="", tokens=tokens, first_position=first, pages=list(PAGES[r]), window_pages=own, sample=GREEDY)


@pytest.mark.parametrize(
    ("name", "dtype", "window_pages"),
    [
        ("llama 4", torch.float32, False),  # chunks, scales of queries, layers without positions, a mixture
        ("gemma 3", torch.float32, True),  # a scaled embedding, two ropes
        ("gemma 2", torch.bfloat16, False),  # caps
    ],
)
def test_logits_keys_and_values_have_the_bits_of_the_general_way(
    name: str, dtype: torch.dtype, window_pages: bool, tmp_path: Path
) -> None:
    make_judge(name).save_pretrained(tmp_path)
    with torch.inference_mode():
        model = load_model(tmp_path, device=CPU, dtype=dtype)
        general, own = (caches(model, window_pages=window_pages) for _ in range(2))
        steps = KeptArrays.of(EngineParts(model, own, SINGLE_RANK))
        if steps is None and dtype == torch.bfloat16:
            pytest.skip("without products of bfloat16 the head is computed by itself")
        assert steps is not None
        lengths = list(LENGTHS)
        for number, places in enumerate([[0, 1, 2], [1, 2], [1, 2], [2], [0, 2], [2, 0]]):
            rows = [row(r, lengths[r], [60 + r + number], window_pages) for r in places]
            assert needs_of(ForwardPlan(step=0, copies=[], rows=rows, followed=False)).rows <= steps.computes
            inputs = decoder_inputs(rows, model, np.arange(len(rows)), general.layers[0])
            want = model.logits_of_step(inputs, general.layers)
            # The third step is one more of the rows of the second.
            tokens = np.array([own.tokens[0] for own in rows])
            got = steps.next_logits(tokens) if number == 2 else steps.logits(rows, NO_LAST_TOKENS)
            assert torch.equal(got, want), number
            for mine, theirs in zip(own.memories, general.memories, strict=True):
                assert torch.equal(mine, theirs)
            for r in places:
                lengths[r] += 1
        with pytest.raises(IndexError, match="-2"):
            steps.logits([row(0, lengths[0], [-2], window_pages)], NO_LAST_TOKENS)


def test_page_tables_grow_only_where_they_lack_room() -> None:
    tables = PageTableArray()
    assert tables.update([[1]] * 40)
    for length in (20, 40, 80, 160):
        rows = [[5] * length, *([r] * 3 for r in range(39))]
        assert tables.update(rows)
        assert not tables.update(rows)
        assert [tables.pages_RP[r, : len(pages)].tolist() for r, pages in enumerate(rows)] == rows
    assert tables.pages_RP.shape == (40, 256)
    shrunk = [[7], [8] * 5]
    assert not tables.update(shrunk)
    assert [tables.pages_RP[r, : len(pages)].tolist() for r, pages in enumerate(shrunk)] == shrunk


def test_a_row_that_follows_computes_the_token_sampled_before(engine: ForwardEngine) -> None:
    with torch.inference_mode():
        steps = KeptArrays.of(engine._runner)
        assert steps is not None
        rows = [Row(rid="", tokens=[token], first_position=0, pages=[3], sample=GREEDY) for token in (7, 9)]
        want = [steps.logits([own], NO_LAST_TOKENS).clone() for own in rows]
        following = Row(rid="", tokens=[PENDING], first_position=0, pages=[2], follows=1)
        got = steps.logits([following], LastTokens(torch.tensor([7, 9]), range(2)))
        assert torch.equal(got, want[1])
        assert not torch.equal(got, want[0])


def test_scratch_memory_is_let_go_once_it_was_replaced_by_a_larger_one(engine: ForwardEngine) -> None:
    with torch.inference_mode():
        steps = KeptArrays.of(engine._runner)
        assert steps is not None
        rows = [Row(rid="", tokens=[7], first_position=0, pages=[r], sample=GREEDY) for r in range(4)]
        for count in (1, 2, 3):
            steps.logits(rows[:count], NO_LAST_TOKENS)
        steps.layers.scratch_of(2 * max(steps.layers.scratch))  # as a long prompt's step does
        for count in (4, 1):
            steps.logits(rows[:count], NO_LAST_TOKENS)
        assert all(own.scratch is steps.layers.scratch.get(count) for (count, _), own in steps._memory.items())


def test_the_likeliest_token_is_the_first_of_the_largest() -> None:
    rng = np.random.default_rng(1)
    for size in (1, 3, 255, 256, 257, 2000):
        logits_RV = rng.integers(-3, 3, (40, size)).astype(np.float32) * rng.choice([0.0, -1.0, 1.0], (40, 1))
        logits_RV = logits_RV.astype(np.float32)
        logits_RV[5:10, size // 2] = np.nan, -np.nan, np.inf, -np.inf, -0.0
        logits_RV[10] = -np.inf
        assert [likeliest(logits_V) for logits_V in logits_RV] == logits_RV.argmax(axis=1).tolist()


def test_plain_samples_give_the_tokens_of_the_sampler(engine: ForwardEngine) -> None:
    runner = engine._runner
    steps = KeptArrays.of(runner)
    assert steps is not None
    samples = [Sample(temperature=t, min_p=p, draw=5 + r) for r, (t, p) in enumerate([(0, 0), (1, 0), (0.4, 0.2)] * 3)]
    logits_RV = torch.randn(len(samples), 300, generator=torch.Generator().manual_seed(2)) * 3
    logits_RV[6:8, 40] = torch.nan
    for some in (samples, [GREEDY] * len(samples)):
        rows = [Row(rid="", tokens=[1], first_position=0, pages=[0], sample=own) for own in some]
        assert sampling_needs(rows) <= steps.samples
        with torch.inference_mode():
            steps.logits(rows, NO_LAST_TOKENS)
            got = steps.sample(Forward(logits_RV), rows, sampling_needs(rows)).tokens_R
        assert got == sample(runner.model.ops, logits_RV, some, [None] * len(some)).tolist()
        assert got[6:8] == [NOT_FINITE] * 2


@pytest.mark.parametrize(
    "other",
    [
        Sample(temperature=1.0, draw=0, top_k=3),
        Sample(temperature=1.0, draw=0, top_p=0.9),
        Sample(temperature=0.0, draw=0, logit_bias={1: 2.0}),
        Sample(temperature=0.0, draw=0, num_top_logprobs=0),
        Sample(
            temperature=0.0,
            draw=0,
            penalties=Penalties(frequency=1.0, presence=0.0, repetition=1.0, prompt=[], output=[]),
        ),
    ],
)
def test_sampling_that_asks_for_more_goes_the_general_way(other: Sample) -> None:
    rows = [Row(rid="", tokens=[1], first_position=0, pages=[0], sample=own) for own in (GREEDY, other)]
    assert not sampling_needs(rows) <= KeptArrays.samples
    masked = Row(rid="", tokens=[1], first_position=0, pages=[0], sample=GREEDY, mask=b"")
    assert not sampling_needs([rows[0], masked]) <= KeptArrays.samples


@pytest.mark.parametrize("num_decodes", [1, 4])
def test_plans_have_the_results_of_the_general_way(
    engine: ForwardEngine, num_decodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [GREEDY, Sample(temperature=1.3, draw=5), Sample(temperature=0.7, min_p=0.1, draw=-6)]
    rows = [
        Row(
            rid="",
            tokens=[r + 3],
            first_position=0,
            pages=[r],
            sample=own,
            draws=[] if own is GREEDY else [own.draw + number for number in range(1, num_decodes)],
        )
        for r, own in enumerate(samples)
    ]
    plan = ForwardPlan(step=1, copies=[], rows=rows, num_decodes=num_decodes)
    computed = []
    next_logits = KeptArrays.next_logits
    monkeypatch.setattr(KeptArrays, "next_logits", lambda *args: computed.append(args) or next_logits(*args))
    got = engine.run(plan).rows
    assert len(computed) == num_decodes - 1
    monkeypatch.setattr(KeptArrays, "meets", lambda self, needs: False)
    assert engine.run(plan).rows == got


def test_overlapped_steps_have_the_results_of_the_general_way(
    engine: ForwardEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [GREEDY, Sample(temperature=1.5, draw=7), Sample(temperature=1.0, draw=3, num_top_logprobs=3)]

    def results() -> list[list[RowResult]]:
        """Read each step's results, log-probabilities too, when the next one is computed."""
        found, own = [], [0, 1, 2]
        rows = [Row(rid="", tokens=[r + 3], first_position=0, pages=[r], sample=samples[r]) for r in own]
        launched = engine.launch(ForwardPlan(step=1, copies=[], rows=rows))
        for step, following in enumerate([[2, 0, 1], [0, 1], [1, 0], [1]], start=2):  # rows of the step before
            own = [own[row] for row in following]
            rows = [
                Row(rid="", tokens=[PENDING], first_position=step - 1, pages=[r], follows=row)
                for r, row in zip(own, following, strict=True)
            ]
            now = engine.launch(ForwardPlan(step=step, copies=[], rows=rows))
            found.append(launched.wait().rows)
            now.sample(SamplingPlan(step, [RowSampling(samples[r], None) for r in own]))
            launched = now
        return [*found, launched.wait().rows]

    computed = []
    logits = KeptArrays.logits
    monkeypatch.setattr(KeptArrays, "logits", lambda *args: computed.append(args) or logits(*args))
    got = results()
    assert len(computed) == 5
    monkeypatch.setattr(KeptArrays, "meets", lambda self, needs: False)
    assert results() == got
