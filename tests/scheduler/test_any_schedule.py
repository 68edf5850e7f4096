"""Every request gets the tokens it would get alone, however it is batched, chunked, cached, retracted or aborted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.radix.window_pages import WindowPages, WindowSizes
from ramiform.runtime.protocol.core import (
    BACKGROUND_PRIORITY,
    ClientSession,
    EndStates,
    FlushCache,
    Generate,
    Hold,
    Retention,
    SoftPin,
)
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams
from ramiform.runtime.scheduler import batch

from .fake_model import VOCABULARY
from .harness import Runtime, generate
from .sequential_run import assert_equal, sequential

token = st.integers(2, VOCABULARY.vocab_size - 1)
few = st.integers(2, 3)  # few different ones, so that prefixes are shared
prompts = st.lists(few, min_size=1, max_size=30) | st.sampled_from([[2] * 9, [2] * 21, [2, 3] * 8, [2] * 16 + [3] * 9])
patterns = st.lists(st.sampled_from(["a[bé]+b", "c{2,3}", "[^a]{4}", "S.*?[pa]", "(?s)b.+b", "é|ab"]), max_size=2).map(
    tuple
)
stops = st.lists(st.sampled_from(["ab", "bab", "é", "a\n", "Stop", "ccc", "b b", "aéb"]), max_size=3).map(tuple)


soft_pins = st.builds(SoftPin, st.integers(0, 3), st.none() | st.integers(0, 40))
retentions = st.builds(Retention, st.integers(0, 40), st.sampled_from([0.5, 60.0]), st.sampled_from("ab"))


@st.composite
def params(draw: st.DrawFn) -> dict[str, Any]:
    max_new = draw(st.integers(0, 24))
    chosen: dict[str, Any] = {
        "max_new_tokens": max_new,
        "min_new_tokens": draw(st.just(0) | st.integers(0, max_new)),
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        "seed": draw(st.integers(0, 2)),
        "stop": draw(st.just(()) | stops),
        "stop_regex": draw(st.just(()) | patterns),
        "stop_token_ids": draw(st.just(()) | st.lists(token, max_size=2).map(tuple)),
        "ignore_eos": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.5])),
    }
    if draw(st.integers(0, 4)) == 0:
        sentences = draw(st.lists(st.lists(token, min_size=1, max_size=6), min_size=1, max_size=4))
        # Some sentences begin others, so that an output could end before it must.
        language = [*sentences, *(sentence[: draw(st.integers(1, 6))] for sentence in sentences)]
        chosen["constraint"] = Constraint("choices", json.dumps(language))
    return chosen


@dataclass
class Event:
    """An event before a step."""

    kind: str  # add, abort, abort_in_flight, compile, flush
    request: int


@st.composite
def requests(draw: st.DrawFn) -> list[Generate]:
    drawn: list[Generate] = []
    for _ in range(draw(st.integers(1, 4))):
        tokens, chosen = draw(prompts), draw(params())
        logprobs = None
        if draw(st.integers(0, 2)) == 0:
            prompt_from = draw(st.none() | st.integers(0, 32))
            of = draw(st.just(()) | st.tuples(token, token))
            logprobs = LogprobParams(num_top=draw(st.integers(0, 2)), prompt_from=prompt_from, of=of)
        pooling = draw(st.sampled_from([None, None, None, "last", "mean"]))
        if pooling is not None:
            chosen |= {"max_new_tokens": 0, "min_new_tokens": 0}
        if draw(st.integers(0, 5)) == 0:
            # Few tokens, so that banned sequences begin often.
            chosen["allowed_token_ids"] = draw(st.lists(token, min_size=1, max_size=5).map(tuple))
        sequences = st.lists(st.sampled_from(chosen.get("allowed_token_ids") or range(6)), min_size=1, max_size=3)
        banned = draw(st.just([]) | st.lists(sequences, max_size=4))
        continued = 0
        if pooling is None and draw(st.integers(0, 2)) == 0:
            # What comes before: any tokens, or mostly some that the grammar allows.
            constraint = chosen.get("constraint")
            some = st.lists(few | token, max_size=5)
            if constraint is not None and draw(st.integers(0, 3)):
                some = st.sampled_from(json.loads(constraint.source))
            before = draw(some)
            continued = draw(st.integers(0, len(before)))
            tokens = [*tokens, *before[:continued]]
        for copy in range(draw(st.integers(1, 3))):
            drawn.append(
                generate(
                    f"r{len(drawn)}",
                    tokens,
                    **{**chosen, "seed": chosen["seed"] + draw(st.integers(0, copy))},
                    logprobs=logprobs,
                    pooling=pooling,
                    priority=draw(st.sampled_from([0, 0, 1, -1, BACKGROUND_PRIORITY])),
                    namespace=draw(st.sampled_from(["", "", "", "other"])),
                    program=(program := draw(st.sampled_from([None, None, "p", "q"]))),
                    soft_pins=draw(st.just([]) | st.lists(soft_pins, max_size=2)),
                    session=None
                    if program
                    else draw(st.none() | st.builds(ClientSession, st.just("s"), st.booleans())),
                    retain=draw(st.just([]) | st.lists(retentions, max_size=2)),
                    in_bulk=draw(st.booleans()),
                    banned=banned,
                    continued=continued,
                )
            )
    return drawn


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[dict[str, Any], list[Generate], list[list[Event]]]:
    mix = draw(requests())
    # At least pages for the longest alone; often no more, so that requests are retracted and outputs cut.
    longest = max(len(message.tokens) for message in mix) + 1
    shape = {
        "num_pages": -(-longest // 4) + draw(st.integers(0, 12) | st.just(60)),
        "budget": draw(st.sampled_from([1, 2, 3, 5, 8, 16, 64])),
        "max_running": draw(st.integers(1, 8)),
        "cache": draw(st.sampled_from([True, True, True, False])),
        "order": draw(st.sampled_from(["fcfs", "lpm", "dfs", "program"])),
        "eviction": draw(st.sampled_from(["lru", "lfu", "priority", "program"])),
        "ahead": draw(st.booleans()),
        "slow_masks": draw(st.none() | st.integers(0, 3)),
        "num_host_pages": draw(st.sampled_from([0, 0, 3, 20])),
        "context_length": draw(st.just(200) | st.integers(longest - 1, 60)),
        "speculative": draw(
            st.sampled_from(["off", "off", "ngram", "lookahead", "suffix", "suffix", "eagle", "eagle"])
        ),  # the fake engine's are any trees
        "speculative_adaptive": draw(st.booleans()),
        "speculative_num_steps": draw(st.integers(1, 6)),
        "speculative_eagle_topk": draw(st.integers(1, 4)),
        "speculative_num_draft_tokens": draw(st.integers(2, 12)),
        "continuous": draw(st.booleans()),
        "widened_from": draw(st.sampled_from([0, 1, 4, 9])),
    }
    kinds = st.sampled_from(
        ["add", "add", "add", "nothing", "nothing", "abort", "abort_in_flight", "compile", "flush", "end", "pause"]
    )
    events = st.builds(Event, kinds, st.integers(0, len(mix) - 1))
    return shape, mix, draw(st.lists(st.lists(events, max_size=3), max_size=25))


@pytest.mark.exhaustive
@settings(max_examples=120, deadline=None, derandomize=True)
@given(scenarios())
def test_every_request_gets_the_tokens_it_would_get_alone(
    scenario: tuple[dict[str, Any], list[Generate], list[list[Event]]],
) -> None:
    check(*scenario)


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None, derandomize=True)
@given(scenarios(), st.integers(0, 12), st.sampled_from([1, 3, 7, 1024]))
def test_recurrent_states_follow_the_tokens_of_their_requests(
    scenario: tuple[dict[str, Any], list[Generate], list[list[Event]]], num_more: int, interval: int
) -> None:
    """The engine fails an assertion where a slot holds another state, the cache where a slot is lost."""
    shape, mix, script = scenario
    own = {"ahead": False, "speculative_eagle_topk": 1, "num_state_slots": shape["max_running"] + num_more}
    if shape["speculative"] == "lookahead":  # which drafts trees
        own["speculative"] = "off"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "STATE_INTERVAL", interval)
        check(shape | own, mix, script)


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None, derandomize=True)
@given(scenarios(), st.integers(1, 24), st.integers(0, 6), st.integers(0, 30))
def test_window_pages_hold_what_each_row_looks_at(
    scenario: tuple[dict[str, Any], list[Generate], list[list[Event]]], window: int, num_sinks: int, num_more: int
) -> None:
    """The engine fails an assertion where a window page holds something else, the cache where one is lost."""
    shape, mix, script = scenario
    # What one request holds, and a step's pages.
    num_pages = WindowPages(WindowSizes(1, window, num_sinks), 4).most_of_lease + -(-shape["budget"] // 4) + num_more
    check(shape | {"num_host_pages": 0, "windows": WindowSizes(num_pages, window, num_sinks)}, mix, script)


def check(shape: dict[str, Any], mix: list[Generate], script: list[list[Event]]) -> None:
    runtime = Runtime(**shape)
    aborted: set[str] = set()
    to_come = list(mix)
    for events in script:
        in_flight = []
        for event in events:
            rid = mix[event.request].rid
            match event.kind:
                case "add" if to_come:
                    runtime.add(to_come.pop(0))
                case "abort" if rid in runtime.answers:
                    runtime.abort(rid)
                    aborted.add(rid)
                case "abort_in_flight" if rid in runtime.answers:
                    in_flight.append(rid)
                    aborted.add(rid)
                case "compile":
                    runtime.grammars.compile()
                case "end":
                    states = None if event.request % 2 else [event.request]
                    runtime.scheduler.handle(EndStates("p", states), 0.0)
                    if event.request % 3 == 0:
                        runtime.scheduler.handle(EndStates("s", is_session=True), 0.0)
                case "pause":
                    hold: Hold = ("waiting", "all", "nothing")[event.request % 3]
                    runtime.pause(hold)
                case "flush":
                    runtime.scheduler.handle(FlushCache(0), 0.0)
        runtime.step(in_flight)
    runtime.pause("nothing")
    runtime.add(*to_come)
    runtime.finish()
    for message in mix:
        answer = runtime.answers[message.rid]
        expected = sequential(message, context_length=shape["context_length"], num_slots=shape["num_pages"] * 4)
        assert answer.over
        if message.rid in aborted and answer.finish is not None and answer.finish.type == "abort":
            assert answer.ids == expected.ids[: len(answer.ids)]
        else:
            assert_equal(answer, expected)
        if not shape["cache"]:
            assert not answer.num_cached
