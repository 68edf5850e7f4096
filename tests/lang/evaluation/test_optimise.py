"""The search for a better prompt: exact on a scripted model, and of use on held-out cases of the model that ships."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, evaluate, gen, optimise
from ramiform.examples.demo_model.corpus.draw import Draw
from ramiform.examples.demo_model.corpus.labels import TOPICS

Demonstrations = Sequence[Mapping[str, Any]]


@ramiform.function
def classify(s: ProgramState, text: str, instruction: str = "", demonstrations: Demonstrations = ()) -> None:
    s += instruction
    for one in demonstrations:
        s += f"Text: {one['text']}\nLabel: {one['label']}\n"
    s += f"Text: {text}\nLabel:" + gen("label", max_tokens=4, stop="\n", temperature=0)


def is_right(example: Mapping[str, Any], state: ProgramState) -> bool:
    return bool(state["label"].strip() == example["topic"])


def topics(number: int, seed: int) -> list[dict[str, str]]:
    """Sentences that the training of the model has not shown, each with its topic."""
    draw, names = Draw(seed, held_out=True), list(TOPICS)
    return [
        {"text": draw.pick(TOPICS[topic]).format(n=draw.first_name(), p=draw.city()), "topic": topic}
        for topic in (names[index % len(names)] for index in range(number))
    ]


@pytest.mark.exhaustive
def test_held_out_sentences_are_labelled_better_by_the_model_that_ships(backend: ramiform.Runtime) -> None:
    """Without a prompt the model takes labels for sentiments or urgency as often as for topics."""
    held_out = topics(60, seed=5)
    better = optimise(classify, topics(60, seed=6), is_right, num_candidates=12, seed=1)
    before, after = evaluate(classify, held_out, is_right), evaluate(better, held_out, is_right)
    comparison = after.compare(before)
    assert comparison.difference > 0.15
    assert comparison.low > 0
    assert better.trials[0].demonstrations == []
    assert max(trial.score for trial in better.trials) > better.trials[0].score


def counted(text: str) -> str:
    """A model that is right where the instruction is given and two demonstrations are."""
    return " even" if text.startswith("Even or odd?") and text.count("Label: ") >= 2 else " none"


NUMBERS = [{"text": str(2 * number), "topic": "even", "label": "even"} for number in range(40)]


@pytest.mark.slow
def test_the_best_instruction_and_demonstrations_are_found_and_saved(tmp_path: Path) -> None:
    better = optimise(
        classify, NUMBERS, is_right, instructions=["Say it.", "Even or odd?\n"], backend=Scripted(counted), seed=3
    )
    assert better.argument("instruction") == "Even or odd?\n"
    chosen = better.argument("demonstrations")
    assert len(chosen) >= 2
    assert all(one in NUMBERS for one in chosen)
    judged = [trial for trial in better.trials if trial.num_examples == 20]
    assert max(trial.score for trial in judged) == 1.0
    better.save(tmp_path / "program.json")
    again = classify.load(tmp_path / "program.json")
    assert again.argument("demonstrations") == chosen
    assert evaluate(again, NUMBERS, is_right, backend=Scripted(counted)).score == 1.0
    with pytest.raises(RequestError, match="holds arguments of 'classify', not of 'guess'"):
        guess.load(tmp_path / "program.json")


@pytest.mark.slow
def test_what_a_run_generated_well_becomes_a_demonstration() -> None:
    """Examples without a label: only the outputs of right runs can be shown."""
    examples = [{"text": str(number), "topic": "even" if number % 2 == 0 else "odd"} for number in range(40)]

    def model(text: str) -> str:
        number = int(text.rpartition("Text: ")[2].partition("\n")[0])
        if "Label: " in text:
            return " even" if number % 2 == 0 else " odd"
        return " even"

    better = optimise(classify, examples, is_right, backend=Scripted(model), seed=0)
    shown = better.argument("demonstrations")
    assert shown
    assert all(one["label"] == "even" and int(one["text"]) % 2 == 0 for one in shown)


@pytest.mark.slow
def test_proposed_instructions_are_tried() -> None:
    seen: list[tuple[str, int]] = []

    def propose(instruction: str, demonstrations: Demonstrations) -> list[str]:
        seen.append((instruction, len(demonstrations)))
        return ["Even or odd?\n"]

    better = optimise(classify, NUMBERS, is_right, propose=propose, backend=Scripted(counted))
    assert seen == [("", 4)]
    assert better.argument("instruction") == "Even or odd?\n"


@pytest.mark.slow
def test_nothing_better_leaves_the_program_as_it_is() -> None:
    same = optimise(classify, NUMBERS, lambda example, state: 1.0, backend=Scripted(counted))
    assert same.argument("instruction") == ""
    assert same.argument("demonstrations") == ()


@pytest.mark.exhaustive
def test_the_seed_decides_the_result() -> None:
    def random_metric(example: Mapping[str, Any], state: ProgramState) -> float:
        return random.Random(state.text()).random()

    def found(seed: int) -> Any:
        return optimise(classify, NUMBERS, random_metric, backend=Scripted(counted), seed=seed).argument(
            "demonstrations"
        )

    assert found(1) == found(1)
    assert found(1) != found(2)


@ramiform.function
def guess(s: ProgramState, text: str) -> None:
    s += text + gen("label")


def test_a_program_without_a_prompt_to_search_is_refused() -> None:
    with pytest.raises(RequestError, match="guess declares no parameter 'instruction' or 'demonstrations'"):
        optimise(guess, NUMBERS, is_right)
    with pytest.raises(RequestError, match="at least two examples, got 1"):
        optimise(classify, NUMBERS[:1], is_right)


@pytest.mark.slow
def test_a_metric_that_always_raises_is_an_error_of_the_search() -> None:
    def broken(example: Mapping[str, Any], state: ProgramState) -> bool:
        raise KeyError("label")

    with pytest.raises(RequestError, match="no example could be scored; the first failed with KeyError: 'label'"):
        optimise(classify, NUMBERS, broken, backend=Scripted(lambda text: "even"))
