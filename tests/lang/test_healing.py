"""Token healing: a text that ends inside a token goes on as if it had been written at once."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Literal

import pytest

import ramiform
from ramiform import HttpRuntime, OpenAI, ProgramState, RequestError, Scripted, gen
from ramiform.runtime.protocol import session

TEXTS = ["The capital of France is ", "Question: What is the capi", "The sum of two num", "http:", "It is a war"]


@ramiform.function
def healed(s: ProgramState, text: str, **options: Any) -> None:
    s += text + gen("x", heal=True, temperature=0, max_tokens=12, **options)


def naive(text: str, backend: Any) -> str:
    """The greedy text that begins with `text`, from the prompt before its last word, by a pattern."""
    size = re.search(r"\s?\S*\s?$", text)
    assert size is not None
    before, word = text[: size.start()], size[0]

    @ramiform.function
    def program(s: ProgramState) -> None:
        s += before + gen("x", regex=re.escape(word) + r"[\s\S]*", on_cut="keep", temperature=0, max_tokens=20)

    return str(program.run(backend=backend)["x"]).removeprefix(word)


@pytest.mark.parametrize("text", TEXTS)
def test_a_healed_text_goes_on_as_one_that_was_written_at_once(text: str, backend: Any) -> None:
    state = healed.run(text)
    assert state.text() == text + state["x"]
    expected = naive(text, backend)
    assert expected.startswith(state["x"]) or state["x"].startswith(expected), (state["x"], expected)


def test_streams_samples_logprobs_and_stops_are_those_of_the_new_text(backend: Any) -> None:
    text = TEXTS[0]
    whole = healed.run(text)["x"]
    streamed = healed.run(text, stream=True)
    assert "".join(streamed.text_iter("x")) == whole
    assert streamed.text() == text + whole
    state = healed.run(text, n=3, return_logprob=True, return_text_in_logprobs=True)
    assert state["x"] == [whole] * 3
    first = state.get_meta_info("x")[0]["output_token_logprobs"][0]
    assert first[2].startswith(" ")  # the token that took the space in
    stopped = healed.run(text, stop=whole[3:5])
    assert stopped["x"] == whole.partition(whole[3:5])[0]


def test_a_pattern_is_that_of_the_new_text(backend: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Two and two is " + gen("x", regex="[a-z]{4}", heal=True, temperature=0)

    state = program.run()
    assert re.fullmatch("[a-z]{4}", state["x"])
    assert state.text() == "Two and two is " + state["x"]


TALL = {"type": "object", "properties": {"tall": {"type": "boolean"}}, "required": ["tall"]}
KINDS: list[tuple[dict[str, Any], str]] = [  # each with the same texts as a pattern
    ({"schema": int, "number_digits": 3}, "-?(0|[1-9][0-9]{0,2})"),
    ({"schema": Literal["Paris", "Lima"]}, '"(Paris|Lima)"'),
    ({"json_schema": TALL, "json_whitespace": "spaced"}, r'\{"tall": (true|false)\}'),
    ({"json_schema": TALL, "number_digits": 3}, r'\{"tall": ?(true|false)\}'),
    ({"grammar": 'root ::= ("a" | "bc") "!"'}, "(a|bc)!"),
    ({"grammar": 'start: ("a" | "bc") "!"'}, "(a|bc)!"),
    ({"regex": "[a-z]{4}"}, "[a-z]{4}"),
]


@pytest.mark.parametrize(("constraint", "pattern"), KINDS, ids=lambda one: str(one)[:30])
@pytest.mark.parametrize("text", ["The answer is ", "It is a war"])
def test_every_constraint_is_that_of_the_new_text(text: str, constraint: Any, pattern: str, backend: Any) -> None:
    size = re.search(r"\s?\S*\s?$", text)
    assert size is not None

    @ramiform.function
    def at_once(s: ProgramState) -> None:
        s += text[: size.start()] + gen("x", regex=re.escape(size[0]) + pattern, temperature=0)

    @ramiform.function
    def program(s: ProgramState, heal: bool) -> None:
        s += text + gen("x", heal=heal, temperature=0, **constraint) + "!"

    found, whole = program.run(True), at_once.run()["x"].removeprefix(size[0])
    assert found.text() == f"{text}{whole}!"
    plain = program.run(False)["x"]
    assert type(found["x"]) is type(plain)


def test_tools_quotes_and_composed_constraints_are_healed(backend: Any) -> None:
    def add(a: int) -> int:
        return a + 1

    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Call: " + gen("called", tools=[add], heal=True, temperature=0)
        s += "He sat on the " + ramiform.substring("the mat", "quote", heal=True, temperature=0)
        s += " It is " + ramiform.seq(gen("n", dtype=int), " ", gen("w", regex="[a-z]{3}"), heal=True, temperature=0)

    state = program.run()
    assert type(state["called"]) is int
    assert state["quote"] in ("the", "mat", "the mat")
    assert state.text().endswith(f" It is {state['n']} {state['w']}")


def test_programs_go_on_behind_a_healed_text(backend: Any, url: str, tmp_path: Path) -> None:
    @ramiform.function
    def program(s: ProgramState, goes_back: bool = False) -> str:
        s += "The capital of "
        group = s.fork(2)
        group += ["France is ", "Peru is "]
        group += gen("x", heal=True, temperature=0, max_tokens=4)
        group.join("concate_and_append")
        s += "\nIt is a war"
        mark = s.mark()
        s += "m and so" + gen("y", heal=True, temperature=0, max_tokens=3)
        if goes_back:
            s.rollback(mark)
        s += (
            "\nIt is a col"
            + gen("z", heal=True, temperature=0, max_tokens=3)
            + "!"
            + gen("w", max_tokens=3, temperature=0)
        )
        return s.text()

    text = program.run().ret_value
    assert "France is " in text
    assert "The capital of France is " in text
    assert "It is a warm and so" in text
    back = program.run(True).ret_value
    assert "It is a war\nIt is a col" in back
    path = tmp_path / "run.jsonl"
    assert program.run(checkpoint=path).ret_value == text
    assert program.run(checkpoint=path).ret_value == text
    with ramiform.cache(tmp_path / "kept") as cache:
        assert program.run().ret_value == text
        assert program.run().ret_value == text
    assert cache.hits > 0
    with contextlib.closing(HttpRuntime(url)) as over_http:
        assert program.run(backend=over_http).ret_value == text


def test_chat_messages_are_healed_inside_and_not_over_their_ends(backend: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += ramiform.user("Hello.")
        with s.assistant():
            s += gen("x", heal=True, temperature=0, max_tokens=4)
        s += ramiform.user("Go on.")
        with s.assistant():
            s += "The capital of France is " + gen("y", heal=True, temperature=0, max_tokens=4)

    state = program.run()
    plain = ramiform.function(
        lambda s: s.__iadd__(ramiform.user("Hello.") + ramiform.assistant(gen("x", temperature=0, max_tokens=4)))
    )
    assert state["x"] == plain.run()["x"]
    assert state.messages()[-1]["content"] == "The capital of France is " + state["y"]


def test_what_cannot_be_healed_is_refused_by_name() -> None:
    program = ramiform.function(lambda s: s.__iadd__(gen("x", heal=True, stop_regex="a")))
    with pytest.raises(RequestError) as refused:
        program.run(backend=Scripted(["1"]))
    assert refused.value.param == "heal"
    for options in ({"choices": ["a"]}, {"heal": 1}):
        with pytest.raises(RequestError) as caught:
            gen("x", **{"heal": True, **options})
        assert caught.value.param == "heal"
    backend = OpenAI("m", base_url="http://127.0.0.1:1/v1", api_key="k", is_chat_model=False)
    with pytest.raises(RequestError, match="heal needs a runtime of ramiform"):
        healed.run("a", backend=backend)
    assert healed.run("a ", backend=Scripted(["b"]))["x"] == "b"
    assert session.Gen.__struct_fields__[-2:] == ("heal", "routed_experts")  # new fields go last
