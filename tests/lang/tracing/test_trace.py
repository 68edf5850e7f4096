"""Traces agree with the state; the saved file is a Chrome trace that loads again."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen, select
from ramiform.lang.operations.recording import record_all
from ramiform.lang.tracing import trace as traces
from ramiform.runtime.programs.records.events import TokenCounts


@ramiform.function
def expert(s: ProgramState, question: str) -> Any:
    s += question + gen("answer", max_tokens=6, temperature=0, ignore_eos=True)
    branches = s.fork(2)
    branches += lambda index: f" And {index}?" + gen("more", n=2, max_tokens=3, seed=1)
    inner = branches[1].fork(1)
    inner += gen("deep", max_tokens=2)
    inner.join("concate_and_append")
    branches.join("concate_and_append")
    s += " Sure:" + select("sure", [" yes", " no"])
    return branches, inner  # who is held is told everything


@pytest.fixture(params=["zmq", "compiled", "async"])
def traced(request: Any, backend: ramiform.Runtime) -> ProgramState:
    question = "What is the capital of France?"
    if request.param == "async":
        return asyncio.run(expert.arun(question, trace=True))
    program = ramiform.function(expert.function)
    if request.param == "compiled":
        program.compile(question="Who?")
    return program.run(question, trace=True)


def test_a_trace_agrees_with_the_state(traced: ProgramState) -> None:
    trace = traced.trace
    own = trace.states[0]
    assert "".join(event.text or "" for event in own.events) == traced.text()
    assert trace.variables["answer"] == [traced["answer"]]
    assert trace.variables["sure"] == [traced["sure"]]
    assert [(state.number, state.parent) for state in trace.states] == [(0, None), (1, 0), (2, 0), (3, 2)]
    assert len(trace.variables["more"]) == 4
    [answer] = [event for event in own.events if event.name == "answer"]
    meta = traced.get_meta_info("answer")
    assert answer.tokens == TokenCounts(meta["prompt_tokens"], meta["cached_tokens"], 6)
    assert answer.seconds == meta["e2e_latency"] > 0
    assert answer.timings is not None
    assert [answer.timings.queue, answer.timings.prefill, answer.timings.decode] == [
        meta["queue_time"],
        meta["prefill_time"],
        meta["decode_time"],
    ]
    assert min(answer.timings.queue, answer.timings.prefill, answer.timings.decode) >= 0
    assert answer.timings.queue + answer.timings.prefill + answer.timings.decode <= answer.seconds
    assert answer.finish == "length"
    assert all("test_trace.py:" in event.place for event in trace.events)


def test_times_are_in_the_order_of_events(traced: ProgramState) -> None:
    trace = traced.trace
    ends: dict[int, float] = {}
    for state in trace.states:
        before = 0.0
        for event in state.events:
            assert event.end is not None
            assert before <= event.start <= event.end <= trace.seconds
            before = event.end
            if event.kind == "fork":
                ends.update(dict.fromkeys(event.states, event.end))
        if state.number in ends:
            assert state.events[0].start >= ends[state.number]


def test_the_tree_shows_every_state_and_every_generated_text(traced: ProgramState) -> None:
    shown = str(traced.trace)
    assert shown.startswith("expert: 4 states, ")
    assert shown.count("branch ") == 3
    for text in (traced["answer"], *traced.trace.variables["more"]):
        assert repr(text) in shown
    assert "\x1b" not in shown


def test_a_saved_trace_is_a_chrome_trace_and_is_read_again(traced: ProgramState, tmp_path: Path) -> None:
    traced.trace.save(tmp_path / "x.json")
    assert traces.load(tmp_path / "x.json") == [traced.trace]
    content = json.loads((tmp_path / "x.json").read_text())
    by_track = defaultdict(list)
    phases = defaultdict(list)
    flows = defaultdict(list)
    for event in content["traceEvents"]:
        assert {"ph", "pid", "tid", "name", "ts"} <= event.keys()
        if event["ph"] == "X":
            of_track = phases if event["cat"] == "phase" else by_track
            of_track[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            flows[event["id"]].append((event["ph"], event["ts"]))
    names = {event["name"] for event in content["traceEvents"] if event.get("cat") == "phase"}
    assert {"prefill", "decode"} <= names <= {"queue", "grammar", "prefill", "retracted", "decode"}
    times = [event["ts"] for event in content["traceEvents"]]
    assert times == sorted(times)
    assert by_track.keys() == {0, 1, 2, 3}
    for slices in by_track.values():  # slices of a track follow one another, as the format wants them
        assert all(before[1] <= after[0] + 0.01 for before, after in itertools.pairwise(slices)), slices
    assert phases.keys() == {0, 1, 2, 3}
    for track, parts in phases.items():
        assert all(before[1] <= after[0] + 0.01 for before, after in itertools.pairwise(parts)), parts
        for start, end in parts:
            assert any(whole[0] - 0.01 <= start <= end <= whole[1] + 0.01 for whole in by_track[track])
    assert len(flows) == 3 + 2 + 1  # forked, concatenated, concatenated before
    for arrow in flows.values():
        assert [phase for phase, _ in arrow] == ["s", "f"]
        assert arrow[0][1] <= arrow[1][1]


def test_a_streamed_generation_tells_when_its_first_text_came(backend: ramiform.Runtime) -> None:
    state = expert.run("Who?", stream=True, trace=True)
    [answer] = [event for event in state.trace.states[0].events if event.name == "answer"]
    assert answer.first_text is not None
    assert answer.end is not None
    assert answer.start <= answer.first_text <= answer.end


def test_a_run_that_failed_is_traced_up_to_there() -> None:
    states: list[ProgramState] = []

    @ramiform.function
    def body(s: ProgramState) -> None:
        states.append(s)
        s += "a" + gen("x")
        s += gen("y") + gen("z")

    with pytest.raises(RequestError):
        body.run(backend=Scripted(["1", RequestError("no good")]), trace=True)
    events = states[0].trace.states[0].events
    assert [event.text for event in events] == ["a", "1", None, None]
    assert "no good" in (events[2].error or "")
    assert events[3].error is None
    assert "failed: " in str(states[0].trace)
    assert "not answered" in str(states[0].trace)


def test_only_runs_with_trace_are_traced() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += gen("x")

    with pytest.raises(RequestError, match="trace=True"):
        _ = body.run(backend=Scripted(["1"])).trace
    [state] = body.run_batch([{}], backend=Scripted(["1"]), trace=True)
    assert state.trace.variables == {"x": ["1"]}


def test_all_programs_of_a_block_are_recorded_once_each() -> None:
    @ramiform.function
    def reads(s: ProgramState, look: bool) -> None:
        s += gen("x")
        if look:
            assert s["x"] == "1"

    reads.compile(look=False)  # whole, and yet it reads when it looks: then it is played again
    backend = Scripted(lambda prompt: "1")
    with record_all() as recordings:
        reads.run_batch([{"look": True}, {"look": False}], backend=backend)
    reads.run(False, backend=backend)
    assert [traces.trace_of(one).variables for one in recordings] == [{"x": ["1"]}] * 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"ramiform": [1]}', b"\xff"])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(RequestError, match=r"x\.json"):
        traces.load(tmp_path / "x.json")


def test_a_trace_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Files of earlier versions have no times of grammars and no views."""
    event = {
        "kind": "gen",
        "label": "gen x",
        "place": "x.py:3",
        "name": "x",
        "text": "a",
        "tokens": {"prompt": 2, "cached": 1, "completion": 3},
        "seconds": 1.5,
        "timings": {"queue": 0.25, "prefill": 0.25, "decode": 1.0},
        "start": 0.0,
        "end": 2.0,
    }
    state = {"number": 0, "parent": None, "events": [event]}
    content = {"traceEvents": [], "ramiform": [{"title": "p", "began_at": 5.0, "states": [state]}]}
    (tmp_path / "old.json").write_text(json.dumps(content))
    [trace] = traces.load(tmp_path / "old.json")
    assert trace.tokens == TokenCounts(2, 1, 3)
    assert trace.summary().seconds["decode"] == 1.0
    [view] = traces.load_views(tmp_path / "old.json")
    assert (view.title, view.completion_tokens, view.status) == ("p", 3, "done")
