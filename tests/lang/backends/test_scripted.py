"""Programs on a script of answers: what they read, and that everything a runtime plays is played there too."""

from __future__ import annotations

import asyncio
import doctest
import gc
import importlib
import threading
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, RuntimeFailed, Scripted, assistant, gen, pick, select, system, user
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.sampling import SamplingParams


def run(body: Any, answers: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(backend=Scripted(answers), **arguments)


def test_the_examples_in_its_documentation_hold() -> None:
    assert doctest.testmod(importlib.import_module("ramiform.lang.backends.scripted")).failed == 0


def test_answers_come_in_the_programs_order_branches_included() -> None:
    def body(s: ProgramState) -> None:
        s += "A" + gen("a")
        branches = s.fork(3)
        branches += lambda index: f"[{index}" + gen("b") + "]"
        s += "B"
        branches.join("concate_and_append")
        s += gen("c")

    backend = Scripted(["1", "x", "y", "z", "2"])
    state = ramiform.function(body).run(backend=backend)
    assert state.text() == "A1B[0x][1y][2z]2"
    assert backend.prompts == ["A", "A1[0", "A1[1", "A1[2", "A1B[0x][1y][2z]"]


def test_variables_of_branches_are_gathered() -> None:
    def body(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += gen("b")
        branches.join()
        s += "/".join(s["b"])

    assert run(body, ["x", "y"]).text() == "x/y"


def test_a_function_of_the_text_may_answer() -> None:
    def body(s: ProgramState) -> None:
        s += "abc" + gen("n", dtype=int)

    assert run(body, lambda prompt: str(len(prompt)))["n"] == 3


def test_samples_stops_choices_and_questions() -> None:
    def body(s: ProgramState) -> None:
        s += gen("many", n=3) + gen("cut", stop=["\n", "."]) + select("one", ["a", "b"]) + select("two", ["a", "b"])
        s.decide(sure="Sure?", team=pick("Team?", ["red", "blue"]))

    state = run(body, [["x", "y", "z"], "one.two\n", "b", 0, "yes", "blue"])
    assert (state["many"], state["cut"], state["one"], state["two"]) == (["x", "y", "z"], "one", "b", "a")
    assert state["sure"].probability == 1.0
    assert state["team"].choice == "blue"
    assert state.get_meta_info("cut")["finish_reason"] == {"type": "stop", "matched": "."}
    assert state.text() == "xoneba"


class RecordingListener:
    """A listener that keeps its messages."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.done = threading.Event()

    def receive(self, message: Any) -> None:
        self.received.append(message)
        if not isinstance(message, session.Delta):
            self.done.set()

    def fail(self, error: Any) -> None:
        self.received.append(error)
        self.done.set()


def test_a_streamed_answer_comes_in_its_pieces_up_to_the_stop() -> None:
    channel = Scripted([["He", "llo", "wor!ld", "never"]]).connection()
    listener = RecordingListener()
    state = channel.attach(listener)
    channel.send(session.Open(state, 1))
    channel.send(session.Append(state, 0, [session.Gen(sampling=SamplingParams(stop=("!",)), stream=True)]))
    assert listener.done.wait(30)
    *deltas, done = listener.received
    assert [delta.text for delta in deltas] == ["He", "llo", "wor"]
    assert done.text == "Hellowor"
    channel.close()


def test_roles_make_messages() -> None:
    def body(s: ProgramState) -> None:
        s += system("Be brief.") + user("Hi")
        s += assistant(gen("x"))

    backend = Scripted(["Hello"])
    state = ramiform.function(body).run(backend=backend)
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert backend.prompts[0].endswith("<|im_start|>assistant\n")


def test_tools_are_called_with_what_is_answered() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    def body(s: ProgramState) -> None:
        s += "2 + 3?"
        s.tool("sum", [add])
        s += gen("y")

    state = run(body, ['{"name": "add", "arguments": {"a": 2, "b": 3}}', "done"])
    assert (state["sum"], state["y"]) == (5, "done")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "0 answers, and one more"),
        ([["a", "b"], 7], "answered by 7"),
        ([RequestError("no good")], "no good"),
        ([ValueError("odd")], "ValueError: odd"),
    ],
)
def test_errors_are_raised_with_the_programs_line(answers: Any, message: str) -> None:
    def body(s: ProgramState) -> None:
        s += "x" + gen("x")
        s += gen("y")

    with pytest.raises(RequestError, match=f"test_scripted.py:.*{message}"):
        run(body, answers)


def test_branches_of_a_state_that_failed_fail_too() -> None:
    def body(s: ProgramState) -> None:
        branches = s.fork(2)
        branches[0].__iadd__(gen("a"))
        inner = branches[0].fork(2)
        inner += gen("b")
        branches.join("concate_and_append")

    with pytest.raises(RequestError, match="no good"):
        run(body, [RequestError("no good")])


def test_budgets_hold() -> None:
    def body(s: ProgramState) -> None:
        s += gen("x", max_tokens=3) + gen("y", max_tokens=3) + gen("z", max_tokens=3)

    with pytest.raises(RequestError, match="budget of 4 generated tokens") as caught:
        run(body, ["one two three", "four five six", "seven"], max_total_tokens=4)
    assert caught.value.param == "max_total_tokens"  # type: ignore[attr-defined]

    def slow(prompt: str) -> str:
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):  # the program's time: answer when it is over
                thread.join()
        return "late"

    with pytest.raises(RequestError, match=r"did not end within its 0\.05 s"):
        ramiform.function(body).run(backend=Scripted(slow), timeout=0.05)


def test_compiled_async_and_batches_run_too() -> None:
    @ramiform.function
    def ask(s: ProgramState, number: int) -> None:
        s += f"{number}" + gen("x") + gen("y")

    def twice(prompt: str) -> str:
        return prompt[:1]

    backend = Scripted(twice)
    ask.compile(number=1)
    assert [state.text() for state in ask.run_batch([{"number": n} for n in range(9)], backend=backend)] == [
        str(n) * 3 for n in range(9)
    ]

    @ramiform.function
    async def read(s: ProgramState) -> str:
        s += "7" + gen("x")
        return str(await s.get("x"))

    assert asyncio.run(read.arun(backend=backend)).ret_value == "7"


@pytest.mark.exhaustive
def test_states_without_references_are_forgotten() -> None:
    backend = Scripted(lambda prompt: "a")

    def body(s: ProgramState) -> None:
        branches = s.fork(4)
        branches += "b" + gen("x")
        branches.join("concate_and_append")

    for _ in range(3):
        assert ramiform.function(body).run(backend=backend).text() == "ba" * 4
    gc.collect()
    channel = backend.connection()
    channel.close()
    assert channel.interpreter.num_states == channel.interpreter.num_programs == 0
    assert not channel.listeners


def test_a_closed_backend_raises_runtime_failed() -> None:
    backend = Scripted(lambda prompt: "a")

    def body(s: ProgramState) -> None:
        s += gen("x")

    state = ramiform.function(body).run(backend=backend)
    backend.close()
    backend.close()
    assert state["x"] == "a"
    with pytest.raises(RuntimeFailed, match="closed"):
        ramiform.function(body).run(backend=backend)


def test_operations_on_a_state_that_is_gone_are_answered() -> None:
    channel = Scripted([]).connection()
    listener = RecordingListener()
    state = channel.attach(listener)
    channel.send(session.Open(state, 1))
    channel.send(session.Close((), (1,)))
    channel.send(session.Append(state, 0, [session.Sync()]))
    assert listener.done.wait(30)
    [failed] = listener.received
    assert (failed.op, failed.error.code) == (0, "bad_state")
    channel.close()


@pytest.mark.slow
@pytest.mark.parametrize("answer", [" b", RequestError("no")], ids=["played", "failed"])
def test_forks_may_be_as_deep_as_a_program_likes(answer: Any) -> None:
    depth, recorded = 1500, threading.Event()

    def answer_once_all_is_recorded(text: str) -> Any:
        assert recorded.wait(60)
        return answer

    def body(s: ProgramState) -> None:
        s += "a" + gen("first")
        leaf = s
        for _ in range(depth):
            leaf = leaf.fork(1)[0]
            leaf += "."
        leaf += gen("last")
        recorded.set()
        if isinstance(answer, str):
            assert leaf.text() == "a b" + "." * depth + " b"
        else:
            assert str(leaf.error()).endswith("no")
            assert str(s.error()).endswith("no")

    run(body, answer_once_all_is_recorded)
