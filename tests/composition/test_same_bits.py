"""`--deterministic`: outputs have the bits of plain decoding, whoever guesses, shares prefixes or divides the model.

Each cell is a draft source, a branching, a KV dtype and ranks. Its requests share a long prefix, so that steps compute
it once. Ids and log-probabilities are compared exactly with each request alone, without guesses and without a cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams, SamplingParams
from ramiform.runtime.speculation.build import build_source

from .alone import TOKENIZER, Got, make_engine, run
from .mix import WORDS
from .test_speculation import Siblings, check
from .threads import RanksEngine

KV_DTYPES = ["auto", "bf16", "int8", "fp8"]
CHAINS = [
    ("ngram", 1, "auto"),
    ("ngram", 1, "int8"),
    ("draft", 1, "bf16"),
    ("draft", 1, "fp8"),
    ("early-exit", 2, "int8"),
]
# Each source with each dtype, and each branching with each dtype.
TREES = [
    (source, [1, 2, 4][(row + column) % 3], kv_dtype)
    for row, source in enumerate(["eagle", "suffix", "siblings"])
    for column, kv_dtype in enumerate(KV_DTYPES)
]
PREFIX = " ".join(["Ada lives in Oslo. Bo lives in Rome.", *WORDS * 12])
ENDINGS = ["", " Ada lives in", " Bo lives in", " Ada lives in Oslo. Bo lives in"]


def requests() -> list[Generate]:
    """Requests that share a prefix: greedy, drawn, penalised, constrained."""
    params: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.0, "frequency_penalty": 0.4, "repetition_penalty": 1.2, "dry_multiplier": 1.0},
        {"temperature": 0.0, "constraint": Constraint("regex", r"( [a-z]{2,7}){3,9}\.")},
    ]
    return [
        Generate(
            rid=f"r{index}",
            tokens=TOKENIZER.encode(PREFIX + ENDINGS[index % 3], add_bos=True),
            sampling=SamplingParams(max_new_tokens=12, ignore_eos=True, **own),
            logprobs=LogprobParams(num_top=2),
        )
        for index, own in enumerate([*params, *params[:2]])
    ]


@cache
def plain(kv_dtype: str) -> dict[str, Got]:
    torch.set_num_threads(1)
    settings: dict[str, Any] = {"deterministic": True, "speculative": "off", "prefix_cache": False}
    settings["kv_dtype"] = kv_dtype
    engine = make_engine(CoreConfig(device="cpu", dtype="float32", num_pages=512, **settings), None)
    return {request.rid: run([request], engine=engine, **settings)[0][request.rid] for request in requests()}


def check_cell(source: str, topk: int, kv_dtype: str, *, tp: int = 1, pp: int = 1) -> None:
    expected = plain(kv_dtype)
    settings: dict[str, Any] = {
        "deterministic": True,
        "kv_dtype": kv_dtype,
        "speculative": "eagle" if source == "siblings" else source,
        "speculative_adaptive": False,
        "speculative_num_steps": 4,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": 4 * topk,
    }
    if source == "draft":
        settings |= {"speculative_draft_model": str(SHIPPED_MODEL), "speculative_num_draft_tokens": 4}
    config = CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 512} | settings, tp=tp, pp=pp)

    def make_source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        if source == "siblings":
            return Siblings(topk, [(request.tokens, expected[request.rid].ids) for request in requests()])
        return build_source(config, SHIPPED_MODEL, target, num_pages=num_pages, num_host_pages=num_host_pages)

    engine = RanksEngine(config, SHIPPED_MODEL, tp, make_source, stages=pp)
    got, stats, plans = run(requests(), engine=engine, stagger=0, **settings)
    check(got, expected, tolerance=0.0)
    again, more, _ = run(requests(), engine=engine, **settings)  # one after the other, on another cache
    check(again, expected, tolerance=0.0)
    assert max(len(plan.rows) for plan in plans) > 1
    assert stats.num_guessed_tokens + more.num_guessed_tokens > 0
    if source == "siblings":
        assert sum(stats.accepted_lengths[2:]) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(("source", "topk", "kv_dtype"), [*CHAINS, *TREES])
def test_guesses_keep_the_bits(source: str, topk: int, kv_dtype: str) -> None:
    check_cell(source, topk, kv_dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("source", "topk", "kv_dtype", "tp", "pp"),
    [
        ("eagle", 2, "int8", 2, 2),
        ("siblings", 4, "auto", 2, 2),
        ("ngram", 1, "fp8", 2, 2),
        ("siblings", 4, "auto", 2, 1),
        ("eagle", 2, "int8", 1, 2),
    ],
)
def test_ranks_keep_the_bits(source: str, topk: int, kv_dtype: str, tp: int, pp: int) -> None:
    check_cell(source, topk, kv_dtype, tp=tp, pp=pp)


@pytest.mark.exhaustive
def test_guesses_keep_the_bits_where_they_branch() -> None:
    check_cell("siblings", 2, "int8")
