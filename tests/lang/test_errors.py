"""Errors are raised where the value is read, name the program's line, and never hang or pass for success."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

import ramiform
from ramiform import BusyError, ProgramState, RequestError, RuntimeFailed, gen
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.errors import ErrorInfo

pytestmark = pytest.mark.usefixtures("endpoint")

TOO_LONG = ErrorInfo(kind="request", message="the prompt is too long", param="text", code="context_length_exceeded")


def run(body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(**arguments)


def line_of(marker: str) -> str:
    """`file:line` of the line of this file that ends with the marker."""
    with open(__file__) as file:
        [number] = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {marker}")]
    return f"{__file__}:{number}: "


@pytest.fixture
def failing(frontend: Any) -> Any:
    """Gens fail after the text "bad"."""
    frontend.script = lambda text, operation: TOO_LONG if text.endswith("bad") else f"<{len(text)}>"
    return frontend


def test_an_error_without_a_later_append_is_raised_by_run(failing: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "bad"
        s += gen("x")  # fails here

    with pytest.raises(RequestError) as caught:
        run(body)
    assert str(caught.value) == line_of("fails here") + "the prompt is too long"
    assert (caught.value.param, caught.value.code) == ("text", "context_length_exceeded")


def test_everything_read_after_an_error_raises_it(failing: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "good" + gen("before")
        s += "bad" + gen("x") + "later" + gen("y")
        message = "the prompt is too long"
        for read in (
            lambda: s["x"],
            lambda: s["y"],
            lambda: s.get_meta_info("y"),
            s.text,
            s.messages,
            s.sync,
            lambda: list(s.text_iter()),
            lambda: list(s.text_iter("y")),
            lambda: s["never defined"],
            lambda: s.__iadd__("more"),
            lambda: s.__iadd__(gen("z")),
            lambda: s.fork(2),
            lambda: s.fork(2).join("concate_and_append"),
        ):
            with pytest.raises(RequestError, match=message):
                read()
        assert s["before"] == "<4>"
        assert message in str(s.error())

    run(body)


def test_an_error_that_the_program_asks_for_is_the_program_s(failing: Any) -> None:
    def body(s: ProgramState) -> str:
        s += "bad" + gen("x")
        error = s.error()
        assert isinstance(error, RequestError)
        return "dealt with"

    assert run(body).ret_value == "dealt with"

    def fine(s: ProgramState) -> None:
        s += gen("x")
        assert s.error() is None

    run(fine)


def test_a_busy_runtime_keeps_its_class(frontend: Any) -> None:
    frontend.script = lambda text, operation: ErrorInfo(kind="busy", message="4096 requests wait already")

    def body(s: ProgramState) -> None:
        s += gen("x")

    with pytest.raises(BusyError, match="4096 requests wait already"):
        run(body)


def test_a_branch_s_error_comes_through_the_join(failing: Any) -> None:
    def body(s: ProgramState, mode: str) -> None:
        forks = s.fork(3)
        forks += ["fine", "bad", "fine"]
        forks += gen("x")  # branches fail here
        forks.join(mode)

    for mode in ("gather_variable", "concate_and_append"):
        with pytest.raises(RequestError, match="the prompt is too long") as caught:
            run(body, mode=mode)
        if mode == "gather_variable":
            assert str(caught.value).startswith(line_of("branches fail here"))


def test_branches_of_a_fork_that_is_never_played_fail_too(failing: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "bad"
        failing.script = lambda text, operation: failing.HOLD
        s += gen("x")  # the trunk fails here
        fork = s.fork(2)[0]
        leaf = fork.fork(1)[0]
        leaf += gen("y")
        failing.play_on(lambda text, operation: TOO_LONG)
        with pytest.raises(RequestError, match="too long") as caught:
            leaf["y"]
        assert str(caught.value).startswith(line_of("the trunk fails here"))
        s.error()

    run(body)


def test_the_program_s_own_exception_is_raised_as_it_is(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD

    def body(s: ProgramState) -> None:
        s += gen("x")
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(body)
    frontend.wait_until(lambda: frontend.messages(session.Close))


def test_text_that_is_not_of_the_type_is_an_error_with_the_text(frontend: Any) -> None:
    frontend.script = lambda text, operation: "forty"

    def body(s: ProgramState) -> None:
        s += gen("age", dtype=int)  # not an int

    with pytest.raises(RequestError, match="gen 'age': the text 'forty' is not of type int") as caught:
        run(body)
    assert str(caught.value).startswith(line_of("not an int"))
    assert caught.value.param == "age"


@pytest.mark.parametrize("append", [lambda s: s.user("bad"), lambda s: s.__iadd__("bad")])
def test_the_error_has_the_program_s_line_for_every_way_of_appending(failing: Any, append: Any) -> None:
    def body(s: ProgramState) -> None:
        append(s)
        with s.var_scope("scope"), s.assistant():
            s += gen("x")
            s += "later"

    failing.script = lambda text, operation: TOO_LONG
    first = inspect.getsourcelines(body)[1]
    with pytest.raises(RequestError) as caught:
        run(body)
    assert str(caught.value).startswith(f"{__file__}:{first + 3}: ")


@pytest.mark.slow
def test_programs_running_when_the_runtime_dies_all_raise_with_their_line(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD
    raised: list[Exception] = []

    @ramiform.function
    def program(s: ProgramState, index: int) -> str:
        s += f"{index}:"
        forks = s.fork(2)
        forks += gen("leaf")
        forks.join()
        s += gen("x")  # pending when it dies
        return s["x"] if index % 2 else s.text()

    def one(index: int) -> None:
        with pytest.raises(RuntimeFailed) as caught:
            program.run(index)
        raised.append(caught.value)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(50)]
    for thread in threads:
        thread.start()
    frontend.wait_until(lambda: len(frontend.operations(session.Gen)) == 150)
    frontend.die()
    for thread in threads:
        thread.join()
    assert len(raised) == 50
    for error in raised:
        assert str(error).startswith(line_of("pending when it dies"))
        assert "is gone" in str(error)


def test_earlier_answers_can_be_read_after_the_runtime_has_died(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "a" + gen("x")

    state = run(body)
    frontend.die()
    assert (state["x"], state.text()) == ("<1>", "a<1>")

    def append_until_it_is_noticed() -> None:
        nonlocal state
        while True:
            state += "more"

    with pytest.raises(RuntimeFailed, match=r"test_errors\.py:\d+: .* is gone"):
        append_until_it_is_noticed()
