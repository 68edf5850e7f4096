"""Exceptions that end programs tell of the program: state, trace, name and line; tracebacks are the user's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from dataclasses import dataclass
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, RuntimeFailed, Scripted, gen

BAD = RequestError("the prompt is too long", param="text")


def line_of(marker: str) -> str:
    """`file:line` of the line of this file that ends with the marker."""
    with open(__file__) as file:
        [number] = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {marker}")]
    return f"{__file__}:{number}"


def helper() -> None:
    raise ZeroDivisionError("mine")  # the helper's line


@ramiform.function
def fails(s: ProgramState, how: str, width: int = 2) -> None:
    s += "Say " + gen("said")
    branches = s.fork(width)
    branches += gen("branch")
    branches.join()
    if how == "own":
        assert s["branch"]
        helper()
    s += gen("late")  # the failing gen's line


def answers(*more: Any) -> Scripted:
    return Scripted(["one", "two", "three", *more])


def caught_from(run: Any) -> Any:
    with pytest.raises((RequestError, ZeroDivisionError)) as caught:
        run()
    return caught.value


RUNS = {
    "run": lambda program, **kw: program.run(**kw),
    "arun": lambda program, **kw: asyncio.run(program.arun(**kw)),
    "run_batch": lambda program, backend, **kw: program.run_batch([kw], backend=backend),
    "arun_batch": lambda program, backend, **kw: asyncio.run(program.arun_batch([kw], backend=backend)),
    "stream": lambda program, **kw: program.run(stream=True, **kw).text(),
}


@pytest.mark.parametrize("way", RUNS)
@pytest.mark.parametrize(("how", "marker"), [("own", "the helper's line"), ("gen", "the failing gen's line")])
def test_the_exception_has_the_state_the_trace_the_program_and_its_line(way: str, how: str, marker: str) -> None:
    error = caught_from(lambda: RUNS[way](fails, how=how, backend=answers(BAD)))
    assert (error.program, error.line) == ("fails", line_of(marker))
    assert error.arguments == {"how": how}
    assert error.state["said"] == "one"
    assert error.state["branch"] == ["two", "three"]
    assert error.trace.variables["branch"] == ["two", "three"]
    told = "".join(traceback.format_exception(error))
    assert error.line in told or f"line {error.line.rpartition(':')[2]}, in helper" in told
    assert "'fails'" in told or how == "gen"
    if how == "gen":
        assert "the prompt is too long" in error.trace.states[0].events[-1].error
        assert str(error.trace).count("failed:") == 1


def test_a_trace_with_times_is_the_recorded_one() -> None:
    error = caught_from(lambda: fails.run("own", backend=answers(), trace=True))
    assert error.trace.title == "fails"
    assert all(event.end is not None for event in error.trace.events)
    untraced = caught_from(lambda: fails.run("own", backend=answers())).trace
    assert untraced.seconds > 0
    assert [event.place for event in untraced.events] == [event.place for event in error.trace.events]


def test_a_branch_that_is_not_held_any_more_leaves_the_trace_whole() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        for _ in range(2):
            s.fork(1)[0].__iadd__(gen("x")).sync()
        helper()

    error = caught_from(lambda: body.run(backend=answers()))
    assert "fork" in str(error.trace)


def test_an_exception_keeps_attributes_and_immutability_of_its_class() -> None:
    @dataclass(frozen=True)
    class Mine(Exception):
        state: str

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "text"
        raise Mine("its own")

    with pytest.raises(Mine) as caught:
        body.run(backend=answers())
    assert caught.value.state == "its own"
    assert caught.value.program == "body"  # type: ignore[attr-defined]


def test_the_inner_program_of_two_is_told_of_and_an_exception_raised_again_tells_of_the_last_run() -> None:
    once = ZeroDivisionError("always the same")

    @ramiform.function
    def inner(s: ProgramState, number: int) -> None:
        s += "inner"
        s.sync()
        raise once

    @ramiform.function
    def outer(s: ProgramState) -> None:
        s += "outer"
        inner.run(7, backend=answers())

    error = caught_from(lambda: outer.run(backend=answers()))
    assert (error.program, error.arguments, "inner") == ("inner", {"number": 7}, "inner")
    error = caught_from(lambda: inner.run(8, backend=answers()))
    assert error.arguments == {"number": 8}
    assert len(error.__notes__) == 1


@pytest.mark.parametrize("way", [way for way in RUNS if way != "stream"])
def test_tracebacks_have_the_user_s_frames_only(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(error: BaseException) -> list[str]:
        return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]

    @ramiform.function
    async def awaits(s: ProgramState, how: str) -> None:
        s += gen("x")
        await s.get("x")
        helper()

    for program in (fails, awaits):
        error = caught_from(lambda program=program: RUNS[way](program, how="own", backend=answers()))
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[-2:] == [program.function.__name__, "helper"]
        assert not [file for file in files(error) if "/lang/" in file and "/tests/" not in file]
    monkeypatch.setenv("RAMIFORM_DEBUG", "1")
    error = caught_from(lambda: RUNS[way](fails, how="own", backend=answers()))
    assert [file for file in files(error) if file.endswith("/lang/running/runner.py")]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: fails.run(),
        lambda: fails(),  # type: ignore[call-arg]
        lambda: fails.run("own", 1, 2),
        lambda: fails.run_batch([{}]),
        lambda: asyncio.run(fails.arun()),
        lambda: asyncio.run(fails.arun_batch([{}])),  # type: ignore[arg-type]
        lambda: fails.bind(hwo="own"),
        lambda: fails.plan(hwo="own"),
        lambda: outer_of(fails).run(backend=answers()),
    ],
)
def test_a_call_with_wrong_arguments_is_shown_by_the_user_s_frames_only(mistake: Any) -> None:
    with pytest.raises(TypeError, match="argument") as caught:
        mistake()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not [file for file in files if file.endswith("/inspect.py") or ("/lang/" in file and "/tests/" not in file)]


def outer_of(program: Any) -> Any:
    """Return a program that calls another one without its argument."""

    @ramiform.function
    def outer(s: ProgramState) -> None:
        program()

    return outer


def test_the_frames_of_a_tool_are_in_the_cause() -> None:
    def divide(a: int) -> int:
        """Divide it."""
        return a // 0

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += gen("x", tools=[divide], tool_errors="raise")

    call = '{"name": "divide", "arguments": {"a": 1}}'
    told = "".join(traceback.format_exception(caught_from(lambda: body.run(backend=Scripted([call])))))
    assert "return a // 0" in told
    assert "/lang/expressions/callbacks.py" not in told


def test_an_error_that_the_program_caught_does_not_come_again() -> None:
    @ramiform.function
    def body(s: ProgramState, read: str) -> str:
        s += gen("x")
        try:
            {"variable": lambda: s["x"], "text": s.text, "sync": s.sync, "append": lambda: append(s)}[read]()
        except RequestError as error:
            return f"caught: {error.param}"
        return "nothing"

    def append(s: ProgramState) -> None:
        s.text()

    for read in ("variable", "text", "sync", "append"):
        assert body.run(read, backend=Scripted([BAD])).ret_value == "caught: text"


def test_an_error_that_nobody_saw_still_comes() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += lambda index: f"{index}" + gen("x")
        with contextlib.suppress(RequestError):
            branches[0]["x"]
        branches.join()

    first = RequestError("the first", param="a")
    second = RequestError("the second", param="b")

    def answer(text: str) -> Any:
        return {"0": first, "1": "fine", "2": second}[text]

    assert caught_from(lambda: body.run(backend=Scripted(answer))).param == "b"

    @ramiform.function
    def typed(s: ProgramState) -> str:
        s += gen("age", dtype=int) + gen("size", dtype=int)
        try:
            return str(s["age"])
        except RequestError:
            return "no age"

    assert typed.run(backend=Scripted(["old", "3"])).ret_value == "no age"
    assert caught_from(lambda: typed.run(backend=Scripted(["old", "tall"]))).param == "size"


def test_an_error_of_an_inherited_failure_is_seen_once_for_all_branches() -> None:
    @ramiform.function
    def body(s: ProgramState) -> str:
        s += gen("x")
        leaf = s.fork(1)[0]
        leaf += gen("y")
        try:
            forked.set()
            return str(leaf["y"])
        except RequestError:
            return "seen in the branch"

    forked = threading.Event()  # until then nothing fails
    backend = Scripted(lambda prompt: BAD if forked.wait(60) else "late")
    assert body.run(backend=backend).ret_value == "seen in the branch"


def test_a_batch_item_that_failed_has_its_arguments_state_and_error() -> None:
    items = [("own",), {"how": "own", "width": 1}]
    script = {"Say ": "one", "Say one": "b"}  # by prompt, since the programs ask in any order
    results = fails.run_batch(items, backend=Scripted(lambda text: script[text]), return_exceptions=True)
    for result, arguments in zip(results, ({"how": "own"}, {"how": "own", "width": 1}), strict=True):
        assert isinstance(result, ramiform.BatchError)
        assert (result.arguments, result.state["said"]) == (arguments, "one")
        assert isinstance(result.error, ZeroDivisionError)
        assert (str(result), result.line) == ("mine", line_of("the helper's line"))
        assert result.__cause__ is result.error


def test_a_dead_backend_is_told_of_with_the_call() -> None:
    backend = answers()
    backend.connection()
    backend.close()
    with pytest.raises(RuntimeFailed) as caught:
        fails.run("gen", backend=backend)
    assert (caught.value.program, caught.value.arguments) == ("fails", {"how": "gen"})


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda: fails.run("own", widht=3), "did you mean 'width'?"),
        (lambda: fails.run("own", temprature=0), "did you mean 'temperature'?"),
        (lambda: fails.run_batch([("own",)], num_thread=3), "did you mean 'num_threads'?"),
        (lambda: fails.run_batch([{"how": "own", "time_out": 3}]), "did you mean 'timeout'?"),
        (lambda: fails.arun_batch([("own",)], return_exception=True), "did you mean 'return_exceptions'?"),
        (lambda: ramiform.genn, "did you mean 'gen'?"),
        (lambda: ramiform.gen("x", max_token=3), "did you mean 'max_tokens'?"),  # type: ignore[call-arg]
        (lambda: ramiform.select("x", choice=["a"]), "did you mean 'choices'?"),  # type: ignore[call-arg]
        (lambda: fails.bind(hwo="own"), "did you mean 'how'?"),
        (lambda: fails.plan(hwo="own"), "did you mean 'how'?"),
        (lambda: ramiform.select("x", ["a"], choices_method="greedy"), "did you mean 'greedy_token_selection'?"),
    ],
)
def test_mistyped_names_are_answered_with_the_right_one(mistake: Any, hint: str) -> None:
    with pytest.raises((TypeError, RequestError, AttributeError), match=hint.replace("?", r"\?")):
        mistake()


def test_mistyped_names_in_a_program_are_answered_with_the_right_one() -> None:
    @ramiform.function
    def body(s: ProgramState, what: str) -> None:
        s += gen("answer")
        if what == "variable":
            s["anwser"]
        elif what == "dtype":
            s += gen("x", dtype="floot")
        else:
            s.fork(1).join("gather_variables")  # type: ignore[arg-type]

    for what, right in (("variable", "answer"), ("dtype", "float"), ("mode", "gather_variable")):
        with pytest.raises((KeyError, RequestError), match=f"did you mean '{right}'"):
            body.run(what, backend=answers())


def test_a_wrong_item_of_a_batch_is_named() -> None:
    with pytest.raises(TypeError, match=r"item 1 of the batch: got an unexpected keyword .* 'widht'; did"):
        fails.run_batch([("own",), {"how": "own", "widht": 3}])
