"""Outputs that are cut after any token and continued end as they would have, whoever guesses and whoever computes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate

from .alone import AnyTree, Got, run
from .test_speculation import check, make_requests, plain
from .threads import RanksEngine

REQUESTS = make_requests(24, seed=11)  # samplings, grammars, penalties, stops, biases, log-probabilities of all kinds
SHAPES: dict[str, dict[str, Any]] = {
    "off": {"speculative": "off"},
    "any trees": {"speculative": "eagle", "speculative_adaptive": False},
    "suffix, few pages": {"speculative": "suffix", "speculative_adaptive": False, "num_pages": 20},
    "one plan in flight, chunks": {"speculative": "off", "overlap": "on", "prefill_budget": 24, "max_running": 8},
    "two ranks": {"speculative": "ngram", "speculative_adaptive": False, "tp": 2},
    "two stages": {"speculative": "off", "pp": 2},
}


@pytest.fixture(scope="module")
def expected() -> dict[str, Got]:
    torch.set_num_threads(1)
    return plain(REQUESTS)


def continued(request: Generate, got: Got, after: int) -> tuple[Generate, Got]:
    """Return a request that goes on after so many tokens of its output, and what comes of it."""
    sampling = msgspec.structs.replace(
        request.sampling,
        max_new_tokens=request.sampling.max_new_tokens - after,
        min_new_tokens=max(0, request.sampling.min_new_tokens - after),
    )
    rid, tokens = f"{request.rid} after {after}", [*request.tokens, *got.ids[:after]]
    changed = msgspec.structs.replace(request, rid=rid, tokens=tokens, sampling=sampling, continued=after)
    return changed, Got(got.ids[after:], got.logprobs[after:], finish=got.finish)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "shape",
    [pytest.param(SHAPES[name], marks=[] if name == "off" else pytest.mark.exhaustive) for name in SHAPES],
    ids=SHAPES,
)
def test_outputs_go_on_after_any_token_as_they_did(expected: dict[str, Got], shape: dict[str, Any]) -> None:
    pairs = [
        continued(request, expected[request.rid], after)
        for request in REQUESTS
        for after in range(1, len(expected[request.rid].ids))
    ]
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 512} | shape
    config = CoreConfig(**settings)
    outputs = [(request.tokens, expected[request.rid].ids) for request in REQUESTS]
    source = AnyTree(1, outputs) if shape["speculative"] == "eagle" else None

    def make(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        return source

    engine = RanksEngine(config, SHIPPED_MODEL, config.tp, make, stages=config.pp) if config.num_ranks > 1 else None
    got, stats, _ = run([request for request, _ in pairs], source=source, engine=engine, **settings)
    judge = {request.rid: rest for request, rest in pairs}
    check(got, judge)
    for rid, mine in got.items():
        forced = [
            [value.details and value.details.origin == "forced" for value in each.logprobs]
            for each in (mine, judge[rid])
        ]
        assert forced[0] == forced[1], rid
    assert stats.num_forced_tokens > 10
    assert (stats.num_accepted_tokens > 10) == (shape["speculative"] != "off")
