"""Rollbacks of failed and running calls, the same on scripted answers, over ZMQ and over HTTP."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

import ramiform
from ramiform import HttpRuntime, ProgramState, RequestError, Scripted, gen
from ramiform.lang.backends.backend import get_server_info
from ramiform.lang.expressions.expr import GenExpr

REFUSED = "root ::= missing"  # no server compiles it, and nothing before a server reads it


@pytest.fixture
def over_http(url: str) -> Iterator[HttpRuntime]:
    with contextlib.closing(HttpRuntime(url)) as runtime:
        yield runtime


@pytest.fixture(params=["scripted", "zmq", "http"])
def where(request: pytest.FixtureRequest) -> Any:
    if request.param == "scripted":
        return lambda answers: Scripted(answers)
    runtime = request.getfixturevalue("backend" if request.param == "zmq" else "over_http")
    return lambda answers: runtime


def exactly(name: str, text: str) -> GenExpr:
    return gen(name, regex=text)


def test_a_program_goes_on_behind_a_failed_call(where: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Q" + exactly("a", "1")
        mark = s.mark()
        for _ in range(2):
            s += gen("x", grammar=REFUSED) + "..."
            with pytest.raises(RequestError, match=r"refused|missing"):
                s["x"]
            s.rollback(mark)
        s += exactly("y", "2")
        assert s["y"] == "2"
        s += "!"

    refused = RequestError("refused")
    assert program.run(backend=where(["1", refused, refused, "2"])).text() == "Q12!"


def test_what_is_rolled_back_unread_is_not_generated(where: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        mark = s.mark()
        s += gen("x", grammar=REFUSED)
        s.rollback(mark)
        s += "A" + exactly("y", "1")
        mark = s.mark()
        s.sync()
        s += gen("x", grammar=REFUSED)
        s.rollback(mark)
        s += "B" + exactly("y", "2")

    answers = {"A": "1", "A1": "lost", "A1B": "2", "": "lost"}
    assert program.run(backend=where(answers.__getitem__)).text() == "A1B2"


def test_branches_of_what_failed_fail_and_others_are_joined(where: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Q"
        mark = s.mark()
        kept = s.fork(1)
        kept += "k" + exactly("a", "1")
        s.sync()
        s += gen("x", grammar=REFUSED)
        with pytest.raises(RequestError, match=r"refused|missing"):  # noqa: PT012 - any of them may know already
            lost = s.fork(1)
            lost += "l" + exactly("b", "2")
            lost[0]["b"]
        s.rollback(mark)
        kept.join("concate_and_append")
        s += "+" + exactly("c", "3")
        mark = s.mark()
        bad = s.fork(1)
        bad += gen("x", grammar=REFUSED)
        bad.join("concate_and_append")
        with pytest.raises(RequestError, match=r"refused|missing"):
            s.text()
        s.rollback(mark)
        s += "-" + exactly("d", "4")

    answers = {"Qk": "1", "Q": RequestError("refused"), "Qk1+": "3", "Qk1+3": RequestError("refused"), "Qk1+3-": "4"}
    assert program.run(backend=where(answers.__getitem__)).text() == "Qk1+3-4"


def test_a_branch_that_recovered_is_not_joined_as_it_was_before(where: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Q"
        mark = s.mark()
        [branch] = group = s.fork(1)
        inside = branch.mark()
        branch += "b" + gen("x", grammar=REFUSED)
        group.join("concate_and_append")
        with pytest.raises(RequestError, match=r"refused|missing"):
            s.text()
        with contextlib.suppress(RequestError):
            branch.rollback(inside)
        with pytest.raises(RequestError, match=r"refused|missing"):
            s.text()
        s.rollback(mark)
        s += "+" + exactly("c", "3")

    answers = {"Qb": RequestError("refused"), "Q+": "3"}
    assert program.run(backend=where(answers.__getitem__)).text() == "Q+3"


def test_a_check_that_refuses_every_attempt_is_rolled_back(where: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        mark = s.mark()
        s += gen("x", regex="1", check=lambda value: False, retries=1) + "..."
        with pytest.raises(RequestError, match="attempt"):
            s["x"]
        s.rollback(mark)
        s += "B" + exactly("y", "2")

    assert program.run(backend=where(["1", "1", "2"])).text() == "B2"


def test_a_rollback_over_http_stops_what_is_generated(over_http: HttpRuntime) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "A river."
        mark = s.mark()
        s.sync()
        s += gen("long", max_tokens=4000, ignore_eos=True)
        while get_server_info(over_http)["num_running"] == 0 and "long" not in s.variables():
            time.sleep(0.005)
        s.rollback(mark)
        while get_server_info(over_http)["num_running"]:  # the test's own timeout ends this
            time.sleep(0.005)
        s += exactly("again", "1")

    assert program.run(backend=over_http).text() == "A river.1"


@dataclass(frozen=True)
class Naive:
    """The naive model of a state: what it has appended; `failed` since an operation that failed."""

    text: str = ""
    failed: bool = False

    def plus(self, text: str) -> Naive:
        return self if self.failed else replace(self, text=self.text + text)


def play(s: ProgramState, rng: random.Random, num_steps: int, depth: int = 0) -> Naive:
    """Append at random, and compare with values that are copied. Only marks before a failure are rolled back to."""
    now = Naive()
    before = s.text()
    marks: list[tuple[Any, Naive]] = []
    for step in range(num_steps):
        match rng.choices(["append", "bad", "mark", "rollback", "read", "join"], [6, 2, 3, 3, 1, 2])[0]:
            case "append":
                with contextlib.suppress(*[RequestError] * now.failed):  # once the program knows of the failure
                    s += f"t{step}" + exactly("v", f"<{step}>")
                now = now.plus(f"t{step}<{step}>")
            case "bad":
                with contextlib.suppress(*[RequestError] * now.failed):
                    s += gen("x", grammar=REFUSED)
                now = replace(now, failed=True)
            case "mark" if not now.failed:
                marks.append((s.mark(), now))
            case "rollback" if marks:
                del marks[rng.randrange(len(marks)) + 1 :]
                s.rollback(marks[-1][0])
                now = marks[-1][1]
            case "read" if now.failed:
                with pytest.raises(RequestError):
                    s.text()
            case "read":
                assert s.text() == before + now.text
            case "join" if not now.failed and depth < 2:
                group = s.fork(1)
                inner = play(group[0], rng, 5, depth + 1)
                group.join("concate_and_append")
                now = replace(now.plus(inner.text), failed=inner.failed)
    return now


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["backend", "over_http"])
def test_random_programs_agree_with_values_that_are_copied(
    kind: str, seed: int, request: pytest.FixtureRequest
) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        start = s.mark()
        for number in range(4):
            found = play(s, random.Random(seed * 100 + number), 14)
            if found.failed:
                with pytest.raises(RequestError):
                    s.text()
            else:
                assert s.text() == found.text
            s.rollback(start)
        s += "end"

    assert program.run(backend=request.getfixturevalue(kind)).text() == "end"
