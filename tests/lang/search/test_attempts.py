"""Checks of generated values and further attempts, on scripted answers, a chat endpoint's backend and the runtime."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen, user


def run(body: Callable[[ProgramState], Any], backend: Any, **arguments: Any) -> ProgramState:
    state: ProgramState = ramiform.function(body).run(backend=backend, **arguments)
    return state


def even(value: int) -> bool:
    return value % 2 == 0


def test_only_the_valid_text_stays_and_the_meta_info_has_all_attempts() -> None:
    def body(s: ProgramState) -> None:
        s += "Q" + gen("n", dtype=int, check=even, retries=3) + "!" + gen("rest")

    backend = Scripted(["1", "x", "4", "end"])
    state = run(body, backend)
    assert (state["n"], state.text()) == (4, "Q4!end")
    assert backend.prompts == ["Q", "Q", "Q", "Q4!"]
    assert state.get_meta_info("n")["attempts"] == [
        {"text": "1", "error": "even returned False"},
        {"text": "x", "error": "invalid literal for int() with base 10: 'x'"},
        {"text": "4", "error": None},
    ]


def test_without_a_valid_text_the_gen_fails_with_all_attempts() -> None:
    def body(s: ProgramState) -> None:
        s += gen("n", dtype=int, check=even, retries=1)

    with pytest.raises(RequestError) as failed:
        run(body, Scripted(["1", "3", "4"]))
    assert (failed.value.code, failed.value.param) == ("invalid_result", "n")
    assert "test_attempts.py:" in str(failed.value)
    assert "no valid int in 2 attempts: '1': even returned False; '3': even returned False" in str(failed.value)


def test_a_program_can_go_on_after_the_last_attempt() -> None:
    def body(s: ProgramState) -> None:
        mark = s.mark()
        s += gen("n", check=lambda value: False)
        assert s.error() is not None
        s.rollback(mark)
        s += "unknown"

    assert run(body, Scripted(["1"])).text() == "unknown"


@pytest.mark.parametrize("check", [lambda value: None, lambda value: 1, lambda value: "yes", print, len])
def test_a_check_that_returns_none_or_something_true_accepts(check: Any) -> None:
    assert run(lambda s: s.__iadd__(gen("x", check=check)), Scripted(["a"]))["x"] == "a"


@pytest.mark.parametrize(
    ("check", "error"),
    [
        (lambda value: False, "the check returned False"),
        (lambda value: [], "the check returned []"),
        (lambda value: 1 / 0, "division by zero"),
        (lambda value: next(iter(())), "StopIteration"),
        (int, "invalid literal for int() with base 10: 'a'"),
    ],
)
def test_a_check_that_raises_or_returns_something_false_refuses(check: Any, error: str) -> None:
    with pytest.raises(RequestError, match="no valid text in 1 attempt: 'a': ") as failed:
        run(lambda s: s.__iadd__(gen("x", check=check)), Scripted(["a"]))
    assert str(failed.value).endswith(error)


def test_in_a_chat_the_model_is_told_by_a_message_and_continues_what_was_begun() -> None:
    def body(s: ProgramState) -> None:
        s += user("Say a number.")
        with s.assistant():
            s += "It is "
            s += gen("n", dtype=int, check=even, retries=2, on_invalid="tell")

    backend = Scripted(["1", "3", "2"])
    state = run(body, backend)
    begin = "<|im_start|>user\nSay a number.<|im_end|>\n<|im_start|>assistant\nIt is "
    told = "<|im_end|>\n<|im_start|>user\nThat is not valid: even returned False. Try again.<|im_end|>\n"
    again = told + "<|im_start|>assistant\nIt is "
    assert backend.prompts == [begin, begin + "1" + again, begin + "1" + again + "3" + again]
    assert state.messages()[1:] == [{"role": "assistant", "content": "It is 2"}]


def test_a_message_that_was_begun_before_a_fork_is_continued() -> None:
    def body(s: ProgramState) -> None:
        s += user("Say a number.")
        with s.assistant():
            s += "It is "
            branch = s.fork()[0]
            branch += "about " + gen("n", check=lambda value: value == "2", retries=2, on_invalid="tell")
            s.adopt(branch)

    backend = Scripted(["1", "2"])
    assert run(body, backend).messages()[-1]["content"] == "It is about 2"
    assert backend.prompts[-1].endswith("<|im_start|>assistant\nIt is about ")


def test_outside_a_chat_the_model_is_told_by_a_line() -> None:
    backend = Scripted(["1", "2"])
    state = run(lambda s: s.__iadd__("N: " + gen("n", check=lambda v: v == "2", retries=1, on_invalid="tell")), backend)
    assert backend.prompts[1] == "N: 1\n(That is not valid: the check returned False. Try again.)\n"
    assert state.text() == "N: 2"


def test_a_function_says_what_the_model_is_told() -> None:
    backend = Scripted(["1", "2"])

    def complain(text: str, error: str) -> str:
        return f"<{text}|{error}>"

    run(lambda s: s.__iadd__(gen("n", check=lambda v: v == "2", retries=1, on_invalid=complain)), backend)
    assert backend.prompts[1] == "1<1|the check returned False>"


def test_async_programs_check_in_their_loop_with_async_functions() -> None:
    loops = []

    async def check(value: str) -> bool:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return value == "b"

    @ramiform.function
    async def program(s: ProgramState) -> str:
        s += gen("x", check=check, retries=1)
        return str(await s.get("x"))

    async def main() -> ProgramState:
        state = await program.arun(backend=Scripted(["a", "b"]))
        assert loops == [asyncio.get_running_loop()] * 2
        return state

    assert asyncio.run(main()).ret_value == "b"
    assert run(lambda s: s.__iadd__(gen("x", check=check)), Scripted(["b"]))["x"] == "b"


def test_compiled_programs_batches_and_forks_check() -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += lambda index: f"{index}:" + gen("x", check=lambda value: value.endswith("ok"), retries=1)
        branches.join()

    program.compile()
    seen: set[str] = set()

    def answer(prompt: str) -> str:
        known = prompt in seen
        seen.add(prompt)
        return prompt + ("ok" if known else "?")

    [state] = program.run_batch([{}], backend=Scripted(answer))
    assert state["x"] == ["0:ok", "1:ok"]


def test_a_streamed_program_yields_the_valid_text_only() -> None:
    def body(s: ProgramState) -> None:
        s += "Q" + gen("x", check=lambda value: value == "bb", retries=1) + "!"

    state = run(body, Scripted(["aa", "bb"]), stream=True)
    assert list(state.text_iter("x")) == ["bb"]
    assert "".join(state.text_iter()) == "Qbb!"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"check": 3}, "check"),
        ({"check": even, "retries": -1}, "retries"),
        ({"check": even, "retries": True}, "retries"),
        ({"check": even, "retries": 101}, "retries"),
        ({"check": even, "retries": 1, "on_invalid": "stop"}, "on_invalid"),
        ({"check": even, "retries": 1, "on_invalid": "raise"}, "on_invalid"),
        ({"check": even, "on_invalid": "tell"}, "on_invalid"),
        ({"retries": 2}, "retries"),
        ({"retries": 2, "regex": "a+"}, "retries"),
        ({"check": even, "choices": ["a", "b"]}, "check"),
        ({"check": even, "tools": [even]}, "check"),
        ({"check": even, "n": 2}, "n"),
        ({"check": even, "retries": 1, "temperature": 0}, "temperature"),
    ],
)
def test_arguments_that_cannot_hold_are_refused(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        run(lambda s: s.__iadd__(gen("x", **arguments)), Scripted(["a"] * 3))
    assert refused.value.param == param


def test_a_check_that_runs_while_the_program_is_closed_ends_nothing_else() -> None:
    began, may_end = threading.Event(), threading.Event()

    def check(value: str) -> bool:
        began.set()
        return may_end.wait(60)

    @ramiform.function
    def program(s: ProgramState) -> None:
        s += gen("x", check=check, retries=1)

    backend = Scripted(["a", "b"])
    state = program.run(stream=True, backend=backend)
    assert began.wait(60)
    state.close()
    may_end.set()
    with pytest.raises(ramiform.RuntimeFailed, match="closed"):
        state["x"]
    assert program.run(backend=backend)["x"] == "b"


@pytest.mark.parametrize("read", [lambda s: s["x"], lambda s: s.text(), lambda s: list(s.text_iter())])
def test_a_check_that_waits_for_what_it_checks_is_refused(read: Callable[[ProgramState], Any]) -> None:
    def body(s: ProgramState) -> None:
        s += gen("before") + gen("x", check=lambda value: s["before"] == "1" and read(s))

    with pytest.raises(RequestError, match="a check waits for a value"):
        run(body, Scripted(["1", "2"]))


def test_an_async_check_that_waits_for_what_it_checks_is_refused() -> None:
    @ramiform.function
    async def program(s: ProgramState) -> None:
        async def check(value: str) -> bool:
            return bool(await s.get("x"))

        s += gen("x", check=check)
        await s.get("x")

    with pytest.raises(RequestError, match="a check waits for a value"):
        program.run(backend=Scripted(["1"]))


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_the_runtime_generates_other_attempts_from_one_seed_and_the_same_ones_again(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += user("Name a point.")
        with s.assistant():
            s += gen("p", schema=Point, max_tokens=60, seed=3, check=lambda point: False, retries=4)
        s.error()

    errors = []
    for _ in range(2):
        state = program.run()
        errors.append(str(state.error()))
    assert errors[0] == errors[1]
    assert "in 5 attempts" in errors[0]
    assert len(set(errors[0].partition("attempts: ")[2].split("; "))) > 1


@pytest.mark.parametrize("on_invalid", ["again", "tell"])
def test_on_the_runtime_the_state_goes_on_as_if_the_accepted_text_came_first(
    backend: ramiform.Runtime, on_invalid: Any
) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += user("Name two colours.")
        values: list[str] = []
        with s.assistant():
            s += gen(
                "x", max_tokens=8, ignore_eos=True, check=lambda v: values.append(v) or len(values) == 3, retries=2,
                on_invalid=on_invalid,
            )  # fmt: skip
        s += user("And now?")
        with s.assistant():
            s += gen("y", max_tokens=8, temperature=0, ignore_eos=True)

    @ramiform.function
    def direct(s: ProgramState, x: str) -> None:
        s += user("Name two colours.")
        with s.assistant():
            s += x
        s += user("And now?")
        with s.assistant():
            s += gen("y", max_tokens=8, temperature=0, ignore_eos=True)

    state = program.run()
    assert len(state.get_meta_info("x")["attempts"]) == 3
    assert state.messages() == [
        {"role": "user", "content": "Name two colours."},
        {"role": "assistant", "content": state["x"]},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": state["y"]},
    ]
    first, second = state.get_meta_info("x"), state.get_meta_info("y")
    assert second["prompt_tokens"] > first["prompt_tokens"] - (200 if on_invalid == "tell" else 0)
    assert len(state.text()) < len(direct.run(state["x"]).text()) + 80


def test_a_text_that_is_cut_off_is_an_invalid_attempt(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += user("Name a point.")
        with s.assistant():
            s += gen("p", schema=Point, max_tokens=3, retries=1)

    with pytest.raises(RequestError, match=r"no valid Point in 2 attempts: .*cut off at max_tokens") as failed:
        program.run()
    assert failed.value.code == "invalid_result"


def test_a_budget_ends_the_attempts(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "A" + gen("x", max_tokens=16, ignore_eos=True, check=lambda value: False, retries=100)

    with pytest.raises(RequestError) as failed:
        program.run(max_total_tokens=100)
    assert failed.value.param == "max_total_tokens"
