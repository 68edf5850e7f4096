"""Quotes of a text in programs."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

import ramiform
from ramiform import HttpRuntime, OpenAI, ProgramState, RequestError, Scripted, gen, seq, substring

TEXT = "The cat sat on the mat. It was a warm day, and the mat was soft."


def quoted(answer: str, text: str = TEXT, **options: Any) -> str:
    def body(s: ProgramState) -> None:
        s += "Quote: " + substring(text, "quote", **options)

    return str(ramiform.function(body).run(backend=Scripted([answer]))["quote"])


def test_a_quote_is_a_variable_and_may_be_checked() -> None:
    assert quoted("a warm day") == "a warm day"
    with pytest.raises(RequestError, match="no valid quote of the text in 1 attempt"):
        quoted("a warm day", check=lambda quote: "mat" in quote)


def test_what_a_quote_cannot_take_is_refused_by_name() -> None:
    for text in ("", " \n", 3):
        with pytest.raises(RequestError, match="at least one word"):
            substring(text)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="takes no regex") as caught:
        substring(TEXT, regex="a")
    assert caught.value.param == "regex"
    with pytest.raises(RequestError, match="substring of the gen 'x' cannot be honoured inside a constraint"):
        seq("(", substring(TEXT, "x"), ")")


def test_an_endpoint_refuses_quotes_by_name() -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += substring(TEXT, "x")

    backend = OpenAI("m", base_url="http://127.0.0.1:1/v1", api_key="k", is_chat_model=False)
    with pytest.raises(RequestError, match="cannot constrain completions to a substring"):
        program.run(backend=backend)


def test_a_plan_has_the_text_of_an_argument() -> None:
    @ramiform.function
    def program(s: ProgramState, text: str) -> None:
        s += f"Quote {substring(text, 'x')}"

    assert program.plan().num_generations == 1
    assert program.run(TEXT, backend=Scripted(["cat"]))["x"] == "cat"


def test_the_model_that_ships_quotes(backend: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += f"{TEXT}\nQuote: " + substring(TEXT, "x", n=6, temperature=1.5, seed=1, max_tokens=60) + "\n" + gen("y")
        group = s.fork(2)
        group += substring(TEXT, "z", max_tokens=3, on_cut="keep", return_logprob=True)
        group.join()

    state = program.run()
    assert all(f" {quote} ".strip() in TEXT for quote in (*state["x"], *state["z"]))
    assert len(set(state["x"])) > 1
    assert len(state.get_meta_info("z")[0]["output_token_logprobs"]) <= 3


@pytest.mark.slow
def test_a_long_text_is_quoted_by_the_model(backend: Any, url: str) -> None:
    rng = random.Random(1)
    words = [f"{rng.choice('bcdfgh')}{rng.choice('aeiou')}{number}" for number in range(2000)]
    text = " ".join(rng.choice(words) for _ in range(100_000))

    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Quote: " + substring(text, "x", max_tokens=40, on_cut="keep")

    with contextlib.closing(HttpRuntime(url)) as over_http:
        for where in (backend, over_http):
            quote = program.run(seed=1, backend=where)["x"]
            assert quote
            assert quote in text
