"""Batches of programs: in order, bounded, and without losing an error."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, gen
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.errors import ErrorInfo

pytestmark = pytest.mark.usefixtures("endpoint")


@ramiform.function
def ask(s: ProgramState, question: str, times: int = 1) -> str:
    s += question * times + gen("x")
    return s["x"]


def fail_on_bad(text: str, operation: Any) -> Any:
    return ErrorInfo(kind="request", message=f"cannot do {text}") if "bad" in text else text.upper()


def test_states_come_in_the_order_of_their_arguments(frontend: Any) -> None:
    frontend.script = fail_on_bad
    batch = [{"question": f"q{index}"} for index in range(40)]
    assert [state["x"] for state in ask.run_batch(batch)] == [f"Q{index}" for index in range(40)]
    assert [state["x"] for state in ask.run_batch(batch, num_threads=1)] == [f"Q{index}" for index in range(40)]
    assert [state["x"] for state in ask.run_batch([("a",), ("b", 2)])] == ["A", "BB"]
    assert ask.run_batch([]) == []


@pytest.mark.parametrize(("num_threads", "at_once"), [("auto", 20), (3, 3)])
def test_all_run_at_once_and_num_threads_bounds_that(frontend: Any, num_threads: Any, at_once: int) -> None:
    frontend.script = lambda text, operation: frontend.HOLD
    results: list[Any] = []

    def run() -> None:
        results.extend(ask.run_batch([{"question": "q"}] * 20, num_threads=num_threads))

    thread = threading.Thread(target=run)
    thread.start()
    frontend.wait_until(lambda: len(frontend.operations(session.Gen)) >= at_once)
    assert len(frontend.messages(session.Open)) == at_once
    frontend.play_on(fail_on_bad)
    thread.join()
    assert len(results) == 20


def test_the_first_error_is_raised_when_all_have_ended(frontend: Any) -> None:
    frontend.script = fail_on_bad
    batch = [{"question": question} for question in ("a", "bad 1", "b", "bad 2", "c")]
    with pytest.raises(RequestError, match="cannot do bad 1"):
        ask.run_batch(batch)
    assert len(frontend.operations(session.Gen)) == 5


def test_errors_can_stand_in_their_place(frontend: Any) -> None:
    frontend.script = fail_on_bad
    batch = [{"question": question} for question in ("a", "bad", "b")]
    for results in (
        ask.run_batch(batch, return_exceptions=True),
        list(ask.run_batch(batch, return_exceptions=True, generator_style=True)),
    ):
        assert [type(result) for result in results] == [ProgramState, ramiform.BatchError, ProgramState]
        failed = results[1]
        assert isinstance(failed, Exception)
        assert isinstance(failed.error, RequestError)
        assert (failed.index, failed.arguments, str(failed)) == (1, {"question": "bad"}, str(failed.error))
        assert repr(failed.state) == "ProgramState(bad)"
        assert (failed.program, failed.line) == ("ask", failed.error.line)


def test_a_generator_gives_states_as_they_end_and_an_error_in_its_place(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD if text == "slow" else fail_on_bad(text, operation)
    batch = [{"question": question} for question in ("fast", "bad", "slow")]
    states = ask.run_batch(batch, generator_style=True)
    assert next(states)["x"] == "FAST"
    frontend.wait_until(lambda: len(frontend.operations(session.Gen)) == 3)
    # The error ends the batch, and with it the program that would go on for ever.
    with pytest.raises(RequestError, match="cannot do bad"):
        next(states)
    with pytest.raises(StopIteration):
        next(states)


def test_an_abandoned_generator_closes_the_running_programs(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD if text == "slow" else "x"
    states = ask.run_batch([{"question": "fast"}, {"question": "slow"}], generator_style=True)
    next(states)
    frontend.wait_until(lambda: len(frontend.operations(session.Gen)) == 2)
    states.close()
    frontend.wait_until(lambda: frontend.messages(session.Close))


def test_sampling_arguments_hold_for_all(frontend: Any) -> None:
    ask.run_batch([{"question": "a"}, {"question": "b"}], temperature=0.25, max_new_tokens=3)
    assert {(gen.sampling.temperature, gen.sampling.max_new_tokens) for gen in frontend.operations(session.Gen)} == {
        (0.25, 3)
    }


def test_progress_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    ask.run_batch([{"question": "a"}] * 3, progress_bar=True)
    assert "programs" in capsys.readouterr().err
    ask.run_batch([{"question": "a"}] * 3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_threads": 0}, RequestError, "num_threads"),
        ({"num_threads": "many"}, RequestError, "num_threads"),
        ({"hurry": True}, RequestError, "run_batch has no parameter 'hurry'"),
    ],
)
def test_a_bad_argument_is_named_before_anything_starts(
    frontend: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask.run_batch([{"question": "a"}], **arguments)
    with pytest.raises(TypeError, match="missing a required argument"):
        ask.run_batch([{"question": "a"}, {}])
    assert not frontend.messages(session.Open)
