"""Signatures: programs without a body, and values of the type that a program is annotated to return."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import msgspec
import pytest

import ramiform
from ramiform import Demonstration, HttpRuntime, ProgramState, RequestError, Scripted, gen
from ramiform.lang.running.signatures import is_signature, prompt_messages


@dataclass
class City:
    """A city."""

    name: str
    size: Literal["small", "big"]
    people: int


class Pair(TypedDict):
    left: str
    right: str


PARIS = '{"name": "Paris", "size": "big", "people": 2}'


@ramiform.function
def city(s: ProgramState, country: str, year: int = 2020) -> City:
    """Name the capital."""


@ramiform.function
def count(s: ProgramState, text: str) -> int: ...


@ramiform.function
def rename(s: ProgramState, text: str) -> str:
    """Find a better name."""


@ramiform.function
async def city_async(s: ProgramState, country: str) -> City:
    """Name the capital."""


def test_calling_a_signature_gives_a_value_of_its_type() -> None:
    backend = Scripted([PARIS, "42", " Bob \n", PARIS])
    assert city("France", backend=backend) == City("Paris", "big", 2)  # type: ignore[call-overload]
    assert count("words", backend=backend) == 42  # type: ignore[call-overload]
    assert rename("Robert", backend=backend) == "Bob"  # type: ignore[call-overload]
    asked = city_async("France", backend=backend)  # type: ignore[call-overload]
    assert asyncio.run(asked) == City("Paris", "big", 2)


def test_the_prompt_has_the_docstring_the_arguments_and_the_members() -> None:
    backend = Scripted([PARIS])
    state = city.run("France", year=1900, backend=backend)
    assert state.ret_value == state["city"] == City("Paris", "big", 2)
    question, answer = state.messages()
    assert question["role"] == "user"
    for part in ("Name the capital.", "- people (integer", "(one of ", "country: France\nyear: 1900"):
        assert part in question["content"]
    assert answer == {"role": "assistant", "content": PARIS}
    assert state.get_meta_info("city")["finish_reason"] is not None


def test_another_instruction_and_demonstrations_make_another_program() -> None:
    shown = Demonstration({"country": "Peru"}, City("Lima", "big", 1))
    made = city.with_prompt(instruction="Capital?", demonstrations=[shown])
    state = made.run("France", backend=Scripted([PARIS]))
    contents = [message["content"] for message in state.messages()]
    assert contents[0].startswith("Capital?")
    assert contents[0].endswith("country: Peru")
    assert msgspec.json.decode(contents[1], type=City) == shown.answer
    assert contents[2].startswith("country: France")
    assert (made.prompt.instruction, made.prompt.demonstrations) == ("Capital?", (shown,))
    assert city.prompt.instruction == "Name the capital."
    assert made.bind(country="x").prompt == made.prompt
    assert prompt_messages("Do it.", [], {"n": [1, 2]}, "") == [("user", "Do it.\n\nn: [1, 2]")]

    @ramiform.function
    def other(s: ProgramState) -> str:
        return "its own"

    with pytest.raises(RequestError, match="no signature"):
        other.with_prompt(instruction="x")


def test_a_signature_continues_the_state_of_another_program() -> None:
    @ramiform.function
    def outer(s: ProgramState) -> int:
        s += ramiform.system("Be brief.")
        found = city(s, "France")
        return count(s, text=found.name)

    backend = Scripted([PARIS, "5"])
    state = outer.run(backend=backend)
    assert state.ret_value == 5
    assert [message["role"] for message in state.messages()] == ["system", *["user", "assistant"] * 2]

    @ramiform.function
    async def outer_async(s: ProgramState) -> str:
        return (await city_async(s, "France")).name

    assert outer_async.run(backend=Scripted([PARIS])).ret_value == "Paris"


def test_inside_a_message_and_without_a_template_the_prompt_is_plain_text() -> None:
    @ramiform.function
    def outer(s: ProgramState) -> None:
        with s.user():
            s.set_var("got", count(s, "a b"))

    state = outer.run(backend=Scripted(["2"]))
    assert state["got"] == 2
    assert state.messages()[0]["content"].endswith("text: a b\nAnswer:2\n")


@pytest.mark.slow
def test_signatures_run_on_the_model_that_ships(runtime: Any, url: str, backend: Any) -> None:
    for kind, program in ((City, city), (int, count), (str, rename)):
        assert isinstance(program.run("France", temperature=0).ret_value, kind)
    with contextlib.closing(HttpRuntime(url)) as over_http:
        text = count.run("one two", backend=over_http, temperature=0).text()
    assert text == count.run("one two", temperature=0).text()
    assert all(isinstance(one.ret_value, City) for one in city.run_batch([("Peru",), ("Chad",)], temperature=0))


def test_errors_plans_and_traces_name_the_line_of_the_signature() -> None:
    line = f"{__file__}:{city.function.__code__.co_firstlineno}"
    with pytest.raises(RequestError) as caught:
        city.run("France", backend=Scripted(["not JSON"]))
    assert str(caught.value).startswith(line)
    assert (caught.value.line, caught.value.program, caught.value.code) == (line, "city", "invalid_result")
    with pytest.raises(RequestError) as caught:
        asyncio.run(city_async.arun("France", backend=Scripted(["not JSON"])))
    assert str(caught.value).startswith(f"{__file__}:{city_async.function.__code__.co_firstlineno}")
    plan = city.compile()
    assert plan.stops_at == line
    assert city.run("France", backend=Scripted([PARIS]), trace=True).trace.events[0].place == line


def test_what_a_program_returns_is_converted_to_its_annotation() -> None:
    @ramiform.function
    def returns(s: ProgramState, value: Any) -> City | None:
        s += gen("x")
        return value

    def call(value: Any) -> Any:
        return returns(value, backend=Scripted(["x"]))

    made = City("Paris", "big", 2)
    assert [call(value) for value in (PARIS, {"name": "Paris", "size": "big", "people": 2}, made)] == [made] * 3
    assert call(None) is None
    assert returns.run(PARIS, backend=Scripted(["x"])).ret_value == PARIS
    with pytest.raises(RequestError, match="'returns' returned 'Paris', which is not of type") as caught:
        call("Paris")
    assert caught.value.code == "invalid_result"
    with pytest.raises(RequestError, match="not of type"):
        call(17.5)

    @ramiform.function
    def pair(s: ProgramState) -> list[Pair]:
        return [{"left": "a", "right": "b"}]

    assert pair(backend=Scripted([])) == [{"left": "a", "right": "b"}]  # type: ignore[call-overload]


def test_a_program_without_a_result_s_type_returns_its_state() -> None:
    @ramiform.function
    def nothing(s: ProgramState, text: str) -> None:
        s += text

    @ramiform.function
    def unknown(s, text):  # type: ignore[no-untyped-def]
        s += text
        return 3

    for program in (nothing, unknown):
        assert program("a", backend=Scripted([])).text() == "a"


def test_local_types_are_found_and_unknown_ones_named() -> None:
    @dataclass
    class Local:
        name: str

    @ramiform.function
    def found(s: ProgramState) -> Local:
        """Find it."""

    assert found(backend=Scripted(['{"name": "x"}'])) == Local("x")  # type: ignore[call-overload]

    @ramiform.function
    def lost(s: ProgramState) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        """Find it."""

    with pytest.raises(RequestError, match="Nowhere"):
        lost.run(backend=Scripted([]))


def test_only_an_empty_body_is_a_signature() -> None:
    async def empty(s: Any) -> int:
        """Docstring."""

    def refuses(s: Any) -> int:
        """Docstring."""
        raise NotImplementedError

    def raises(s: Any) -> int:
        raise ValueError

    def reads(s: Any) -> int:
        """Docstring."""
        return 1

    def appends(s: Any) -> int:
        s += "x"

    assert [is_signature(one) for one in (empty, refuses, raises, reads, appends)] == [True, True, False, False, False]
    assert not is_signature(lambda s: None)
