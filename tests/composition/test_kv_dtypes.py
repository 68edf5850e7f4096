"""With keys and values in few bits everyone still gets what they get alone: whatever the cache holds, however requests
are scheduled, whoever guesses.

Judge: the same dtype of keys and values, one request after the other, without cache and guesses. The model computes in
float64. In float32 sums in another order differ in their seventh digit, which now and then moves a number to the code
beside its own, and that is seen in the third digit of log-probabilities: nothing wrong, but a wrong key would look like
it. In float64 no code moves, and everything is compared as closely as without quantisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest
import torch

from ramiform.runtime.engine import ForwardEngine, build
from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.load import load_model
from ramiform.runtime.protocol.config import CoreConfig, KvDtypeName
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.speculation.draft_model import DraftModelSource
from ramiform.runtime.speculation.eagle import EagleSource, load_head

from .alone import TOKENIZER, AnyTree, Got, make_engine, run
from .mix import Target, make_mix, make_writers, run_alone, run_together
from .test_cache_and_schedule import check_flush, check_pages, start
from .test_speculation import REQUESTS, check

TOLERANCE = 1e-6
NAMES: tuple[KvDtypeName, ...] = ("fp8", "int8")


def writers() -> list[Generate]:
    """Long outputs, of which some begin as one: samples of a prompt, and branches of what one of them may have said."""
    prompt = TOKENIZER.encode("Ada lives near a river and reads about seven spiders under blue lamps.", add_bos=True)
    sampling = SamplingParams(max_new_tokens=70, temperature=1.0, ignore_eos=True)
    branches = [[], TOKENIZER.encode(" In spring"), TOKENIZER.encode(" In the capital of France")]
    return [
        Generate(
            rid=f"writer {index}",
            tokens=prompt + branches[index % 3],
            sampling=msgspec.structs.replace(sampling, seed=index),
        )
        for index in range(6)
    ]


EVERYONE = REQUESTS[:16] + writers()  # two of each kind


class Alone(NamedTuple):
    kv_dtype: KvDtypeName
    got: dict[str, Got]


@pytest.fixture(scope="module")
def wide() -> Iterator[None]:
    """The engine may be asked for float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(build._DTYPES, "float64", torch.float64)
        yield


def engine_of(kv_dtype: str, source: DraftSource | None = None, **settings: Any) -> ForwardEngine:
    config = {"device": "cpu", "dtype": "float64", "num_pages": 256, "kv_dtype": kv_dtype} | settings
    return make_engine(CoreConfig(**config), source)


@cache  # pytest would make a fixture anew for each test that names its parameter
def outputs_alone(kv_dtype: KvDtypeName) -> Alone:
    """Return the outputs of each request by itself, on a fresh engine."""
    torch.set_num_threads(1)
    engine = engine_of(kv_dtype)
    settings: dict[str, Any] = {"speculative": "off", "prefix_cache": False}
    return Alone(kv_dtype, {one.rid: run([one], engine=engine, **settings)[0][one.rid] for one in EVERYONE})


@pytest.fixture(params=NAMES)
def alone(request: pytest.FixtureRequest, wide: None) -> Alone:
    return outputs_alone(request.param)


@pytest.mark.exhaustive
def test_few_bits_are_seen_in_what_is_said(alone: Alone) -> None:
    """Else nothing here were tested."""
    plain, _, _ = run(REQUESTS[:8], engine=engine_of("fp32"), speculative="off")
    differences = [
        abs(one.logprob - other.logprob)
        for rid, mine in plain.items()
        for one, other in zip(mine.logprobs, alone.got[rid].logprobs, strict=False)
    ]
    assert max(differences) > 1000 * TOLERANCE


SCHEDULES: dict[str, tuple[KvDtypeName, dict[str, Any]]] = {
    "small chunks": ("fp8", {"prefill_budget": 24, "max_running": 8, "num_pages": 32}),
    "guesses from the text": ("fp8", {"speculative": "ngram", "speculative_adaptive": False}),
    "host memory": ("int8", {"num_pages": 16, "host_kv_memory": 0.001}),
    "no cache, no jumps": ("int8", {"jump_forward": False, "prefix_cache": False}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("alone", "settings"), SCHEDULES.values(), ids=SCHEDULES, indirect=["alone"])
def test_together_as_alone(alone: Alone, settings: dict[str, Any]) -> None:
    settings = {"speculative": "off"} | settings
    engine = engine_of(alone.kv_dtype, **settings)
    got, stats, _ = run(EVERYONE, engine=engine, **settings)
    check(got, alone.got, TOLERANCE)
    assert (stats.num_cached_tokens > 0) == settings.get("prefix_cache", True)
    if "host_kv_memory" in settings:
        assert stats.num_evicted_pages > 10
        assert stats.num_retractions > 0
        assert stats.num_demoted_pages > stats.num_promoted_pages > 0
    if settings["speculative"] != "off":
        assert stats.num_accepted_tokens > 0
    assert (stats.num_forced_tokens > 0) == settings.get("jump_forward", True)


def any_tree(alone: Alone) -> DraftSource:
    return AnyTree(1, [(request.tokens, alone.got[request.rid].ids) for request in EVERYONE])


def itself(_: Alone) -> DraftSource:
    return DraftModelSource(load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float64), 64, 4096)


def head(_: Alone) -> DraftSource:
    target = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float64)
    return EagleSource(load_head(SHIPPED_MODEL / "draft", target), 64, 4096)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("alone", "make"), [("fp8", head), ("int8", any_tree), ("int8", itself)], indirect=["alone"])
def test_guesses_leave_outputs_as_they_are(make: Callable[[Alone], DraftSource], alone: Alone) -> None:
    """The keys and values of guesses that prove right are moved as codes."""
    source = make(alone)
    settings: dict[str, Any] = {"num_pages": 64, "speculative_adaptive": False}
    settings["speculative"] = "draft" if make is itself else "eagle"
    settings["host_kv_memory"] = (
        4096 * 16 * 2 * 6 * 2 * (64 + 2) / 2**30
    )  # 4096 pages of codes and scales, as the sources have
    engine = engine_of(alone.kv_dtype, source, **settings)
    assert engine.info.num_host_pages == 4096
    everyone = EVERYONE[::2]
    got, stats, plans = run(everyone, engine=engine, **settings)
    check(got, {request.rid: alone.got[request.rid] for request in everyone}, TOLERANCE)
    assert any(row.parents for plan in plans for row in plan.rows)
    assert sum(stats.accepted_lengths[2:]) > 5


@pytest.mark.exhaustive
def test_programs_forks_and_samples_on_a_crowded_runtime() -> None:
    """The mix of everything that clients do, in float32: codes may move, but seldom so many that a token changes."""
    kv_dtype = "int8"
    with start(kv_dtype=kv_dtype, prefix_cache=False, num_pages=2048, speculative="off") as one, Target(one) as judge:
        cases = make_mix(20, judge.encode) + make_writers(8, judge.encode)
        expected = run_alone(cases, [judge])
    settings: dict[str, Any] = {"prefill_budget": 40, "speculative": "ngram", "num_pages": 32}
    with start(kv_dtype=kv_dtype, **settings) as runtime, Target(runtime) as target:
        assert target.idle_stats()["kv_dtype"] == kv_dtype
        got = run_together(cases, target)
        whole = [index for index, case in enumerate(cases) if not hasattr(case, "whole")]
        same = sum(got[index].exact == expected[index].exact for index in whole)
        assert same >= 0.8 * len(whole)
        stats = check_pages(target)
        assert stats["num_cached_tokens"] > 0
        assert stats["num_forced_tokens"] > 0
        check_flush(target)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kv_dtype", ["int4", "fp8_e5m2"])
def test_four_bits_and_e5m2_say_together_what_they_say_alone(kv_dtype: KvDtypeName, wide: None) -> None:
    """All at once: chunks, forks, reuse, guesses, retractions, pages that go to the host and come back."""
    torch.set_num_threads(1)
    everyone = REQUESTS[:2] + writers()[:3]
    engine = engine_of(kv_dtype)
    expected = {
        one.rid: run([one], engine=engine, speculative="off", prefix_cache=False)[0][one.rid] for one in everyone
    }
    settings: dict[str, Any] = {"num_pages": 11, "host_kv_memory": 0.001, "prefill_budget": 24, "max_running": 8}
    settings |= {"speculative": "ngram", "speculative_adaptive": False}
    got, stats, _ = run(everyone, engine=engine_of(kv_dtype, **settings), **settings)
    check(got, expected, TOLERANCE)
    assert min(stats.num_cached_tokens, stats.num_retractions, stats.num_promoted_pages) > 0
    assert stats.num_accepted_tokens > 0
    if kv_dtype == "int4":
        source = AnyTree(1, [(request.tokens, expected[request.rid].ids) for request in everyone])
        settings = {"num_pages": 64, "speculative": "eagle", "speculative_adaptive": False}
        got, stats, _ = run(everyone, engine=engine_of(kv_dtype, source, **settings), **settings)
        check(got, expected, TOLERANCE)
        assert sum(stats.accepted_lengths[2:]) > 5
