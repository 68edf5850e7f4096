"""The time of a traced state is divided by cause without a rest, and summed up by source line."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, Scripted, gen
from ramiform.lang.tracing import trace as traces
from ramiform.lang.tracing.trace import Trace
from ramiform.runtime.programs.records.spans import CAUSES, TrackSpan, phases, spans_of, track_of
from ramiform.runtime.protocol.core import Timings

PAUSE = 0.05


def look_up(city: str) -> str:
    """Look a city up."""
    time.sleep(PAUSE)
    return city.upper()


@ramiform.function
def busy(s: ProgramState) -> Any:
    time.sleep(PAUSE)
    s += "Cities: "
    s += gen("first", max_tokens=3, temperature=0, ignore_eos=True)
    branches = s.fork(2)
    branches += gen("more", max_tokens=8, temperature=0, ignore_eos=True)
    assert s["first"] is not None
    time.sleep(PAUSE)
    s += "!"
    for branch in branches:
        branch["more"]
    branches.join("concate_and_append")
    s += gen("last", max_tokens=2, temperature=0)
    s.sync()
    time.sleep(PAUSE)
    return branches


@ramiform.function
async def busy_async(s: ProgramState) -> Any:
    await asyncio.sleep(PAUSE)
    s += "Cities: " + gen("first", max_tokens=3, temperature=0, ignore_eos=True)
    branches = s.fork(2)
    branches += gen("more", max_tokens=8, temperature=0, ignore_eos=True)
    s += "!"
    await asyncio.gather(*(branch.get("more") for branch in branches))
    s += gen("last", max_tokens=2, temperature=0)
    return branches


@pytest.fixture(params=["zmq", "compiled", "async", "thread"])
def trace(request: Any, backend: ramiform.Runtime) -> Trace:
    if request.param == "async":
        return asyncio.run(busy_async.arun(trace=True)).trace
    if request.param == "thread":
        return asyncio.run(busy.arun(trace=True)).trace
    program = ramiform.function(busy.function)
    if request.param == "compiled":
        program.compile()
    return program.run(trace=True).trace


def seconds_of(spans: list[TrackSpan]) -> defaultdict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        found[span.cause] += span.seconds
    return found


def test_the_causes_of_each_track_add_up_to_its_length(trace: Trace) -> None:
    for state in trace.states:
        spans = spans_of(trace, state)
        begin, end = track_of(trace, state)
        assert spans[0].start == begin
        assert spans[-1].end == end
        for before, after in itertools.pairwise(spans):
            assert before.end == after.start
        assert sum(span.seconds for span in spans) == pytest.approx(end - begin)
        assert {span.cause for span in spans} <= set(CAUSES)


def test_gaps_lie_between_operations_and_operations_are_no_gaps(trace: Trace) -> None:
    for state in trace.states:
        for span in spans_of(trace, state):
            if span.is_gap:
                assert all(event.end <= span.start or span.end <= event.start for event in state.events)  # type: ignore[operator]
            else:
                event = state.events[span.event]
                assert event.end is not None
                assert event.start <= span.start
                assert span.end <= event.end


def test_time_in_which_the_program_computed_is_pythons(backend: ramiform.Runtime) -> None:
    trace = busy.run(trace=True).trace
    gaps = [span for span in spans_of(trace, trace.states[0]) if span.is_gap]
    computed = defaultdict(float)
    for span in gaps:
        if span.cause == "python":
            computed[span.event] += span.seconds
    own = trace.states[0].events
    [exclamation] = [index for index, event in enumerate(own) if event.text == "!"]
    assert computed[0] >= PAUSE
    assert computed[exclamation] >= PAUSE
    assert computed[len(own)] >= PAUSE  # after the last operation
    assert seconds_of(gaps)["start"] > 0


def test_a_read_of_a_branch_is_a_wait_at_the_line_that_reads(backend: ramiform.Runtime) -> None:
    waits: list[Any] = []
    while not waits:  # a fast runtime may have answered before the read
        trace = asyncio.run(busy_async.arun(trace=True)).trace
        waits = [span for span in spans_of(trace, trace.states[0]) if span.cause == "wait"]
    [last] = [index for index, event in enumerate(trace.states[0].events) if event.name == "last"]
    assert {span.event for span in waits} == {last}
    assert all("test_spans.py:" in span.place for span in waits)


def test_a_tool_is_not_pythons_time_and_not_the_models() -> None:
    @ramiform.function
    def asks(s: ProgramState) -> None:
        s += "Where? " + gen("found", tools=[look_up])

    call = '{"name": "look_up", "arguments": {"city": "Lima"}}'
    trace = asks.run(backend=Scripted([call]), trace=True).trace
    spans = spans_of(trace, trace.states[0])
    [tool] = [span for span in spans if span.cause == "tool"]
    assert tool.seconds >= PAUSE
    assert all(span.end <= tool.start or tool.end <= span.start for span in spans if span is not tool)


def test_the_summary_has_every_operation_second_and_token(trace: Trace) -> None:
    summary = trace.summary()
    assert sum(line.operations for line in summary.lines) == len(trace.events)
    assert summary.tokens == trace.tokens
    lengths = [track_of(trace, state) for state in trace.states]
    assert sum(summary.seconds.values()) == pytest.approx(sum(end - begin for begin, end in lengths))
    places = {event.place for event in trace.events}
    assert places <= {line.place for line in summary.lines}
    text = Path(__file__).read_text().splitlines()
    for line in summary.lines:
        if line.place:
            assert line.source == text[int(line.place.rpartition(":")[2]) - 1].strip()
    shown = str(summary)
    assert "gen(" in shown
    assert shown.splitlines()[-1].split()[0] == "total"


def test_the_saved_file_shows_the_gaps(backend: ramiform.Runtime, tmp_path: Path) -> None:
    trace = busy.run(trace=True).trace
    trace.save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    shown = {(one["name"], one["tid"]) for one in events if one.get("cat") == "gap"}
    assert {("start", 0), ("python", 0)} <= shown
    [loaded] = traces.load(tmp_path / "t.json")
    assert str(loaded.summary()) == str(trace.summary())
    assert str(loaded) == str(trace)


def test_a_trace_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    old = {
        "title": "f",
        "began_at": 1.0,
        "states": [
            {
                "number": 0,
                "parent": None,
                "events": [{"kind": "gen", "label": "gen x", "place": "f.py:3", "text": "a", "start": 0.5, "end": 1.5}],
            }
        ],
    }
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [], "ramiform": [old]}))
    [trace] = traces.load(tmp_path / "t.json")
    assert seconds_of(spans_of(trace, trace.states[0])) == {"python": 0.5, "model": 1.0}


def test_a_run_that_failed_has_spans_up_to_its_last_answer() -> None:
    states: list[ProgramState] = []

    @ramiform.function
    def fails(s: ProgramState) -> None:
        states.append(s)
        s += "a" + gen("x")
        s["x"]
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        fails.run(backend=Scripted(["1"]), trace=True)
    trace = states[0].trace
    spans = spans_of(trace, trace.states[0])
    assert spans[-1].end == trace.seconds
    assert trace.summary().lines[0].operations == 2


def test_a_generation_is_queued_from_its_submission_on() -> None:
    """Not only from when the core reads it, between two steps."""
    timings = Timings(queue=1.0, prefill=2.0, decode=3.0)
    assert [span for span in phases(timings, 0.0, 12.0, seconds=10.0) if span[1] < span[2]] == [
        ("transport", 0.0, 2.0),
        ("queue", 2.0, 7.0),
        ("prefill", 7.0, 9.0),
        ("decode", 9.0, 12.0),
    ]
    assert next(iter(phases(timings, 0.0, 12.0))) == ("transport", 0.0, 6.0)
