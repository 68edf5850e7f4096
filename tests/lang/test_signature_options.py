"""Signatures with checks and sampling arguments, and those that are written as text."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen


@dataclass
class Answer:
    words: str
    stars: int


def few_stars(answer: Answer) -> None:
    if answer.stars > 5:
        raise ValueError("at most 5 stars")


@ramiform.function(check=few_stars, retries=1, on_invalid="tell")
def rate(s: ProgramState, text: str) -> Answer:
    """Rate the text."""


BAD, GOOD = '{"words": "a", "stars": 9}', '{"words": "a", "stars": 3}'


def told(answers: list[str]) -> tuple[Scripted, list[str]]:
    """A backend with these answers, and the list of the texts before each."""
    seen: list[str] = []
    rest = iter(answers)

    def answer(text: str) -> str:
        seen.append(text)
        return next(rest)

    return Scripted(answer), seen


def test_a_signature_is_checked_and_told_what_was_wrong() -> None:
    backend, seen = told([BAD, GOOD])
    state = rate.run("x", backend=backend)
    assert state.ret_value == Answer("a", 3)
    assert "at most 5 stars" in seen[1]
    assert "at most 5 stars" not in state.text()
    assert [one["error"] for one in state.get_meta_info("rate")["attempts"]] == ["at most 5 stars", None]
    with pytest.raises(RequestError, match="no valid Answer in 2 attempts") as caught:
        rate("x", backend=Scripted([BAD, "no JSON"]))  # type: ignore[call-overload]
    assert caught.value.code == "invalid_result"
    assert "rate" in str(caught.value)


def test_bind_gives_a_signature_other_checks_also_inside_another_program() -> None:
    strict = rate.bind(check=lambda answer: answer.stars == 1, retries=2, on_invalid=lambda text, error: "one star!")

    @ramiform.function
    def outer(s: ProgramState) -> int:
        return int(strict(s, "x").stars)

    backend, seen = told([GOOD, GOOD, GOOD.replace("3", "1")])
    assert outer.run(backend=backend).ret_value == 1
    assert seen[2].count("one star!") == 2
    assert rate.run("x", backend=Scripted([GOOD])).ret_value.stars == 3


def test_a_check_of_a_text_gets_it_without_the_space_around_it() -> None:
    seen: list[str] = []

    async def check(text: str) -> bool:
        seen.append(text)
        return text.islower()

    @ramiform.function(check=check, retries=1)
    async def name(s: ProgramState, text: str) -> str:
        """Name it."""

    asked = name("x", backend=Scripted([" Bob \n", " bob\n"]))  # type: ignore[call-overload]
    assert asyncio.run(asked) == "bob"
    assert seen == ["Bob", "bob"]


def test_sampling_arguments_of_a_signature_hold_in_its_runs_and_in_other_programs() -> None:
    backend = Scripted([GOOD] * 5)
    cold = rate.bind(temperature=0.25, max_tokens=77)

    @ramiform.function
    def outer(s: ProgramState) -> None:
        s += "a" + gen("own")
        cold(s, "x")

    def sampled(state: ProgramState) -> list[Any]:
        gens = [
            one for log, end in state._handle.segments() for one in log.operations[:end] if hasattr(one, "sampling")
        ]
        return [(one.sampling.temperature, one.sampling.max_new_tokens) for one in gens]

    assert sampled(cold.run("x", backend=backend)) == [(0.25, 77)]
    assert sampled(cold.run("x", backend=backend, temperature=0.5)) == [(0.5, 77)]
    assert sampled(outer.run(backend=backend, temperature=0.75)) == [(0.75, 128), (0.25, 77)]


def test_what_a_signature_cannot_take_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="retries must be an int") as caught:
        rate.bind(retries=-1)
    assert caught.value.param == "retries"
    with pytest.raises(RequestError, match="no signature: give check to a gen"):

        @ramiform.function(check=few_stars)
        def plain(s: ProgramState) -> None:
            s += gen("x")

    @ramiform.function(retries=1)
    def free(s: ProgramState) -> str:
        """Say it."""

    with pytest.raises(RequestError, match="nothing can be invalid"):
        free.run(backend=Scripted(["x"]))
    with pytest.raises(TypeError, match="retrys"):
        ramiform.function(retrys=2)(rate.function)


def test_several_answers_are_a_list() -> None:
    @ramiform.function
    def name(s: ProgramState) -> str:
        """Name it."""

    assert name.run(backend=Scripted([[" a ", "b\n"]]), n=2).ret_value == ["a", "b"]


Kind = Literal["book", "film"]


def test_a_signature_as_text_has_several_outputs() -> None:
    judge = ramiform.signature("text: str, limit: int = 3 -> kind: Kind, stars: int = 1", "Judge the text.")
    kind, stars = judge(text="x", backend=Scripted(['{"kind": "film", "stars": 2}']))
    assert (kind, stars) == ("film", 2)
    state = judge.run("x", limit=4, backend=Scripted(['{"kind": "book"}']))
    assert (state.ret_value.kind, state["kind_stars"].stars) == ("book", 1)
    question = state.messages()[0]["content"]
    assert question.startswith("Judge the text.\n\n")
    assert question.endswith("text: x\nlimit: 4")
    for part in ('- kind (one of "book", "film")', "- stars (integer)"):
        assert part in question
    assert repr(state.ret_value) == "KindStars(kind='book', stars=1)"


def test_a_signature_as_text_with_one_output_returns_its_value() -> None:
    count = ramiform.signature("text -> words: int", name="counted", retries=1)
    assert count("a b", backend=Scripted(["2"])) == 2
    state = count.with_prompt(instruction="Count!").run(text="a b", backend=Scripted(["many", "2"]))
    assert state["counted"] == 2
    assert state.messages()[0]["content"].startswith("Count!")
    upper = ramiform.signature("text -> loud", "Write it in capitals.", check=str.isupper, temperature=0)
    assert upper(text="a", backend=Scripted([" A\n"])) == "A"
    line = test_a_signature_as_text_with_one_output_returns_its_value.__code__.co_firstlineno + 6
    with pytest.raises(RequestError) as caught:
        upper.run("a", backend=Scripted(["a"]))
    assert caught.value.line == f"{__file__}:{line}"
    assert upper.plan().num_generations == 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("question, answer", "write arguments -> outputs"),
        ("question ->", "write arguments -> outputs"),
        ("question -> answer: Unknown", "'answer: Unknown' in the signature"),
        ("question -> answer: print('x')", "is no type"),
        ("a b -> c", "'a b' in the signature"),
        ("a, a -> c", "a comes twice"),
        ("a -> *c", "no \\* and /"),
        ("a): pass\ndef f(b -> c", "in the signature"),
    ],
)
def test_a_text_that_is_no_signature_is_refused_with_the_part(text: str, wrong: str) -> None:
    with pytest.raises(RequestError, match=wrong) as caught:
        ramiform.signature(text)
    assert caught.value.param == "text"


@pytest.mark.slow
def test_a_signature_with_a_check_runs_on_the_model_that_ships(runtime: Any, backend: Any) -> None:
    pick = ramiform.signature(
        "word -> first: Kind, second: Kind", check=lambda made: made.first != made.second, retries=50
    )
    made = pick.run("x", seed=1, temperature=1.5).ret_value
    assert {made.first, made.second} == {"book", "film"}
