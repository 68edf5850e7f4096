"""Questions about a text, their answers as probabilities, and the arithmetic from log-probabilities to answers.

Each possible answer of a question has a label. Its mass is the model's log-probability of writing that label and then
ending. Masses are normalised over the question's labels only, so that an answer depends neither on other questions nor
on their order. The shapes are those of the Decisions API.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .errors import RequestError

MAX_QUESTIONS = 400
MAX_LABELS = 1024  # of one question


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice of a `Pick`."""

    value: str | bool
    description: str | None = None


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One level of a `Rate` scale."""

    label: str
    description: str | None = None


class Predicate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="predicate"):
    """A yes/no question."""

    instructions: str
    name: str | None = None


class Pick(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="choice"):
    """A question with a choice of answers."""

    instructions: str
    choices: tuple[Option, ...]
    name: str | None = None


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="score"):
    """A question for a level on a scale. Levels count from 0, in their order."""

    instructions: str
    levels: tuple[Level, ...]
    name: str | None = None


Question = Predicate | Pick | Rate


class PredicateAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="predicate"):
    """The answer to a `Predicate`."""

    name: str | None
    probability: float  # of "yes"


class OptionProbability(msgspec.Struct, frozen=True):
    """The probability of one choice."""

    value: str | bool
    probability: float


class PickAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="choice"):
    """The answer to a `Pick`."""

    name: str | None
    choice: str | bool  # the likeliest
    confidence: float  # its probability
    probabilities: list[OptionProbability]  # in the question's order; they sum to 1


class LevelProbability(msgspec.Struct, frozen=True):
    """The probability of one level."""

    label: str
    value: float
    probability: float


class RateAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """The answer to a `Rate`."""

    name: str | None
    score: float  # the expected value
    confidence: float  # the likeliest level's probability
    probabilities: list[LevelProbability]  # in the question's order; they sum to 1


DecisionAnswer = PredicateAnswer | PickAnswer | RateAnswer


def labels(question: Question) -> list[str]:
    """Return the texts that the model may write as an answer, in the question's order."""
    match question:
        case Predicate():
            return ["yes", "no"]
        case Pick(choices=choices):
            return [option.value if isinstance(option.value, str) else str(option.value).lower() for option in choices]
        case Rate(levels=levels):
            return [level.label for level in levels]


def listing(question: Question) -> str:
    """Return the question as the model reads it.

    Choices are listed in the order of their text, so that the order in which they were given changes nothing; levels
    in their own order.
    """
    described: list[tuple[str, str | None]]
    match question:
        case Predicate():
            return question.instructions
        case Pick(choices=choices):
            given = [option.description for option in choices]
            described = sorted(zip(labels(question), given, strict=True), key=lambda pair: pair[0])
        case Rate(levels=levels):
            described = [(level.label, level.description) for level in levels]
    if any(description for _, description in described):
        lines = [label if not description else f"{label}: {description}" for label, description in described]
        return "\n".join((question.instructions, *(f"- {line}" for line in lines)))
    return f"{question.instructions}\nChoices: {', '.join(label for label, _ in described)}"


def check(questions: Sequence[Question]) -> None:
    """Check questions. Raises RequestError naming the first that is invalid."""
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise RequestError(f"1 to {MAX_QUESTIONS} questions at once, got {len(questions)}", param="questions")
    for index, question in enumerate(questions):
        _check(question, f"questions[{index}]")


def answer(question: Question, masses: Sequence[float]) -> DecisionAnswer:
    """Return the answer to a question. `masses`: for each label, the natural log of its probability."""
    probabilities = normalised(masses)
    best = max(range(len(masses)), key=masses.__getitem__)
    match question:
        case Predicate():
            return PredicateAnswer(name=question.name, probability=probabilities[0])
        case Pick(choices=choices):
            return PickAnswer(
                name=question.name,
                choice=choices[best].value,
                confidence=probabilities[best],
                probabilities=[
                    OptionProbability(option.value, part) for option, part in zip(choices, probabilities, strict=True)
                ],
            )
        case Rate(levels=levels):
            return RateAnswer(
                name=question.name,
                score=math.fsum(value * part for value, part in enumerate(probabilities)),
                confidence=probabilities[best],
                probabilities=[
                    LevelProbability(level.label, float(value), part)
                    for value, (level, part) in enumerate(zip(levels, probabilities, strict=True))
                ],
            )


def normalised(masses: Sequence[float]) -> list[float]:
    """Return exp(masses) divided by their sum."""
    highest = max(masses)
    weights = [math.exp(mass - highest) for mass in masses]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _check(question: Question, where: str) -> None:
    if not question.instructions.strip():
        raise RequestError(f"{where}.instructions must not be empty", param=f"{where}.instructions")
    if isinstance(question, Predicate):
        return
    field = "choices" if isinstance(question, Pick) else "levels"
    texts = labels(question)
    if not 2 <= len(texts) <= MAX_LABELS:
        raise RequestError(f"{where}.{field} must be 2 to {MAX_LABELS}, got {len(texts)}", param=f"{where}.{field}")
    for text in texts:
        if not text.strip():
            raise RequestError(f"{where}.{field} must not be empty, got {text!r}", param=f"{where}.{field}")
        if texts.count(text) > 1:
            raise RequestError(f"{where}.{field} must differ, got {text!r} twice", param=f"{where}.{field}")
