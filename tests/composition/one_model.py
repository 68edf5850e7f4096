"""Checks of one random model under schedules, drafts and retraction, against each request alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.protocol.config import CoreConfig

from .alone import Got, run
from .test_same_bits import ENDINGS
from .test_same_bits import requests as sharing_requests
from .test_speculation import REQUESTS, Siblings, check, crowding_requests
from .threads import RanksEngine

TO_RUN = REQUESTS[:8]


def engine_of(path: Path, **settings: Any) -> ForwardEngine:
    return build_engine(CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 512} | settings), path)


@cache
def alone(path: Path, deterministic: bool = False) -> dict[str, Got]:
    """Each request by itself, without a cache."""
    settings = {"speculative": "off", "prefix_cache": False, "deterministic": deterministic}
    engine = engine_of(path, **settings)
    requests = sharing_requests() if deterministic else TO_RUN
    return {request.rid: run([request], engine=engine, **settings)[0][request.rid] for request in requests}


SCHEDULES: dict[str, dict[str, Any]] = {
    "ngram, few pages, chunks": {"speculative": "ngram", "num_pages": 24, "prefill_budget": 48},
    "suffix, host memory": {"speculative": "suffix", "num_pages": 24, "host_kv_memory": 0.01},
    "overlap": {"speculative": "off", "overlap": "on"},
    "two ranks": {"speculative": "ngram", "tp": 2},
}


def check_schedule(path: Path, name: str) -> None:
    """Run requests together, one of them aborted, under settings of `SCHEDULES`."""
    shape = {"speculative_adaptive": False, **SCHEDULES[name]}
    config = CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 512} | shape)
    engine = RanksEngine(config, path, 2) if "tp" in shape else build_engine(config, path)
    got, stats, plans = run(TO_RUN, engine=engine, aborts={9: TO_RUN[3].rid}, **shape)
    cut = got.pop(TO_RUN[3].rid)
    assert cut.ids == alone(path)[TO_RUN[3].rid].ids[: len(cut.ids)]
    check(got, {rid: alone(path)[rid] for rid in got}, tolerance=1e-3)
    assert max(len(plan.rows) for plan in plans) > 1
    assert stats.num_cached_tokens > 0


def check_draft_trees(path: Path, kv_dtype: str = "auto") -> None:
    """Verify trees of right and wrong tokens."""
    plain = {"speculative": "off", "prefix_cache": False}
    expected = alone(path)
    if kv_dtype != "auto":
        expected, *_ = run(TO_RUN, engine=engine_of(path, kv_dtype=kv_dtype, **plain), **plain)
    outputs = [(request.tokens, expected[request.rid].ids) for request in TO_RUN]
    settings: dict[str, Any] = {
        "speculative": "eagle",
        "speculative_adaptive": False,
        "speculative_num_steps": 4,
        "speculative_eagle_topk": 3,
        "speculative_num_draft_tokens": 12,
    }

    def make_source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource:
        return Siblings(3, outputs)

    config = CoreConfig(device="cpu", dtype="float32", num_pages=512, kv_dtype=kv_dtype, **settings)
    engine = build_engine(config, path, make_source=make_source)
    got, stats, _ = run(TO_RUN, engine=engine, **settings)
    check(got, expected, tolerance=1e-3)
    assert sum(stats.accepted_lengths[2:]) > 0


def check_retraction(path: Path) -> None:
    """Run requests that have to give up their pages."""
    requests = crowding_requests()
    got, stats, _ = run(requests, engine=engine_of(path, num_pages=40), num_pages=40, speculative="off")
    assert stats.num_retractions > 0
    check(got, run(requests, engine=engine_of(path), speculative="off")[0], tolerance=1e-3)


def check_deterministic(path: Path, tp: int) -> None:
    """Compare bits of requests in a batch, with a cache, drafts and ranks."""
    settings = {"deterministic": True, "speculative": "ngram", "prefill_budget": 48}
    config = CoreConfig(device="cpu", dtype="float32", num_pages=512, tp=tp, **settings)
    got, _, plans = run(sharing_requests(), engine=RanksEngine(config, path, tp), stagger=2, **settings)
    check(got, alone(path, deterministic=True), tolerance=0.0)
    assert max(len(plan.rows) for plan in plans) > 1
    assert len(ENDINGS) > 1
