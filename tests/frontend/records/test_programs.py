"""The server's records of programs. Judge: the trace that the client made of the same run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

import ramiform
from ramiform import ProgramState, gen, select
from ramiform.lang.tracing.trace import Trace


def look_up(num: Literal[1, 2]) -> str:
    """Look a city up."""
    time.sleep(0.05)
    return "Rome" * num


@ramiform.function
def travel(s: ProgramState, name: str) -> None:
    s += f"The traveller {name} sees "
    s += gen("first", max_tokens=4, temperature=0, ignore_eos=True)
    branches = s.fork(8)
    branches += gen("more", max_tokens=3, temperature=0, ignore_eos=True)
    for branch in branches:
        branch["more"]
    s += select("how", choices=["by ship", "by train"])
    s += gen("call", tools=[look_up], max_tokens=40)
    branches.join("concate_and_append")
    s += gen("last", max_tokens=4, regex="[a-z ]+")


@ramiform.function
def gathering(s: ProgramState) -> None:
    s += "A"
    branches = s.fork(2)
    branches += gen("x", max_tokens=2, temperature=0)
    branches.join()
    s += "B"
    mark = s.mark()
    s += gen("dropped", max_tokens=2, temperature=0)
    s.sync()
    s.rollback(mark)
    s += gen("y", max_tokens=2, temperature=0)


@ramiform.function
def failing(s: ProgramState) -> None:
    s += "A" + gen("a", max_tokens=2)
    s += gen("b", max_tokens=2, regex="(")
    s["b"]


@ramiform.function
def raising(s: ProgramState) -> None:
    s += "A" + gen("a", max_tokens=2, temperature=0)
    s["a"]
    raise ValueError("no such city")


@pytest.fixture(params=["zmq", "http"])
def way(request: Any, runtime: ramiform.Runtime, url: str) -> Iterator[Any]:
    if request.param == "zmq":
        yield runtime
        return
    with contextlib.closing(ramiform.HttpRuntime(url)) as over_http:
        yield over_http


def rows(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/v1/ramiform/programs").json()["programs"]
    return found


def record(url: str, title: str) -> dict[str, Any]:
    """Return the latest record with that title, once it is not running."""
    while (row := next(row for row in rows(url) if row["title"] == title))["status"] == "running":
        time.sleep(0.02)  # the test's own timeout ends this
    view: dict[str, Any] = httpx.get(f"{url}/v1/ramiform/programs/{row['id']}").json()
    for name, value in row.items():
        if name != "states":
            assert view[name] == pytest.approx(value), name
    assert len(view["states"]) == row["states"]
    return view


def facts(trace: Trace) -> list[list[Any]]:
    """Return what does not depend on who measures: of each state the events' kinds, places, names, texts, tokens."""
    return [
        [
            (
                one.kind,
                one.label,
                one.place,
                one.name,
                list(one.states),
                one.text,
                None if one.tokens is None else (one.tokens.prompt, one.tokens.completion, one.tokens.forced),
                one.finish,
            )
            for one in state.events
        ]
        for state in trace.states
    ]


def facts_of(view: dict[str, Any]) -> list[list[Any]]:
    return [
        [
            (
                one["kind"],
                one["label"],
                one["place"],
                one["name"],
                one["states"],
                one["text"],
                one["tokens"] and (one["tokens"]["prompt"], one["tokens"]["completion"], one["tokens"]["forced"]),
                one["finish"],
            )
            for one in state["events"]
        ]
        for state in view["states"]
    ]


def check_spans(view: dict[str, Any]) -> None:
    """Check that the spans of each state follow one another from its begin to its end, and the path through them."""
    for state in view["states"]:
        at = state["begin"]
        for span in state["spans"]:
            assert span["start"] == pytest.approx(at)
            assert span["end"] > span["start"]
            at = span["end"]
        assert at == pytest.approx(state["end"])
    by_number = {state["number"]: state for state in view["states"]}
    path = [by_number[number]["spans"][index] for number, index in view["critical_path"]]
    assert path
    assert path[0]["start"] == by_number[0]["begin"]
    assert max(state["end"] for state in view["states"]) == path[-1]["end"]
    for one, following in itertools.pairwise(path):
        assert one["start"] <= following["start"]
    assert sum(line["prompt_tokens"] for line in view["lines"]) == view["prompt_tokens"]
    for cause in {span["cause"] for state in view["states"] for span in state["spans"]}:
        total = sum(line["seconds"].get(cause, 0.0) for line in view["lines"])
        measured = [span for state in view["states"] for span in state["spans"] if span["cause"] == cause]
        assert total == pytest.approx(sum(span["end"] - span["start"] for span in measured))


def test_a_record_says_what_the_clients_trace_says(way: Any, url: str) -> None:
    state = travel.run(name="Ada", backend=way, trace=True)
    view = record(url, "travel")
    assert view["status"] == "done"
    assert len(view["states"]) == 9
    assert [one["parent"] for one in view["states"]] == [None, *[0] * 8]
    assert facts_of(view) == facts(state.trace)
    assert view["completion_tokens"] == state.trace.tokens.completion
    check_spans(view)
    codes = {line["place"]: line["code"] for line in view["lines"] if line["place"]}
    lines = Path(__file__).read_text().split("\n")
    assert codes == {place: lines[int(place.rpartition(":")[2]) - 1].strip() for place in codes}
    assert len(codes) > 5
    [asked] = [event for event in view["states"][0]["events"] if event["kind"] == "ask"]
    assert asked["label"] == "tool look_up"
    assert asked["end"] - asked["start"] >= 0.05
    assert {"tool", "prefill", "decode"} <= {span["cause"] for span in view["states"][0]["spans"]}


@pytest.mark.parametrize("compiled", [False, True])
def test_joins_that_send_nothing_and_rollbacks_are_in_the_record(runtime: Any, url: str, compiled: bool) -> None:
    program = ramiform.function(gathering.function)
    if compiled:
        program.compile()
    state = program.run(backend=runtime, trace=True)
    view = record(url, "gathering")
    assert facts_of(view) == facts(state.trace)
    check_spans(view)


def test_a_failed_program_has_its_error_and_its_line(way: Any, url: str) -> None:
    with pytest.raises(ramiform.RequestError) as raised:
        failing.run(backend=way)
    view = record(url, "failing")
    assert view["status"] == "failed"
    assert view["place"] == raised.value.line
    assert view["error"] in str(raised.value)


def test_an_exception_of_the_programs_own_is_the_error_of_its_record(runtime: Any, url: str) -> None:
    with pytest.raises(ValueError, match="no such city") as raised:
        raising.run(backend=runtime)
    view = record(url, "raising")
    assert (view["status"], view["error"]) == ("failed", "ValueError: no such city")
    assert view["place"] == raised.value.line  # type: ignore[attr-defined]
    check_spans(view)


def test_branches_that_begin_after_their_fork_was_sent_are_recorded(way: Any, url: str) -> None:
    @ramiform.function
    def late(s: ProgramState) -> None:
        s += "A" + gen("a", max_tokens=2, temperature=0)
        branches = s.fork(2)
        s["a"]  # over HTTP the fork is sent by now, and its branches by the next request
        branches += gen("b", max_tokens=2, temperature=0)
        branches.join("concate_and_append")
        s += gen("c", max_tokens=2, temperature=0)

    late.run(backend=way)
    view = record(url, "late")
    assert [one["parent"] for one in view["states"]] == [None, 0, 0]
    assert view["generations"] == 4
    check_spans(view)


def test_a_row_has_the_labels_of_its_nodes_in_the_tree(way: Any, runtime: Any, url: str) -> None:
    """A program with parts is one program in the tree; over HTTP a run that reads a value has a name a request."""

    @ramiform.function
    def part(s: ProgramState, text: str) -> None:
        s += text + gen("b", max_tokens=2, ignore_eos=True)

    @ramiform.function
    def labelled(s: ProgramState, text: str) -> None:
        s += text + gen("a", max_tokens=2, ignore_eos=True)
        assert s["a"] is not None
        part(f"{text} again, and on its own")

    for number in range(2):
        labelled.run(f"A text {way!r} of its own, {number} " * 4, backend=way)
    seen = {node["program"] for node in httpx.get(f"{url}/v1/ramiform/tree").json()["nodes"]}
    mine = [row["labels"] for row in rows(url)[:2]]
    assert not set(mine[0]) & set(mine[1])
    for labels in mine:
        assert labels
        assert len(labels) == len(set(labels))
        assert set(labels) & seen
        assert len(labels) == 1 or isinstance(way, ramiform.HttpRuntime)
    assert record(url, "labelled")["labels"] == mine[0]


def test_a_program_that_is_aborted_is_lost(runtime: Any, url: str) -> None:
    @ramiform.function
    def endless(s: ProgramState) -> None:
        s += "A" + gen("a", max_tokens=2000, ignore_eos=True)

    was_running = False
    while not was_running:  # it may have ended before it was looked at
        state = endless.run(backend=runtime, stream=True)
        next(iter(state.text_iter("a")))
        row = next(row for row in rows(url) if row["title"] == "endless")  # the newest
        view = httpx.get(f"{url}/v1/ramiform/programs/{row['id']}").json()
        state.close()
        was_running = row["status"] == "running" and view["states"][0]["events"][-1]["end"] is None
    assert view["states"][0]["spans"][-1]["cause"] == "decode"
    view = record(url, "endless")
    assert view["status"] in ("lost", "failed")


def test_a_program_whose_budget_is_spent_is_lost_with_the_reason(runtime: Any, url: str) -> None:
    with pytest.raises(ramiform.RequestError):
        travel.run(name="Bo", backend=runtime, max_total_tokens=2)
    view = record(url, "travel")
    assert view["status"] in ("lost", "failed")
    assert "max_total_tokens" in view["error"]


def test_a_program_is_done_when_it_has_returned_though_its_state_is_held(runtime: Any, url: str) -> None:
    state = gathering.run(backend=runtime)
    view = record(url, "gathering")
    assert view["status"] == "done"
    ended = view["seconds"]
    del state
    gc.collect()
    assert record(url, "gathering")["seconds"] == pytest.approx(ended)


def test_waits_for_branches_are_told_from_computing(runtime: Any, url: str) -> None:
    @ramiform.function
    def pausing(s: ProgramState) -> None:
        s += "A"
        branches = s.fork(2)
        branches += gen("x", max_tokens=40, temperature=0, ignore_eos=True)
        for branch in branches:
            branch["x"]
        time.sleep(0.1)
        s += "B"
        s.sync()

    def waited(lines: list[dict[str, float]]) -> float:
        return sum(seconds.get("wait", 0.0) for seconds in lines)

    for _ in range(20):  # A process that stands still changes what one of the two clocks tells: not in every run.
        state = pausing.run(backend=runtime, trace=True)
        view = record(url, "pausing")
        told = [line["seconds"] for line in view["lines"]]
        assert sum(seconds.get("python", 0.0) for seconds in told) >= 0.1
        if waited(told) == pytest.approx(waited([line.seconds for line in state.trace.summary().lines]), abs=0.05):
            break
    else:
        raise AssertionError("the record and the trace disagree about waits in every run")
    on_path = {view["states"][number]["spans"][index]["cause"] for number, index in view["critical_path"]}
    assert "decode" in on_path  # of the branch that ended last, in place of the wait for it
    assert "wait" not in on_path


def test_async_programs_have_the_same_records(runtime: Any, url: str) -> None:
    @ramiform.function
    async def travel_async(s: ProgramState) -> None:
        s += "A" + gen("a", max_tokens=2, temperature=0)
        await s.get("a")
        s += gen("b", max_tokens=2, temperature=0)

    state = asyncio.run(travel_async.arun(backend=runtime, trace=True))
    view = record(url, "travel_async")
    assert facts_of(view) == facts(state.trace)
    check_spans(view)
