"""Views of recorded runs. Judge: a simulation of programs whose times are known."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from ramiform.runtime.programs.records.events import (
    ABANDONED,
    Event,
    ProgramWait,
    RunRecord,
    TokenCounts,
    TracedState,
)
from ramiform.runtime.programs.records.view import MAX_TEXT, ProgramView, RowOutcome, view_of, without_texts
from ramiform.runtime.protocol.core import Timings

STEP = 1 / 64  # a power of two: sums of times are exact


class Simulation:
    """A program with random forks and joins, and the path that its end depends on."""

    def __init__(self, seed: int, *, reads: bool) -> None:
        self.draw = random.Random(seed)
        self.reads = reads  # variables of branches are read, in place of a join that is an operation
        self.states: list[TracedState] = []
        self.end, self.path = self._state(None, 0.0, 3)

    def _state(self, parent: int | None, begin: float, depth: int) -> tuple[float, list[tuple[int, float, float]]]:
        """Simulate a state; return its end and its path: state, from, to."""
        number = len(self.states)
        events: list[Event] = []
        self.states.append(TracedState(number=number, parent=parent, events=events, begin=begin))
        at, path = begin, []

        def spend(kind: Any, **fields: Any) -> None:
            nonlocal at
            seconds = self.draw.randrange(1, 20) * STEP
            events.append(Event(kind=kind, label="", place=f"x.py:{len(events)}", start=at, end=at + seconds, **fields))
            path.append((number, at, at + seconds))
            at += seconds

        for _ in range(self.draw.randrange(1, 4)):
            spend("gen")
            if depth and self.draw.random() < 0.6:
                spend("text")
                children, ends = [], []
                for _ in range(self.draw.randrange(1, 4)):
                    children.append(len(self.states))
                    ends.append(self._state(number, at, depth - 1))
                fork = Event(kind="fork", label="", place="x.py:1", start=at, end=at, states=tuple(children))
                events.append(fork)
                joined, below = max(ends, key=lambda one: one[0])
                if self.reads:
                    wait = (ProgramWait(at, joined, "x.py:9"),)
                    events.append(Event(kind="text", label="", place="x.py:9", start=joined, end=joined, waits=wait))
                else:
                    states = tuple(children)
                    events.append(Event(kind="join", label="", place="x.py:9", start=at, end=joined, states=states))
                path += below
                at = joined
        spend("gen")
        return at, path


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_critical_path_goes_through_the_branches_that_ended_last(seed: int, reads: bool) -> None:
    program = Simulation(seed, reads=reads)
    view = view_of(RunRecord(title="p", began_at=0.0, states=program.states))
    spans = [(number, view.states[number].spans[index]) for number, index in view.critical_path]
    assert [(number, span.start, span.end) for number, span in spans] == program.path
    assert sum(span.seconds for _, span in spans) == view.seconds == program.end
    assert all(one.end == following.start for (_, one), (_, following) in pairwise(spans))


def _record(**fields: Any) -> RunRecord:
    event = Event(kind="gen", label="gen x", place="x.py:3", name="x", start=1.0, **fields)
    return RunRecord(title="p", began_at=5.0, states=[TracedState(number=0, parent=None, events=[event])])


def test_a_generations_time_is_divided_by_what_the_runtime_measured() -> None:
    timings = Timings(queue=0.5, grammar=1.0, prefill=0.25, decode=2.0, retracted=0.125)
    view = view_of(_record(end=6.0, text="t", timings=timings, tokens=TokenCounts(4, 2, 3, 1, 2, 1)))
    found = [(span.cause, span.seconds) for span in view.states[0].spans]
    assert found == [
        ("python", 1.0),
        ("transport", 1.125),
        ("queue", 0.5),
        ("grammar", 1.0),
        ("prefill", 0.25),
        ("retracted", 0.125),
        ("decode", 2.0),
    ]
    assert view.lines[0].seconds == dict(found)
    assert len(view.states) == 1
    assert (view.prompt_tokens, view.cached_tokens, view.completion_tokens) == (4, 2, 3)


def test_what_runs_lasts_until_now() -> None:
    view = view_of(_record(first_text=1.5), outcome=RowOutcome("running"), now=3.0)
    assert [(span.cause, span.start, span.end) for span in view.states[0].spans] == [
        ("python", 0.0, 1.0),
        ("prefill", 1.0, 1.5),
        ("decode", 1.5, 3.0),
    ]
    assert view.states[0].events[0].end is None


def test_long_texts_are_cut_and_say_so() -> None:
    view = view_of(_record(end=2.0, text="x" * 9000, samples=["x" * 9000, "y"]))
    [event] = view.states[0].events
    assert (event.cut, len(event.text or ""), [len(one) for one in event.samples or ()]) == (True, MAX_TEXT, [4000, 1])
    hidden = without_texts(view).states[0].events[0]
    assert (hidden.text, hidden.samples, hidden.label) == (None, None, "gen x")


def test_a_view_that_failed_names_the_first_error() -> None:
    view = view_of(_record(end=2.0, error="too long"))
    assert (view.status, view.error, view.place) == ("failed", "too long", "x.py:3")


def test_views_are_read_back_as_they_were_written() -> None:
    view = view_of(RunRecord(title="p", began_at=0.0, states=Simulation(3, reads=False).states))
    assert msgspec.json.decode(msgspec.json.encode(view), type=ProgramView) == view


def test_a_failure_comes_before_what_was_given_up_because_of_it() -> None:
    def state(number: int, error: str) -> TracedState:
        event = Event(kind="gen", label="", place=f"x.py:{number}", start=1.0, end=1.0, error=error)
        return TracedState(number=number, parent=None, events=[event])

    states = [state(1, f"x.py:1: {ABANDONED}RequestError('no')"), state(2, "x.py:2: no"), state(3, f"{ABANDONED}it")]
    view = view_of(RunRecord(title="x", began_at=0.0, states=states))
    assert (view.status, view.error, view.place) == ("failed", "x.py:2: no", "x.py:2")
