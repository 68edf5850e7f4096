"""A draft head in the engine: outputs stay as they are, and it guesses as well as training said it would."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.load import load_model
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.drafts import drafting
from ramiform.runtime.scheduler.drafts.speculation_policy import SpeculationPolicy, StepWork
from ramiform.runtime.scheduler.plan import DraftSpec
from ramiform.runtime.speculation.draft_model import DraftModelSource
from ramiform.runtime.speculation.eagle import EagleSource, load_head
from ramiform.runtime.speculation.eagle.save import save_head
from ramiform.runtime.speculation.eagle.target_probe import probe
from ramiform.tools.train_draft.config import head_config
from ramiform.tools.train_draft.data import TrainingText
from ramiform.tools.train_draft.evaluate import measure_accepted_length, overall_accepted_length
from ramiform.tools.train_draft.initial_head import initial_head
from ramiform.tools.train_draft.target import Target

from .alone import TOKENIZER, Got, run
from .test_speculation import REQUESTS, check, plain

PROMPTS = [
    "Question: What is the capital of France?\nAnswer:",
    "Text: Emma Fischer is a nurse from Oslo. She is 34 years old and likes chess.\nJSON: {",
    "<|user|>\nGive me three facts about Japan.<|end|>\n<|assistant|>\n",
    "<|user|>\nWrite a short outline about the tiger.<|end|>\n<|assistant|>\n",
]
SETTINGS: dict[str, Any] = {"speculative": "eagle", "speculative_adaptive": False}


@pytest.fixture(scope="module")
def expected() -> dict[str, Got]:
    torch.set_num_threads(1)
    return plain(REQUESTS)


def make_source(kind: str, folder: Path, num_pages: int, num_host_pages: int) -> EagleSource:
    """The head that ships, or a random EAGLE-3 head of half the vocabulary."""
    target = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    if kind == "eagle":
        return EagleSource(load_head(SHIPPED_MODEL / "draft", target), num_pages, num_host_pages)
    ids = torch.arange(0, target.config.vocab_size, 2)
    head = initial_head(head_config("eagle3", target.config, len(ids), probe(target)), target, ids, seed=1)
    save_head(head, target.config, folder)
    return EagleSource(load_head(folder, target), num_pages, num_host_pages)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_heads_guesses_leave_outputs_as_they_are(kind: str, expected: dict[str, Got], tmp_path: Path) -> None:
    source = make_source(kind, tmp_path, 64, 4096)
    got, stats, plans = run(REQUESTS, source=source, num_pages=64, host_kv_memory=0.01, **SETTINGS)
    check(got, expected)
    assert any(row.parents for plan in plans for row in plan.rows)
    assert stats.num_demoted_pages > 0
    if kind == "eagle":
        assert stats.num_accepted_tokens > 50


SHAPES: dict[str, dict[str, Any]] = {
    "chains": {"speculative_eagle_topk": 1, "speculative_num_steps": 4},
    "few pages, small chunks": {"num_pages": 24, "prefill_budget": 48, "max_running": 8},
    "large trees": {"speculative_num_steps": 6, "speculative_eagle_topk": 8, "speculative_num_draft_tokens": 32},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", ["eagle", "ngram", "draft"])
def test_every_source_with_trees_of_any_shape(kind: str, shape: dict[str, Any], expected: dict[str, Got]) -> None:
    """Under every kind of sampling and constraint, with requests given up on the way."""
    num_pages = shape.get("num_pages", 512)
    source: EagleSource | DraftModelSource | None = None
    if kind == "eagle":
        source = make_source("eagle", SHIPPED_MODEL, num_pages, 0)
    elif kind == "draft":
        target = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
        source = DraftModelSource(target, num_pages, 0)
    aborts = {2 * index + 3: REQUESTS[index].rid for index in (1, 6, 12, 19, 25)}
    settings = SETTINGS | {"speculative": kind} | shape
    got, stats, _ = run(REQUESTS, source=source, aborts=aborts, stagger=2, **settings)
    aborted = {rid for rid, mine in got.items() if mine.finish is not None and mine.finish.type == "abort"}
    assert aborted
    for rid in aborted:
        assert got[rid].ids == expected[rid].ids[: len(got[rid].ids)]
    check({rid: mine for rid, mine in got.items() if rid not in aborted}, expected)
    assert stats.num_accepted_tokens > 0
    if "num_pages" in shape:
        assert stats.num_evicted_pages > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("kind", ["eagle", "draft"])
def test_outputs_stay_the_same_while_speculation_closes_and_opens(
    kind: str, overlap: str, expected: dict[str, Got], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculation opens and closes whatever the clock says. While it is closed no source follows, and steps are planned
    ahead."""
    seen: list[StepWork] = []
    monkeypatch.setattr(drafting, "UNFOLLOWED_INTERVAL", 1)
    monkeypatch.setattr(SpeculationPolicy, "observe_step", lambda self, work, seconds, count: seen.append(work))
    monkeypatch.setattr(SpeculationPolicy, "is_open", lambda self, *_: len(seen) // 7 % 2 == 1)
    monkeypatch.setattr(SpeculationPolicy, "may_guess", lambda self, *_: len(seen) // 7 % 2 == 1)
    monkeypatch.setattr(SpeculationPolicy, "depths", lambda self, num_rows, requests, *_: [3] * len(requests))
    monkeypatch.setattr(drafting, "FEATURE_WINDOW", 4)
    target = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    source = make_source("eagle", SHIPPED_MODEL, 64, 0) if kind == "eagle" else DraftModelSource(target, 64, 0)
    settings = {"speculative": kind, "speculative_eagle_topk": 2, "overlap": overlap}
    got, stats, plans = run(REQUESTS, source=source, num_pages=64, stagger=2, **settings)
    check(got, expected)
    assert any(row.parents for plan in plans for row in plan.rows)
    followed = [plan.followed for plan in plans]
    assert sum(before and not after for before, after in pairwise(followed)) >= 2
    assert not any(row.parents or row.draft for plan in plans if not plan.followed for row in plan.rows)
    assert any(row.follows is not None for plan in plans for row in plan.rows) == (overlap == "on")
    assert stats.num_accepted_tokens > 0


@pytest.mark.exhaustive
def test_passes_are_as_few_as_measured_beside_training() -> None:
    """`acceptance` says without running the passes what serving then does."""
    torch.set_num_threads(1)
    requests = [
        Generate(
            rid=str(index),
            tokens=TOKENIZER.encode(prompt, add_bos=True),
            sampling=SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True),
        )
        for index, prompt in enumerate(PROMPTS)
    ]
    shape = {"speculative_num_steps": 5, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    num_passes, texts = 0, []
    target = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    head = load_head(SHIPPED_MODEL / "draft", target)
    for request in requests:
        source = EagleSource(head, 64, 0)
        got, _, plans = run([request], source=source, num_pages=64, **shape, **SETTINGS)
        ids = got[request.rid].ids
        texts.append(TrainingText([*request.tokens, *ids], len(request.tokens), request.rid))
        # The first token comes with the prompt's own pass.
        num_passes += sum(row.sample is not None for plan in plans for row in plan.rows) - 1
    measured = measure_accepted_length(
        lambda num_pages: EagleSource(head, num_pages),
        Target(target, head.config.captures),
        texts,
        DraftSpec(5, 4, 7, 0.0),
    )
    assert overall_accepted_length(measured).num_tokens == 4 * 39
    # An output's last tree is cut to the tokens that it may still have.
    assert abs(overall_accepted_length(measured).num_passes - num_passes) <= len(PROMPTS)
