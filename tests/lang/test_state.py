"""A state over the protocol: operations are sent in order without waiting, a read waits for its own operation only."""

from __future__ import annotations

import dataclasses
import gc
import traceback
from typing import Any, Literal

import pytest

import ramiform
from ramiform import ProgramState, RequestError, gen, select
from ramiform.runtime.protocol import session

pytestmark = pytest.mark.usefixtures("endpoint")


def run(body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(**arguments)


def test_text_variables_and_meta_info_make_the_round_trip(frontend: Any) -> None:
    frontend.script = lambda text, operation: 1 if isinstance(operation, session.Select) else " Paris"

    def body(s: ProgramState) -> str:
        s += "Capital:" + gen("city", max_tokens=4, return_logprob=True) + "\nSure? " + select("sure", ["yes", "no"])
        s["note"] = "n"
        assert "city" in s
        assert "nothing" not in s
        return s["city"].strip()

    state = run(body)
    assert state.text() == "Capital: Paris\nSure? no"
    assert (state["city"], state["sure"], state["note"], state.ret_value) == (" Paris", "no", "n", "Paris")
    meta = state.get_meta_info("city")
    assert meta["finish_reason"] == {"type": "stop", "matched": "\n"}
    assert meta["prompt_tokens"] == len("Capital:")
    assert meta["output_token_logprobs"] == [(-0.5, byte, None) for byte in b" Paris"]
    assert state.get_meta_info("sure")["normalized_prompt_logprobs"] == [0.0, -1.0]
    assert state.get_meta_info("note") is None
    with pytest.raises(KeyError, match="no variable 'nope'; there are: 'city', 'sure', 'note'"):
        state["nope"]


def test_one_append_is_one_message_and_nothing_is_sent_twice(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "a" + gen("x") + "b"
        s += "c"
        s += gen("y")

    run(body).text()
    assert [(append.first, len(append.operations)) for append in frontend.messages(session.Append)] == [
        (0, 3),
        (3, 1),
        (4, 1),
    ]
    assert [operation.text for operation in frontend.operations(session.Text)] == ["a", "b", "c"]


def test_recording_does_not_wait_and_reading_waits_for_that_variable_only(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD if text == "1<first>2" else "<first>"
    seen = []

    def body(s: ProgramState) -> None:
        s += "1" + gen("x") + "2" + gen("y") + "3"
        seen.append(s["x"])  # while y is being generated
        frontend.wait_until(lambda: len(frontend.operations(session.Gen)) == 2)
        frontend.play_on(lambda text, operation: "<second>")
        seen.append(s["y"])

    state = run(body)
    assert seen == ["<first>", "<second>"]
    assert state.text() == "1<first>2<second>3"


def test_the_latest_definition_of_a_name_is_read(frontend: Any) -> None:
    answers = iter(["one", "two"])
    frontend.script = lambda text, operation: next(answers)

    def body(s: ProgramState) -> None:
        s += gen("x") + "," + gen("x")

    assert run(body)["x"] == "two"


def test_unnamed_gens_make_no_variable(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += gen() + gen("x") + gen() + select(choices=["a"])

    state = run(body)
    assert state["x"] == "<3>"
    assert state.text() == "<0><3><6>a"


def test_several_samples_are_a_list_and_the_state_goes_on_with_the_first(frontend: Any) -> None:
    frontend.script = lambda text, operation: ["1", "2", "3"]

    def body(s: ProgramState) -> None:
        s += "n:" + gen("x", n=3, dtype=int) + "."

    state = run(body)
    assert state["x"] == [1, 2, 3]
    assert state.text() == "n:1."
    assert len(state.get_meta_info("x")) == 3


def test_typed_results_are_values(frontend: Any) -> None:
    @dataclasses.dataclass
    class Person:
        name: str
        age: int

    answers = iter([" 42", "2.5", "True", '"a b"', '{"name": "Ada", "age": 36}', '"no"'])
    frontend.script = lambda text, operation: next(answers)

    def body(s: ProgramState) -> None:
        s += gen("i", dtype=int, stop="\n") + gen("f", dtype="float") + gen("b", dtype=bool)
        s += ramiform.gen_string("s") + gen("p", schema=Person) + gen("l", schema=Literal["yes", "no"])

    state = run(body)
    assert [state[name] for name in "ifbspl"] == [42, 2.5, True, "a b", Person("Ada", 36), "no"]
    assert state["p"] is state["p"]
    assert state.text() == ' 422.5True"a b"{"name": "Ada", "age": 36}"no"'


def test_run_arguments_reach_the_runtime_and_gen_overrides_them(frontend: Any) -> None:
    def body(s: ProgramState, stop: str) -> None:
        s += gen("x", temperature=0.1) + gen("y", regex="a+", stop=stop)

    run(body, temperature=0.9, max_new_tokens=5, stop="mine")
    x, y = frontend.operations(session.Gen)
    assert (x.sampling.temperature, x.sampling.max_new_tokens, x.sampling.stop) == (0.1, 5, ())
    assert (y.sampling.temperature, y.sampling.max_new_tokens, y.sampling.stop) == (0.9, 5, ("mine",))
    assert y.sampling.constraint is not None


def test_chat_messages_by_method_by_expression_and_by_block() -> None:
    def body(s: ProgramState) -> None:
        s.system("Be brief.")
        s += ramiform.user("Hi")
        with s.assistant():
            s += "Hello, " + gen("rest")
        with s.user():
            s += "Bye"
        s += ramiform.assistant_begin() + "left open"

    state = run(body)
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello, " + state["rest"]},
        {"role": "user", "content": "Bye"},
    ]
    assert state.text().startswith("<|system|>Be brief.<|end|><|user|>Hi<|end|>")


def test_messages_that_do_not_fit_into_each_other_are_refused(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        with pytest.raises(RequestError, match="the user message ends outside any message"):
            s += "x" + ramiform.user_end()
        s += ramiform.user_begin()
        with pytest.raises(RequestError, match="the system message begins inside the user message"):
            s.system("no")
        with pytest.raises(RequestError, match="the assistant message ends inside the user message"):
            s += ramiform.assistant_end()
        s += "fine" + ramiform.user_end()

    assert run(body).text() == "<|user|>fine<|end|>"


def test_a_scope_is_a_variable_of_all_text_inside() -> None:
    def body(s: ProgramState) -> None:
        s += "before "
        with s.var_scope("json"):
            s += '{"name": "' + gen("name") + '"}'
        s += " after"

    state = run(body)
    assert state["json"] == '{"name": "' + state["name"] + '"}'


def test_a_state_takes_strings_and_expressions_only(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        for wrong in (3, None, ["a"]):
            with pytest.raises(RequestError, match="cannot append"):
                s += wrong
        s += ""

    assert run(body).text() == ""
    assert not frontend.messages(session.Append)


@pytest.mark.slow
def test_a_collected_state_is_closed_in_the_runtime(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        forks = s.fork(3)
        forks += "x" + gen("y")
        forks.join()

    state = run(body)
    assert not frontend.messages(session.Close)
    assert state["y"] == ["<1>", "<1>", "<1>"]
    del state
    gc.collect()
    frontend.wait_until(lambda: len(frontend.messages(session.Close)) == 4)
    opened = {message.state for message in frontend.messages(session.Open)}
    opened |= {child for fork in frontend.operations(session.Fork) for child in fork.children}
    assert {number for close in frontend.messages(session.Close) for number in close.states} == opened


def test_a_program_can_call_a_program_on_its_state() -> None:
    @ramiform.function
    def inner(s: ProgramState, what: str) -> None:
        s += what + gen(what)

    @ramiform.function()
    def outer(s: ProgramState) -> None:
        inner(s, "a")
        inner(s, what="b")

    assert outer().text() == "a<1>b<5>"
    assert inner.bind(what="z").run().text() == "z<1>"
    assert inner.run("y")["y"] == "<1>"
    assert inner.__name__ == "inner"


def test_arguments_that_do_not_fit_are_refused_before_anything_starts(frontend: Any) -> None:
    @ramiform.function
    def program(s: ProgramState, a: int) -> None:
        s += str(a)

    with pytest.raises(TypeError, match="missing a required argument: 'a'") as raised:
        program.run()
    assert "inspect.py" not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(TypeError, match="unexpected keyword argument 'b'"):
        program.run(1, b=2)
    with pytest.raises(TypeError):
        program.bind(b=2)
    with pytest.raises(RequestError, match="first argument is its state"):
        ramiform.function(lambda: None)
    assert not frontend.messages(session.Open)
