"""Requests in bfloat16, together and alone, where products and attention go by tile registers, and where they do not.

Tiles add in another order than dot products, and products go by tiles from eight rows on. So log-probabilities are
compared within `TOLERANCE`, and tokens up to the first two that are as likely within it. The judge is deterministic
mode, each request alone: it multiplies by dot products everywhere.

By itself this file runs with the instructions of the processor. `make test-tiles` emulates tiles; a part of it is run
here, by this file as a program.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ramiform.runtime.engine import build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams

from .alone import TOKENIZER, Got, make_engine, run
from .mix import WORDS
from .test_any_model import NATIVE, SIZES
from .test_hybrid import make_model
from .threads import RanksEngine

TOLERANCE = 0.1  # of log-probabilities: some roundings to bfloat16, whose unit is 2^-8, of numbers around 5
NUM_TOKENS = 10
PREFIX = " ".join(["Ada lives in Oslo. Bo lives in Rome.", *WORDS * 4])
ENDINGS = ["", " Ada lives in", " Bo lives in", " Ada lives in Oslo. Bo lives in"]
CELLS: dict[str, dict[str, Any]] = {
    "shared prefix": {},
    "chunks": {"prefill_budget": 24},
    "ngram": {"speculative": "ngram", "speculative_adaptive": False},
    "suffix, few pages": {"speculative": "suffix", "speculative_adaptive": False, "num_pages": 24},
    "overlap": {"overlap": "on"},
    "two ranks": {"tp": 2},
}
# Random models, without experts: which of those a token takes may change by a rounding.
MODELS = {
    "windows": ("Mistral", {**SIZES, "sliding_window": 21}),
    "windows and caps": ("Gemma2", NATIVE["Gemma2"]),
    "latents": ("DeepseekV3", {**NATIVE["DeepseekV3"], "first_k_dense_replace": 2}),
}


def requests() -> list[Generate]:
    """Return greedy requests: some share a prefix, some are short, and prompts end at any place of a block."""
    texts = [*(PREFIX + ending for ending in ENDINGS), *ENDINGS[1:], PREFIX[: len(PREFIX) // 2]]
    return [
        Generate(
            rid=f"r{index}",
            tokens=TOKENIZER.encode(text, add_bos=True),
            sampling=SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.0),
            logprobs=LogprobParams(num_top=4),
        )
        for index, text in enumerate(texts)
    ]


def config_of(settings: dict[str, Any]) -> CoreConfig:
    return CoreConfig(**{"device": "cpu", "dtype": "bfloat16", "num_pages": 512, "speculative": "off"} | settings)


@cache
def alone() -> dict[str, Got]:
    settings: dict[str, Any] = {"deterministic": True, "prefix_cache": False, "speculative": "off"}
    engine = make_engine(config_of(settings), None)
    return {request.rid: run([request], engine=engine, **settings)[0][request.rid] for request in requests()}


def check_cell(name: str) -> None:
    """Run all requests together, twice, the second time on what the first one cached."""
    settings = {"speculative": "off"} | CELLS[name]
    config = config_of(settings)
    engine = RanksEngine(config, SHIPPED_MODEL, 2) if "tp" in settings else make_engine(config, None)
    for stagger in (0, 2):
        got, _, plans = run(requests(), engine=engine, stagger=stagger, **settings)
        assert max(len(plan.rows) for plan in plans) > 1
        assert max(len(row.tokens) for plan in plans for row in plan.rows) > 8
        num_equal = sum(equal_tokens(got[rid], want) for rid, want in alone().items())
        assert num_equal > 0.8 * NUM_TOKENS * len(got)


def equal_tokens(mine: Got, want: Got) -> int:
    """Compare a request's tokens up to a tie. Return their number."""
    assert (len(mine.ids), mine.finish) == (len(want.ids), want.finish)
    for place, (ours, theirs) in enumerate(zip(mine.logprobs, want.logprobs, strict=True)):
        likely = {token: logprob for logprob, token in theirs.top}
        assert ours.logprob == pytest.approx(likely[ours.id], abs=TOLERANCE)
        if ours.id != theirs.id:
            assert likely[ours.id] > theirs.logprob - TOLERANCE
            return place
    return len(want.ids)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_requests_together_answer_as_each_does_alone(cell: str) -> None:
    torch.set_num_threads(1)
    check_cell(cell)


def prompts() -> list[Generate]:
    """Return requests of random tokens, some after a common prefix, whose prompts' log-probabilities are recorded."""
    draw = random.Random(1)
    prefix = [draw.randrange(3, 2000) for _ in range(70)]
    return [
        Generate(
            rid=f"p{index}",
            tokens=[*prefix[:shared], *(draw.randrange(3, 2000) for _ in range(own))],
            sampling=SamplingParams(max_new_tokens=2, ignore_eos=True, temperature=0.0),
            logprobs=LogprobParams(prompt_from=1),
        )
        for index, (shared, own) in enumerate([(70, 3), (70, 21), (66, 30), (0, 5), (0, 90)])
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", MODELS)
def test_windows_caps_and_latents_answer_as_alone(family: str, tmp_path: Path) -> None:
    name, fields = MODELS[family]
    _, path = make_model(getattr(transformers, f"{name}Config")(**fields), tmp_path)

    def got(requests: Sequence[Generate], **settings: Any) -> dict[str, Got]:
        settings = {"speculative": "off"} | settings
        return run(requests, engine=build_engine(config_of(settings), path), stagger=0, path=path, **settings)[0]

    judge, shape = {"deterministic": True, "prefix_cache": False}, {"prefill_budget": 48}
    together = got(prompts(), **shape)
    for request in prompts():
        ours, theirs = (
            torch.tensor([entry.logprob for entry in one[request.rid].prompt_logprobs if entry is not None])
            for one in (together, got([request], **judge))
        )
        assert len(ours) == len(theirs) > 3
        assert (ours - theirs).abs().mean() < TOLERANCE


@pytest.mark.exhaustive
def test_emulated_tiles_compute_what_the_manual_defines_and_answer_as_dot_products_do() -> None:
    """In one process: compiling its loops takes most of the time."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ramiform.tests.composition.test_tiles"],
        capture_output=True,
        text=True,
        env=os.environ | {"RAMIFORM_CPU": "amx-emulated"},
    )
    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr


if __name__ == "__main__":
    from ramiform.kernels.cpu.products.amx import usable
    from ramiform.tests.kernels.test_amx import differing, differing_in_attention
    from ramiform.tests.kernels.test_compiled_attention import check_rounded

    torch.set_num_threads(1)
    print(usable(), differing() + differing_in_attention())
    # Several registers and a rest; whole tiles of queries and channels, and what fills none.
    check_rounded((80, 3), (64, 7), (96, 1), (128, 2), (256, 4), (64, 33))
    check_rounded((80, 3), deterministic=True)
    check_cell("two ranks")  # op by op: the loops of whole steps take long to compile
