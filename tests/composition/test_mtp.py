"""Layers of multi-token prediction draft with everything else: answers are those of plain decoding.

Random checkpoints whose layers change little, so that many guesses are right and many are not. Judge: each request by
itself, without drafts and without a cache.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.scheduler import batch
from ramiform.runtime.speculation.build import build_source, draft_bytes, resolve_speculation

from .alone import Got, run
from .naive_mtp import make_checkpoint
from .test_speculation import REQUESTS, check, crowding_requests
from .threads import RanksEngine

Checkpoints = dict[str, Path]
SHAPE: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_pages": 512, "speculative_adaptive": False}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    torch.set_num_threads(1)
    found = {}
    for kind, num_mtp in (("deepseek", 2), ("qwen3-next", 1)):
        found[kind] = tmp_path_factory.mktemp(kind)
        make_checkpoint(kind, found[kind], num_mtp, agrees=True)
    return found


def engine_of(path: Path, **settings: Any) -> tuple[ForwardEngine | RanksEngine, dict[str, Any]]:
    config = resolve_speculation(CoreConfig(**SHAPE | settings), path)
    source = partial(build_source, config, path)
    shape = SHAPE | settings | {"speculative_eagle_topk": config.speculative_eagle_topk}
    if config.tp > 1:
        return RanksEngine(config, path, config.tp, source), shape
    memory = partial(draft_bytes, config, path)
    return build_engine(config, path, make_source=source, draft_memory=memory), shape


@cache
def alone(path: Path, kv_dtype: str, num: int) -> dict[str, Got]:
    engine, shape = engine_of(path, speculative="off", prefix_cache=False, kv_dtype=kv_dtype)
    return run(REQUESTS[:num], engine=engine, stagger=60, **shape)[0]


MIXES: dict[str, tuple[str, dict[str, Any]]] = {
    "chains, chunks, jumps": ("deepseek", {"prefill_budget": 48, "speculative_eagle_topk": 1}),
    "trees, few pages, host memory, int8": (
        "deepseek",
        {"num_pages": 24, "host_kv_memory": 0.01, "kv_dtype": "int8"},
    ),
    "two ranks, overlap": ("deepseek", {"tp": 2, "overlap": "on"}),
    "a hybrid, few pages and slots": ("qwen3-next", {"num_pages": 30, "state_slots": 10, "max_running": 8}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "settings"), MIXES.values(), ids=MIXES)
def test_whatever_a_request_asks_for_is_the_same(
    kind: str, settings: dict[str, Any], checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws, grammars, stops, penalties, log-probabilities, forced text, evictions, an abort."""
    monkeypatch.setattr(batch, "STATE_INTERVAL", 24)
    requests = REQUESTS[:12]
    expected = alone(checkpoints[kind], settings.get("kv_dtype", "auto"), len(requests))
    engine, shape = engine_of(checkpoints[kind], speculative="mtp", **settings)
    got, stats, _ = run(requests, engine=engine, aborts={9: requests[3].rid}, **shape)
    cut = got.pop(requests[3].rid)
    assert cut.ids == expected[requests[3].rid].ids[: len(cut.ids)]
    check(got, expected, tolerance=1e-3)
    assert sum(stats.accepted_lengths[2:]) > 4
    assert stats.num_guessed_tokens > stats.num_accepted_tokens


@pytest.mark.exhaustive
def test_retracted_requests_get_the_same_tokens(checkpoints: Checkpoints) -> None:
    requests: list[Generate] = crowding_requests()[::3]
    (engine, shape), (plain, own) = (
        engine_of(checkpoints["deepseek"], **settings)
        for settings in ({"num_pages": 16, "speculative": "mtp"}, {"speculative": "off"})
    )
    got, stats, _ = run(requests, engine=engine, **shape)
    assert stats.num_retractions > 0
    check(got, run(requests, engine=plain, **own)[0], tolerance=1e-3)


@pytest.mark.exhaustive
def test_deterministic_logprobs_keep_their_bits(checkpoints: Checkpoints) -> None:
    requests, shape = REQUESTS[:5], {"deterministic": True}
    plain, own = engine_of(checkpoints["deepseek"], speculative="off", prefix_cache=False, **shape)
    expected = run(requests, engine=plain, stagger=60, **own)[0]
    engine, settings = engine_of(checkpoints["deepseek"], speculative="mtp", speculative_eagle_topk=2, **shape)
    got, stats, _ = run(requests, engine=engine, **settings)
    check(got, expected, tolerance=0.0)
    assert stats.num_accepted_tokens > 4
