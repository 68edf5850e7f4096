"""Marks and rollbacks, on scripted answers and on the real runtime."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen, select, user
from ramiform.lang.backends.backend import get_server_info

SHARED = "Ada lives near a river and reads about spiders. " * 8


def run(body: Callable[[ProgramState], Any], answers: Any, **arguments: Any) -> ProgramState:
    state: ProgramState = ramiform.function(body).run(backend=Scripted(answers), **arguments)
    return state


def test_the_text_and_variables_return_to_the_mark() -> None:
    def body(s: ProgramState) -> None:
        s += "Q" + gen("a")
        s["own"] = 1
        mark = s.mark()
        s += "-" + gen("b") + gen("a")
        s["own"] = 2
        assert (s["b"], s["a"]) == ("2", "3")
        s.rollback(mark)
        assert "b" not in s
        assert (s["a"], s["own"]) == ("1", 1)
        with pytest.raises(KeyError, match="no variable 'b'"):
            s["b"]
        s += "+" + gen("c")
        s.rollback(mark)
        s += "*" + gen("d")

    state = run(body, ["1", "2", "3", "4", "5"])
    assert state.text() == "Q1*5"
    assert [segment.text for segment in state.segments()] == ["Q", "1", "*", "5"]
    assert repr(state) == "ProgramState(Q1*5)"


def test_the_model_sees_the_text_without_what_was_removed() -> None:
    backend = Scripted(["1", "2", "3"])

    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Q"
        mark = s.mark()
        for _ in range(3):
            s.rollback(mark)
            s += gen("x")
            s.sync()

    program.run(backend=backend)
    assert backend.prompts == ["Q"] * 3


def test_open_roles_and_messages_return_to_the_mark() -> None:
    def body(s: ProgramState) -> None:
        s += user("hello")
        with s.assistant():
            s += "Well"
            inside = s.mark()
            s += ", no."
            s.rollback(inside)
            s += ", " + gen("x")
        outside = s.mark()
        s += user("more")
        s.rollback(outside)
        s += user("less")

    state = run(body, ["yes"])
    assert state.messages() == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Well, yes"},
        {"role": "user", "content": "less"},
    ]


def test_a_message_that_a_rollback_closed_cannot_be_ended() -> None:
    def body(s: ProgramState) -> None:
        mark = s.mark()
        with s.user():
            s.rollback(mark)

    with pytest.raises(RequestError, match="the user message ends outside any message"):
        run(body, [])


def test_a_failed_operation_since_the_mark_does_not_end_the_program() -> None:
    def body(s: ProgramState) -> None:
        s += "Q"
        mark = s.mark()
        s += gen("x") + "..."
        with pytest.raises(RequestError, match="out of answers"):
            s["x"]
        s.rollback(mark)
        s += gen("y")

    state = run(body, [RequestError("out of answers"), "fine"])
    assert (state.text(), state["y"]) == ("Qfine", "fine")


def test_an_error_that_comes_after_the_rollback_is_not_the_states() -> None:
    def body(s: ProgramState) -> None:
        mark = s.mark()
        s += gen("x")
        s.rollback(mark)
        s += "rest"

    ramiform_program = ramiform.function(body)
    for _ in range(20):
        assert ramiform_program.run(backend=Scripted([RequestError("no")])).text() == "rest"


def test_an_error_before_the_mark_stays() -> None:
    def body(s: ProgramState) -> None:
        s += gen("x")
        mark = s.mark()
        s += "more"
        s.error()
        s.rollback(mark)

    with pytest.raises(RequestError, match=r"test_rollback\.py:\d+: no"):
        run(body, [RequestError("no")])


def test_marks_of_other_states_and_removed_ones_are_refused() -> None:
    def body(s: ProgramState) -> None:
        first, second = s.mark(), s.mark()
        branch = s.fork()[0]
        with pytest.raises(RequestError, match="marks of its own") as other:
            branch.rollback(first)
        assert other.value.param == "mark"
        s.rollback(first)
        with pytest.raises(RequestError, match=r"the mark made at .*test_rollback\.py:\d+ has been removed"):
            s.rollback(second)
        with pytest.raises(RequestError, match="got 3"):
            s.rollback(3)  # type: ignore[arg-type]
        s.rollback(first)

    run(body, [])


def test_branches_keep_the_text_that_their_source_removes() -> None:
    def body(s: ProgramState) -> None:
        s += "Q"
        mark = s.mark()
        s += gen("x")
        branches = s.fork(2)
        s.rollback(mark)
        branches += "+" + gen("y")
        assert [branch.text() for branch in branches] == ["Qx+y", "Qx+z"]
        assert [branch["x"] for branch in branches] == ["x", "x"]
        s += "!"
        branches.join()
        assert (s.text(), s["y"]) == ("Q!", ["y", "z"])
        branch = s.fork()[0]
        own = branch.mark()
        branch += "lost"
        branch.rollback(own)
        branch += "kept"
        s.adopt(branch)

    assert run(body, ["x", "y", "z"]).text() == "Q!kept"


def test_a_scope_has_the_text_that_is_left_in_it() -> None:
    def body(s: ProgramState) -> None:
        with s.var_scope("whole"):
            s += "a"
            mark = s.mark()
            s += "b"
            s.rollback(mark)
            s += "c"

    assert run(body, [])["whole"] == "ac"


def test_a_stream_of_the_whole_text_goes_on_behind_the_rollback() -> None:
    def body(s: ProgramState) -> None:
        s += "a"
        mark = s.mark()
        s += gen("x")
        s.rollback(mark)
        s += "b" + gen("y")

    for _ in range(20):
        pieces = "".join(run(body, lambda prompt: "x" if prompt == "a" else "y", stream=True).text_iter())
        assert pieces in ("aby", "axby")


def test_a_reader_of_a_variable_that_is_removed_ends(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def program(s: ProgramState) -> list[str]:
        s += SHARED
        mark = s.mark()
        ended = None
        while ended is None:  # a reader that stands still may find the whole text
            s += gen("x", max_tokens=4000, ignore_eos=True)
            pieces = s.text_iter("x")
            read = [next(pieces)]
            s.rollback(mark)
            try:
                read += list(pieces)
            except RequestError as error:
                ended = error
        assert re.search(r"test_rollback\.py:\d+: the state was rolled back", str(ended))
        assert ended.code == "rolled_back"
        return read

    state = program.run(stream=True)
    state.sync()
    assert state.text() == SHARED


def test_a_rollback_stops_the_generation_and_its_prefix_stays_cached(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += SHARED
        mark = s.mark()
        s += gen("kept", max_tokens=16, temperature=0, ignore_eos=True)
        assert s["kept"]
        s += gen("long", max_tokens=4000, ignore_eos=True)
        while get_server_info()["num_running"] == 0 and "long" not in s.variables():
            time.sleep(0.005)
        s.rollback(mark)
        while get_server_info()["num_running"]:  # the test's own timeout ends this
            time.sleep(0.005)
        s += gen("again", max_tokens=16, temperature=0, ignore_eos=True)

    ramiform.flush_cache()
    state = program.run()
    again = state.get_meta_info("again")
    assert again["prompt_tokens"] - again["cached_tokens"] <= 16  # a page
    assert state.text() == SHARED + state["again"]


def test_the_text_after_a_rollback_is_that_of_a_program_that_never_wrote_the_rest(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def direct(s: ProgramState, detour: bool) -> None:
        s += user("What is a river?")
        with s.assistant():
            s += "A ri"
            if detour:
                mark = s.mark()
                s += "ng" + gen("x", max_tokens=5) + select("y", ["a", "b"])
                s.sync()
                s.rollback(mark)
            s += "ver" + gen("answer", max_tokens=12, temperature=0)

    with_detour, without = direct.run(True), direct.run(False)
    assert with_detour["answer"] == without["answer"]
    ids = [state.get_meta_info("answer")["prompt_tokens"] for state in (with_detour, without)]
    assert ids[0] == ids[1]
    assert with_detour.text() == without.text()


def test_async_compiled_and_batched_programs_roll_back() -> None:
    @ramiform.function
    async def asynchronous(s: ProgramState) -> None:
        mark = s.mark()
        s += "a" + gen("x")
        assert await s.get("x")
        s.rollback(mark)
        s += "b" + gen("x")

    @ramiform.function
    def recorded(s: ProgramState) -> None:
        mark = s.mark()
        s += "a" + gen("x")
        s.rollback(mark)
        s += "b" + gen("x")

    state = asyncio.run(asynchronous.arun(backend=Scripted(["1", "2"])))
    assert (state.text(), state["x"]) == ("b2", "2")
    plan = recorded.compile()
    assert plan.is_whole
    assert [step.kind for step in plan.steps()] == ["mark", "text", "gen", "rollback", "text", "gen"]
    states = recorded.run_batch([{}] * 3, backend=Scripted(lambda prompt: prompt))
    assert [(state["x"], state.text()) for state in states] == [("b", "bb")] * 3


def test_a_trace_shows_what_was_removed() -> None:
    def body(s: ProgramState) -> None:
        mark = s.mark()
        s += gen("x")
        s["x"]
        s.rollback(mark)

    events = run(body, ["1"], trace=True).trace.events
    assert [(event.kind, event.text) for event in events] == [("mark", ""), ("gen", "1"), ("rollback", "")]
    assert "test_rollback.py" in events[-1].label


@pytest.mark.exhaustive
@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(["text", "gen", "mark", "rollback", "read", "branch", "adopt"]), st.integers(0, 9)),
        max_size=25,
    )
)
def test_random_programs_agree_with_a_naive_model(steps: list[tuple[str, int]]) -> None:
    """The model keeps the text and variables as values; a generation writes the length of the text before it."""

    def body(s: ProgramState) -> None:
        text, variables = "", {}
        marks: list[tuple[Any, str, dict[str, str]]] = []
        branches: list[tuple[ProgramState, str, str]] = []
        for kind, number in steps:
            match kind:
                case "text":
                    s += f"t{number}"
                    text += f"t{number}"
                case "gen":
                    s += gen(f"v{number}")
                    variables[f"v{number}"] = f"<{len(text)}>"
                    text += f"<{len(text)}>"
                case "mark":
                    marks.append((s.mark(), text, dict(variables)))
                case "rollback" if marks:
                    index = number % len(marks)
                    mark, text, variables = marks[index][0], marks[index][1], dict(marks[index][2])
                    del marks[index + 1 :]
                    s.rollback(mark)
                case "read":
                    assert s.text() == text
                case "branch":
                    [branch] = s.fork()
                    branch += "b" + gen("w")
                    branches.append((branch, text, f"<{len(text) + 1}>"))
                case "adopt" if branches:
                    branch, before, value = branches.pop(number % len(branches))
                    assert branch.text() == f"{before}b{value}"
                    s.adopt(branch)
                    text, variables["w"] = f"{text}b{value}", value
        assert s.text() == text
        assert {name: s[name] for name in s._reader.snapshot()} == variables

    run(body, lambda prompt: f"<{len(prompt)}>")
