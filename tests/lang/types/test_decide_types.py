"""Questions whose choices are the values of a type: answers hold the values themselves."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen, pick, predicate, rate
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.decisions import Option, Pick


class Team(enum.Enum):
    """Which team answers?"""

    SALES = "sales"
    SUPPORT = "support"


class Level(enum.IntEnum):
    CALM = 1
    CROSS = 2


def decided(answers: list[Any], **questions: Any) -> ProgramState:
    return ramiform.function(lambda s: s.decide(**questions)).run(backend=Scripted(answers))


@pytest.mark.parametrize(
    ("question", "label", "choice"),
    [
        (Team, "support", Team.SUPPORT),
        (Annotated[Team, "Who?"], "sales", Team.SALES),
        (Level, "CROSS", Level.CROSS),
        (Literal["a", "b"], "b", "b"),
        (Literal[1, 20], "20", 20),
        (Literal["on", None], "None", None),
        (bool, "false", False),
        (pick("Which?", Team), "sales", Team.SALES),
        (pick("Which?", [Team.SUPPORT, Team.SALES]), "sales", Team.SALES),
        (pick("Which?", {Team.SALES: "sells", Team.SUPPORT: "helps"}), "support", Team.SUPPORT),
        (pick("Which?", [3, 4.5]), "4.5", 4.5),
        (pick("Which?", ["a", "b"]), "b", "b"),
    ],
    ids=str,
)
def test_the_choice_is_a_value_of_the_type(question: Any, label: str, choice: Any) -> None:
    state = decided([label], it=question)
    answer = state["it"]
    assert answer.choice == choice
    assert type(answer.choice) is type(choice)
    best = max(answer.probabilities, key=lambda one: one.probability)
    assert (best.value, type(best.value)) == (choice, type(choice))
    assert state.get_meta_info("it")["choice"] == choice


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (Team, "Which team answers?"),
        (Annotated[Team, "Who?"], "Who?"),
        (Level, "Which next step?"),
        (Literal["a", "b"], "Which next step?"),
        (bool, "Next step?"),
    ],
    ids=str,
)
def test_the_question_is_in_the_annotation_or_the_docstring_or_the_name(kind: Any, asked: str) -> None:
    plan = ramiform.function(lambda s: s.decide(next_step=kind)).plan()
    [operation] = [step.operation for state in plan.states for step in state.steps if step.kind == "decide"]
    assert isinstance(operation, session.Decide)
    assert isinstance(operation.questions[0], Pick)
    assert operation.questions[0].instructions == asked


def test_a_scale_has_the_members_as_levels() -> None:
    answer = decided(["CROSS"], anger=rate("How angry?", Level))["anger"]
    assert [one.label for one in answer.probabilities] == ["CALM", "CROSS"]
    assert answer.score == pytest.approx(1)


def test_typed_and_other_questions_stand_beside_each_other() -> None:
    state = decided(["yes", "support", "no"], sure=predicate("Sure?"), team=Team, late="Late?")
    assert state["sure"].probability > 0.99
    assert state["team"].choice is Team.SUPPORT
    assert state["late"].probability < 0.01


def test_choices_that_are_written_alike_are_refused() -> None:
    with pytest.raises(RequestError, match="must differ, got '1' twice") as caught:
        decided([], it=Literal[1, "1"])
    assert caught.value.param == "it"
    with pytest.raises(RequestError, match="strings, numbers or members"):
        pick("Which?", [object()])


def test_an_option_of_a_type_is_sent_as_text() -> None:
    question: Any = pick("Which?", Level)
    assert question.question.choices == (Option("CALM"), Option("CROSS"))


@pytest.mark.parametrize("dtype", [Team, Literal["a", "b"], list[int]])
def test_dtype_of_another_type_says_what_to_write(dtype: Any) -> None:
    with pytest.raises(RequestError, match=r"write schema=") as caught:
        ramiform.function(lambda s: s.__iadd__(gen("x", dtype=dtype))).run(backend=Scripted(["a"]))
    assert caught.value.param == "dtype"
