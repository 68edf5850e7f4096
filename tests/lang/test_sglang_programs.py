"""Programs of SGLang's examples and tutorial: they run, or the error names the line."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

import ramiform as sgl
from ramiform import ProgramState, RequestError


@sgl.function
def two_turns(s: ProgramState, question_1: str, question_2: str) -> None:
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=8, temperature=0))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=8, temperature=0))


ASKED = {"question_1": "What is the capital of France?", "question_2": "And of Italy?"}


def test_a_variable_is_followed_by_its_name(backend: sgl.Runtime) -> None:
    expected = two_turns.run(**ASKED)["answer_2"]
    assert "".join(two_turns.run(**ASKED, stream=True).text_iter(var_name="answer_2")) == expected

    async def follow() -> str:
        state = two_turns.run(**ASKED, stream=True)
        return "".join([piece async for piece in state.text_async_iter(var_name="answer_2")])

    assert asyncio.run(follow()) == expected


def test_a_state_shows_its_text(backend: sgl.Runtime) -> None:
    state = two_turns.run(**ASKED)
    branch = state.fork(1)[0]
    branch += "More."
    branch.sync()
    assert str(state) == f"ProgramState({state.text()})"
    assert repr(branch) == f"ProgramState({state.text()}More.)"


def test_showing_a_state_neither_waits_nor_raises(backend: sgl.Runtime) -> None:
    @sgl.function
    def fails(s: ProgramState) -> None:
        s += "Once" + sgl.gen("x", regex="(")

    state = fails.run(stream=True)
    with pytest.raises(RequestError, match="invalid regex"):
        state.text()
    assert repr(state) == "ProgramState(Once)"


def test_the_function_of_a_program_is_its_func() -> None:
    assert two_turns.func.__name__ == "two_turns"


@pytest.mark.parametrize(
    "write", [lambda: sgl.image("cat.png"), lambda: sgl.video("cat.mp4", 8)], ids=["image", "video"]
)
def test_images_and_videos_are_refused_where_they_are_written(write: object) -> None:
    assert callable(write)
    with pytest.raises(RequestError, match=r"text only.*'cat"):
        write()


def test_the_error_for_a_type_as_json_schema_names_schema(backend: sgl.Runtime) -> None:
    class Wizard(BaseModel):
        name: str

    @sgl.function
    def describe(s: ProgramState) -> None:
        s += sgl.gen("wizard", json_schema=Wizard)  # type: ignore[arg-type]

    with pytest.raises(RequestError, match="schema=Wizard"):
        describe.run()
