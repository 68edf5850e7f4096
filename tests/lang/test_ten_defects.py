"""Ten defects of SGLang's front end: programs that hang, give wrong results or raise there."""

from __future__ import annotations

from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, gen, select
from ramiform.lang.operations.operation_log import OperationLog
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.errors import ErrorInfo
from ramiform.runtime.protocol.sampling import Constraint

pytestmark = pytest.mark.usefixtures("endpoint")


def run(body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(**arguments)


@pytest.fixture
def failing(frontend: Any) -> Any:
    """Every generation after the text "bad" fails."""
    failure = ErrorInfo(kind="request", message="no good")
    frontend.script = lambda text, operation: failure if text.endswith("bad") else f"<{len(text)}>"
    return frontend


def test_1_after_an_error_appends_and_reads_raise_and_nothing_hangs(failing: Any) -> None:
    def body(s: ProgramState, read: str) -> Any:
        s += "bad" + gen("x")
        s += "more" + gen("y")
        return s.text() if read == "text" else s["y"]

    for read in ("text", "variable"):
        with pytest.raises(RequestError, match="no good") as caught:
            run(body, read=read)
        assert str(caught.value).startswith(__file__)
    with pytest.raises(RequestError, match="no good"):
        ramiform.function(body).run_batch([{"read": "text"}] * 3)


def test_2_an_error_at_the_end_is_raised_by_run_and_is_no_key_error(failing: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "bad" + gen("x")

    with pytest.raises(RequestError, match="no good"):
        run(body)
    state = ramiform.function(body).run(stream=True)
    with pytest.raises(RequestError, match="no good"):
        state["x"]


def test_3_branches_are_concatenated() -> None:
    def body(s: ProgramState) -> None:
        s += "a"
        branches = s.fork(2)
        branches += ["b", "c"]
        branches.join("concate_and_append")
        s += gen("x")

    assert run(body).text() == "abc<3>"


def test_4_several_samples_are_a_list(frontend: Any) -> None:
    frontend.script = lambda text, operation: ["one", "two"]
    assert run(lambda s: s.__iadd__(gen("x", n=2)))["x"] == ["one", "two"]


def test_5_typed_values_are_of_their_type_also_beside_a_stop(frontend: Any) -> None:
    answers = iter(["12", "1.5", "true", '"text"'])
    frontend.script = lambda text, operation: next(answers)

    def body(s: ProgramState) -> None:
        for name, dtype in (("a", int), ("b", float), ("c", bool), ("d", str)):
            s += gen(name, dtype=dtype, stop="\n")

    state = run(body)
    assert [state[name] for name in "abcd"] == [12, 1.5, True, "text"]
    assert [type(state[name]) for name in "abcd"] == [int, float, bool, str]


def test_6_unnamed_gens_make_no_variable_and_choices_are_taken_seriously(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += gen() + gen("x") + gen()

    state = run(body)
    assert state["x"] == "<3>"
    with pytest.raises(RequestError, match="choices must be"):
        gen("x", choices=[])
    run(lambda s: s.__iadd__(select("x", ["a", "b"], temperature=0.7)))
    assert frontend.operations(session.Select)[-1].temperature == 0.7


def test_7_constraints_survive_the_arguments_of_run(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += gen("x", regex="a+") + gen("y", json_schema='{"type": "object"}')

    run(body, temperature=0.3, max_new_tokens=7, stop="z")
    first, second = frontend.operations(session.Gen)
    assert first.sampling.constraint == Constraint("regex", "a+")
    assert second.sampling.constraint == Constraint("json_schema", '{"type": "object"}')


def test_8_a_stream_sleeps_until_text_comes_and_raises_errors(frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: list[int] = []
    wait_for_change = OperationLog.wait_for_change

    def counted(log: OperationLog, version: int) -> None:
        versions.append(version)
        wait_for_change(log, version)

    monkeypatch.setattr(OperationLog, "wait_for_change", counted)
    frontend.script = lambda text, operation: ["a", frontend.HOLD]
    state = ramiform.function(lambda s: s.__iadd__(gen("x"))).run(stream=True)
    pieces = state.text_iter("x")
    assert next(pieces) == "a"
    failure = ErrorInfo(kind="request", message="no good")
    frontend.play_on(lambda text, operation: ["a", failure])
    with pytest.raises(RequestError, match="no good"):
        next(pieces)
    assert sorted(set(versions)) == versions  # it has slept at most once for each thing that came


def test_9_importing_the_language_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = ("torch", "fastapi", "pydantic", "transformers", "asyncio", "zmq", "numpy")
    script = f"import ramiform, sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_10_nothing_is_sent_twice(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "first" + gen("x")
        s["copy"] = s["x"]
        s += "second" + gen("y")
        branches = s.fork(2)
        branches += "third" + gen("z")
        branches.join()

    run(body)
    said = [operation.text for operation in frontend.operations(session.Text)]
    assert said == ["first", "second", "third", "third"]
