"""Whatever the cache holds and however requests are scheduled, every one gets what it gets alone without a cache.

On the model that ships, in float32. Tokens, texts and reasons to finish are compared exactly, log-probabilities within
`TOLERANCE`: a matrix product over other rows, or attention over another split of the keys, adds the same numbers in
another order. The largest difference seen is 3e-5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ramiform
from ramiform import gen
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

from .mix import TOLERANCE, Expected, Target, make_mix, make_writers, run_alone, run_together

NUM_CASES = 40  # two of each kind
AMPLE, QUARTER, FEW = 2048, 50, 40  # pages for everything in the mix; for about a quarter of it; for fewer
SETTINGS: dict[str, dict[str, Any]] = {
    "chunks, fcfs, lru": {
        "num_pages": QUARTER,
        "prefill_budget": 40,
        "max_running": 16,
        "order": "fcfs",
        "eviction": "lru",
    },
    "host memory": {"num_pages": FEW, "host_kv_memory": 0.005},
    "one plan in flight, host memory, chunks, dfs, priority": {
        "num_pages": FEW,
        "host_kv_memory": 0.005,
        "overlap": "on",
        "speculative": "off",
        "prefill_budget": 40,
        "max_running": 16,
        "order": "dfs",
        "eviction": "priority",
    },
    "guesses from the text, lpm, lfu": {
        "num_pages": QUARTER,
        "order": "lpm",
        "eviction": "lfu",
        "speculative": "suffix",
        "speculative_adaptive": False,  # whether it pays depends on the machine
        "prefill_budget": 100,
    },
    "guesses from a model": {
        "num_pages": FEW,
        "host_kv_memory": 0.005,
        "speculative": "draft",
        "speculative_draft_model": str(SHIPPED_MODEL),
        "speculative_num_draft_tokens": 12,
        "speculative_adaptive": False,
    },
}


def start(**settings: Any) -> ramiform.Runtime:
    return ramiform.Runtime(port=0, dtype="float32", log_level="error", **{"speculative": "eagle"} | settings)


@pytest.fixture(scope="module")
def references() -> Iterator[list[Target]]:
    """Two runtimes without a cache."""
    settings = {"prefix_cache": False, "num_pages": AMPLE, "speculative": "off"}
    with start(**settings) as one, start(**settings) as two, Target(one) as first, Target(two) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def mix(references: list[Target]) -> Expected:
    cases = make_mix(NUM_CASES, references[0].encode)
    return Expected(cases, run_alone(cases, references))


@pytest.fixture(scope="module")
def writers(references: list[Target]) -> Expected:
    cases = make_writers(10, references[0].encode)
    return Expected(cases, run_alone(cases, references))


def check_pages(target: Target) -> dict[str, Any]:
    """The runtime's figures once it is idle: no page is lost, now or when the cache is emptied."""
    stats = target.idle_stats()
    assert stats["num_free_pages"] + stats["num_cached_pages"] == stats["num_pages"]
    return stats


def check_flush(target: Target) -> None:
    target.flush()
    stats = target.idle_stats()
    assert (stats["num_free_pages"], stats["num_cached_pages"]) == (stats["num_pages"], 0)


@pytest.mark.exhaustive
def test_without_a_cache(mix: Expected, references: list[Target]) -> None:
    mix.check(run_together(mix.cases, references[0]))
    stats = check_pages(references[0])
    assert stats["num_cached_pages"] == stats["num_cached_tokens"] == 0


@pytest.mark.exhaustive
def test_with_a_cache_that_fills_and_is_full(mix: Expected) -> None:
    with start(num_pages=AMPLE) as runtime, Target(runtime) as target:
        mix.check(run_together(mix.cases, target))
        cold = check_pages(target)
        assert cold["num_cached_pages"] >= 3 * QUARTER
        assert cold["num_evicted_pages"] == 0
        mix.check(run_together(mix.cases, target))
        warm = check_pages(target)
        assert warm["num_cached_tokens"] - cold["num_cached_tokens"] > cold["num_cached_tokens"]
        check_flush(target)


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_under_other_settings(mix: Expected, settings: dict[str, Any]) -> None:
    with start(**settings) as runtime, Target(runtime) as target:
        mix.check(run_together(mix.cases, target))
        if "host_kv_memory" in settings:  # there is something to come back
            Expected(mix.cases[:6], mix.outcomes[:6]).check(run_together(mix.cases[:6], target))
        stats = check_pages(target)
        assert stats["num_cached_tokens"] > 0
        assert stats["num_evicted_pages"] > 1.5 * stats["num_pages"]  # what is cached has to go, and what comes after
        if "host_kv_memory" in settings:
            assert stats["num_demoted_pages"] > stats["num_promoted_pages"] > 0
        if settings.get("speculative", "off") != "off":
            assert stats["num_accepted_tokens"] > 0
        check_flush(target)


@pytest.mark.exhaustive
def test_with_and_without_jump_forward(mix: Expected) -> None:
    """Both ways also where rows are cut to small chunks and memory is short."""
    small = {"num_pages": FEW, "prefill_budget": 24, "max_running": 12}
    num_forced = []
    for jumps in (True, False):
        with start(jump_forward=jumps, **small) as runtime, Target(runtime) as target:
            mix.check(run_together(mix.cases, target), jumps=jumps)
            num_forced.append(check_pages(target)["num_forced_tokens"])
    assert num_forced[0] > 150
    assert num_forced[1] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("speculative", ["off", "suffix", "draft"])  # "ngram" gives up pages in test_kv_dtypes.py
def test_outputs_that_have_to_give_up_their_pages_go_on_where_they_were(writers: Expected, speculative: str) -> None:
    settings: dict[str, Any] = {"num_pages": 32, "speculative": speculative, "speculative_adaptive": False}
    if speculative == "draft":
        settings["speculative_draft_model"] = str(SHIPPED_MODEL)
    with start(**settings) as runtime, Target(runtime) as target:
        writers.check(run_together(writers.cases, target))
        assert check_pages(target)["num_retractions"] > 0
        check_flush(target)


def test_every_turn_reuses_all_but_one_token_of_the_turn_before(url: str, runtime: ramiform.Runtime) -> None:
    with Target(runtime) as target:
        target.flush()
        history = target.encode("Question: What is the capital of France?\nAnswer:")
        for num_output in (21, 1, 5, 16, 3, 32):  # ends at many places in a page
            answer = target.generate(history, max_new_tokens=num_output, ignore_eos=True)
            history += answer["output_ids"]
            again = target.generate([*history, history[1]], max_new_tokens=1)
            assert again["meta_info"]["cached_tokens"] == len(history) - 1
            history.append(history[1])


@pytest.mark.usefixtures("backend")
def test_branches_reuse_all_but_one_token_of_what_they_were_forked_from() -> None:
    texts = [" alpha beta gamma delta:", " one two three four:", " xylophone yard zebra you:"]

    @ramiform.function
    def ask(s: ramiform.ProgramState) -> None:
        s += "Three ways to go on from the river." + gen("way", max_tokens=9, temperature=0, ignore_eos=True)
        s.sync()
        for index, text in enumerate(texts):
            fork = s.fork(1)
            fork += text + gen(f"alone {index}", max_tokens=4, temperature=0, ignore_eos=True)
            fork.join()
            s[f"done {index}"] = fork[0][f"alone {index}"]  # waits
        forks = s.fork(len(texts))
        forks += [text + " and" + gen("together", max_tokens=4, temperature=0, ignore_eos=True) for text in texts]
        forks.join()

    ramiform.flush_cache()
    state = ask.run()
    way = state.get_meta_info("way")
    held = way["prompt_tokens"] + way["completion_tokens"]
    first, *others = [state.get_meta_info(f"alone {index}")[0]["cached_tokens"] for index in range(len(texts))]
    assert first == held - 1
    # The first branch has computed the token that was missing, the others find it; of the branch's own they share none.
    assert others == [held] * len(others)
    for index, meta in enumerate(state.get_meta_info("together")):
        alone = state.get_meta_info(f"alone {index}")[0]
        assert meta["cached_tokens"] == alone["prompt_tokens"]


@pytest.mark.slow
def test_prompt_logprobs_on_a_hit_equal_those_of_a_cold_run(runtime: ramiform.Runtime) -> None:
    def ask(start: int, ids: list[int]) -> tuple[list[float], int]:
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        meta = target.http.post("/generate", json=body).json()["meta_info"]
        entries = meta["input_token_logprobs"]
        assert [entry[1] for entry in entries] == ids[start:]
        return [entry[0] for entry in entries if entry[0] is not None], meta["cached_tokens"]

    with Target(runtime) as target:
        ids = target.encode("Ada lives near a river and reads about spiders. " * 6)
        for start in (0, 1, 15, 16, 17, len(ids) // 2, len(ids) - 1):
            target.flush()
            cold, num_cached = ask(start, ids)
            assert num_cached == 0
            for _ in range(2):
                warm, num_cached = ask(start, ids)
                assert warm == pytest.approx(cold, abs=TOLERANCE)
                assert num_cached == max(start - 1, 0)  # only what is asked is computed again
