"""The search for a better prompt of a signature, which declares neither instruction nor demonstrations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, evaluate, optimise


class Parity(pydantic.BaseModel):
    word: str


@ramiform.function
def parity(s: ProgramState, number: int) -> Parity:
    """Say something."""


@ramiform.function
def word(s: ProgramState, number: int) -> str:
    """Say something."""


NUMBERS = [{"number": number, "expected": ("even", "odd")[number % 2]} for number in range(40)]


def right_word(number: int) -> str:
    return ("even", "odd")[number % 2]


def last_number(text: str) -> int:
    return int(re.findall(r"number: (\d+)", text)[-1])


def model(text: str) -> str:
    """A model that knows even numbers, and odd ones once it is instructed well and shown two answers."""
    number = last_number(text)
    informed = "Even or odd?" in text and text.count('{"word": "even"}') >= 2
    return json.dumps({"word": right_word(number) if informed else "even"})


def is_right(example: Mapping[str, Any], state: ProgramState) -> bool:
    assert isinstance(state["parity"], Parity)
    return bool(state["parity"].word == example["expected"])


@pytest.mark.exhaustive
def test_a_signature_gets_the_best_instruction_and_the_answers_of_good_runs(tmp_path: Path) -> None:
    proposed: list[str] = []

    def propose(instruction: str, demonstrations: Sequence[Mapping[str, Any]]) -> list[str]:
        proposed.append(instruction)
        assert all(one["parity"] == {"word": "even"} for one in demonstrations)
        return ["Even or odd?"]

    better = optimise(
        parity, NUMBERS, is_right, instructions=["Say it."], propose=propose, backend=Scripted(model), seed=3
    )
    assert proposed == ["Say something."]
    assert better.prompt.instruction == "Even or odd?"
    shown = better.prompt.demonstrations
    assert len(shown) >= 2
    assert all(one.arguments["number"] % 2 == 0 and list(one.arguments) == ["number"] for one in shown)
    assert better.trials[0].instruction is None
    assert max(trial.score for trial in better.trials) == 1.0
    better.save(tmp_path / "parity.json")
    again = parity.load(tmp_path / "parity.json")
    assert again.prompt == better.prompt
    assert evaluate(again, NUMBERS, is_right, backend=Scripted(model)).score == 1.0
    assert again.run(7, backend=Scripted(model)).ret_value == Parity(word="odd")
    assert parity.prompt.demonstrations == ()


@pytest.mark.exhaustive
def test_answers_of_the_examples_are_shown_where_no_run_was_right() -> None:
    def unknowing(text: str) -> str:
        return " " + right_word(last_number(text)) if re.search(r"\n(odd|even)\b", text) else " no idea"

    train = [one | {"word": one["expected"]} for one in NUMBERS]
    better = optimise(word, train, lambda example, s: s["word"].strip() == example["word"], backend=Scripted(unknowing))
    shown = better.prompt.demonstrations
    assert shown
    assert all(one.answer == right_word(one.arguments["number"]) for one in shown)
    assert better.prompt.instruction == "Say something."
    assert max(trial.score for trial in better.trials) == 1.0


def test_a_signature_with_an_argument_of_its_name_and_what_is_no_program_are_refused() -> None:
    @ramiform.function
    def text(s: ProgramState, text: str) -> str:
        """Say something."""

    with pytest.raises(RequestError, match="text has an argument of its own name"):
        optimise(text, NUMBERS, is_right)
    with pytest.raises(RequestError, match=r"program must be made by @ramiform.function"):
        optimise(len, NUMBERS, is_right)  # type: ignore[arg-type]
