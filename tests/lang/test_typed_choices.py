"""Choices that are the values of a type, their probabilities, and functions as schemas."""

from __future__ import annotations

import enum
import functools
import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen, one_or_more, select, seq


class Mood(enum.Enum):
    """How somebody feels."""

    GOOD = "good"
    BAD = "bad"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


CHOICES: list[tuple[Any, str, Any]] = [
    (Mood, "bad", Mood.BAD),
    (Size, "LARGE", Size.LARGE),
    (Literal["a", 2, None], "2", 2),
    (Annotated[Mood, "Which?"], "good", Mood.GOOD),
    (bool, "True", True),
]


def value_of(expr: Any, answer: str, **options: Any) -> Any:
    def body(s: ProgramState) -> None:
        s += expr

    return ramiform.function(body).run(backend=Scripted([answer]), **options)["x"]


@pytest.mark.parametrize(("kind", "text", "value"), CHOICES)
def test_the_choices_of_a_select_are_the_values_of_a_type(kind: Any, text: str, value: Any, tmp_path: Path) -> None:
    assert value_of(select("x", kind), text) is value
    assert value_of(gen("x", choices=kind, temperature=1, seed=2), text) is value
    assert value_of(seq("(", select("x", kind), gen("y", regex="[0-9]"), ")"), f"({text}1)") is value
    assert value_of(one_or_more(select("x", kind), ";"), f"{text};{text};") == [value, value]
    path = tmp_path / "run.jsonl"
    assert value_of(select("x", kind), text, checkpoint=path) is value
    assert value_of(select("x", kind), "never asked", checkpoint=path) is value


def test_a_method_of_ones_own_decides_on_the_texts() -> None:
    def last(choices: list[str], **_: Any) -> ramiform.ChoicesDecision:
        return ramiform.ChoicesDecision(choices[-1])

    assert value_of(select("x", Mood, choices_method=last), "good") is Mood.BAD


def test_branches_and_plans_have_the_values() -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        group = s.fork(2)
        group += select("x", Mood)
        group.join()

    assert program.plan().variables == ("x",) or "x" in str(program.plan())
    assert program.run(backend=Scripted(["good", "bad"]))["x"] == [Mood.GOOD, Mood.BAD]


def test_types_without_choices_are_refused() -> None:
    with pytest.raises(RequestError, match="choices must be") as caught:
        select("x", int)
    assert caught.value.param == "choices"
    with pytest.raises(RequestError, match="are written alike"):
        select("x", Literal[1, "1"])


def test_probabilities_are_those_of_the_draw(backend: Any) -> None:
    @ramiform.function
    def program(s: ProgramState, temperature: float) -> None:
        s += "The weather is " + select("x", Mood, temperature=temperature)

    for temperature in (0.0, 0.5):
        state = program.run(temperature, seed=1)
        found = state.probabilities("x")
        scores = state.get_meta_info("x")["scores"]
        weights = [math.exp(score / (temperature or 1)) for score in scores]
        assert list(found) == list(Mood)
        assert list(found.values()) == pytest.approx([one / sum(weights) for one in weights])
    draws = Counter(state["x"] for state in program.run_batch([{"temperature": 0.5, "seed": n} for n in range(60)]))
    for mood, probability in found.items():  # within four deviations of the mean, by fixed seeds
        assert abs(draws[mood] - 60 * probability) <= 4 * math.sqrt(60 * probability * (1 - probability)) + 1e-6


def test_probabilities_are_those_of_a_select() -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += gen("y") + select("x", ["a", "b"])

    state = program.run(backend=Scripted(["1", "a"]))
    assert state.probabilities("x") == pytest.approx({"a": 1 / (1 + 1 / math.e), "b": 1 / (1 + math.e)})
    with pytest.raises(RequestError, match="not the variable of a select"):
        state.probabilities("y")
    with pytest.raises(KeyError):
        state.probabilities("z")

    def first(choices: list[str], **_: Any) -> ramiform.ChoicesDecision:
        return ramiform.ChoicesDecision(choices[0])

    own = ramiform.function(lambda s: s.__iadd__(select("x", ["a", "b"], choices_method=first)))
    with pytest.raises(RequestError, match="without probabilities"):
        own.run(backend=Scripted(["a"])).probabilities("x")


def order(item: str, count: int = 1, *, mood: Mood = Mood.GOOD) -> str:
    """Order something."""
    return f"{count} {item}, {mood.name}"


def test_a_function_as_schema_makes_its_arguments() -> None:
    made = value_of(gen("x", schema=order), '{"item": "tea", "mood": "bad"}')
    assert made == {"item": "tea", "count": 1, "mood": Mood.BAD}
    assert order(**made) == "1 tea, BAD"
    fixed = functools.partial(order, item="tea")
    assert value_of(gen("x", schema=fixed), '{"count": 2}') == {"count": 2, "mood": Mood.GOOD}
    with pytest.raises(RequestError, match="count"):
        value_of(gen("x", schema=order), '{"item": "tea", "count": "many"}')
    again = gen("x", schema=order, retries=1, check=lambda given: given["count"] > 1)
    assert value_of(seq(gen("x", schema=order)), '{"item":"tea"}')["item"] == "tea"
    with pytest.raises(RequestError, match="no valid arguments of order"):
        ramiform.function(lambda s: s.__iadd__(again)).run(backend=Scripted(['{"item": "tea"}'] * 2))
    with pytest.raises(RequestError, match=r"schema: .*type hint") as caught:
        value_of(gen("x", schema=lambda a: a), "{}")
    assert caught.value.param == "schema"
