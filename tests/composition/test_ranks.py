"""Ranks change nothing that a client sees, whatever it asks for: forks, grammars, guesses, reuse and retraction.

On the model that ships, in float32, with 4 heads and 2 key/value heads: four ranks hold each of the latter twice.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.engine.kv_pool import bytes_per_page
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.speculation.build import build_source

from .alone import AnyTree, Got, run
from .test_speculation import REQUESTS, check, crowding_requests, plain
from .threads import RanksEngine

FEW = REQUESTS[:16]
ORDERED = {"deterministic": True, "speculative_adaptive": False}  # what is adapted to times differs from run to run
SHAPES: dict[str, dict[str, Any]] = {
    "ngram, few pages": {"speculative": "ngram", "num_pages": 20},
    "eagle, host memory": {"speculative": "eagle", "num_pages": 20, "host_kv_memory": 0.01},
    "any trees, chunks": {"speculative": "eagle", "prefill_budget": 64, "speculative_num_draft_tokens": 24},
    "off, no cache": {"speculative": "off", "prefix_cache": False},
}

# Each shape with two divisions, each division with two shapes.
_DIVISIONS = [(2, 1), (4, 1), (1, 2), (2, 3)]
CELLS = [
    pytest.param(SHAPES[name], *_DIVISIONS[(number + shift) % 4], id=f"{name}-{_DIVISIONS[(number + shift) % 4]}")
    for number, name in enumerate(SHAPES)
    for shift in (1, 3)
]


@pytest.fixture(scope="module")
def expected() -> dict[str, Got]:
    torch.set_num_threads(1)
    return plain(FEW)


def engine(config: CoreConfig, size: int, source: DraftSource | None = None, *, stages: int = 1) -> RanksEngine:
    def make(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        if source is not None:
            return source
        return build_source(config, SHIPPED_MODEL, target, num_pages=num_pages, num_host_pages=num_host_pages)

    return RanksEngine(config, SHIPPED_MODEL, size, make, stages=stages)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("shape", "size", "stages"), CELLS)
def test_ranks_leave_outputs_as_they_are(
    expected: dict[str, Got], shape: dict[str, Any], size: int, stages: int
) -> None:
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 512, "speculative_adaptive": False} | shape
    config = CoreConfig(**settings, tp=size, pp=stages)
    trees = AnyTree(1, [(request.tokens, expected[request.rid].ids) for request in FEW])
    source = trees if "prefill_budget" in shape else None
    got, stats, _ = run(FEW, engine=engine(config, size, source, stages=stages), **settings)
    check(got, expected)
    assert (stats.num_accepted_tokens > 5) == (shape["speculative"] != "off")
    if settings["num_pages"] == 20:
        assert stats.num_evicted_pages + stats.num_demoted_pages > 5


@pytest.mark.exhaustive
def test_in_order_the_same_bits_come_of_any_number_of_ranks() -> None:
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 20, "speculative": "eagle"} | ORDERED
    found = [
        run(FEW, engine=engine(CoreConfig(**settings, tp=size, pp=stages), size, stages=stages), **settings)[0]
        for size, stages in ((1, 1), (2, 1), (4, 1), (1, 3), (2, 2))
    ]
    assert all(mine == found[0] for mine in found[1:])
    assert any(mine.logprobs for mine in found[0].values())


@pytest.mark.exhaustive
@pytest.mark.parametrize(("size", "stages"), [(2, 1), (1, 2)])
def test_those_that_give_up_their_place_get_the_same_tokens_in_the_end(size: int, stages: int) -> None:
    requests = crowding_requests()
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 40, "speculative": "off"}
    config = CoreConfig(**settings, tp=size, pp=stages)
    got, stats, _ = run(requests, engine=engine(config, size, stages=stages), **settings)
    assert stats.num_retractions > 0
    check(got, run(requests, **settings | {"num_pages": 512})[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kv_dtype", "size", "stages"), [("int8", 1, 3), ("int4", 2, 1), ("int4", 1, 3)])
def test_quantised_keys_and_values_have_the_scales_of_their_own_layers_and_heads(
    kv_dtype: str, size: int, stages: int
) -> None:
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_pages": 64, "speculative": "off"}
    settings["kv_dtype"] = kv_dtype
    ranks = engine(CoreConfig(**settings, tp=size, pp=stages), size, stages=stages)
    got, _, _ = run(FEW[:6], engine=ranks, **settings)
    check(got, run(FEW[:6], **settings)[0], tolerance=0.1)  # a product of other rows may move a number to the next code


@pytest.mark.exhaustive
def test_stages_measure_the_statistics_of_one_rank() -> None:
    """They compute the text in parts, of which only the first begins with the tokens that are left out."""
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_pages": 64, "speculative": "off"}
    settings |= {"kv_dtype": "int8", "deterministic": True}
    [alone] = engine(CoreConfig(**settings), 1).engines
    found = [
        kv.basis for one in engine(CoreConfig(**settings, pp=2), 1, stages=2).engines for kv in one._runner.pool.layers
    ]
    for ours, theirs in zip(found, (kv.basis for kv in alone._runner.pool.layers), strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours.mean_KD, theirs.mean_KD, rtol=0, atol=0)
        torch.testing.assert_close(ours.factor_KD, theirs.factor_KD, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_all_stages_have_the_pages_that_the_largest_has_memory_for() -> None:
    """With six layers, the first of four stages has one and the second two; a page of the second is a third of all."""
    settings = {"device": "cpu", "dtype": "float32", "kv_memory": 0.01, "context_length": 64}
    page = bytes_per_page(read_config(SHIPPED_MODEL), torch.float32) // 3
    stages = engine(CoreConfig(**settings, pp=4), 1, stages=4)
    assert {one.info.num_pages for one in stages.engines} == {int(0.01 * 2**30) // page}
