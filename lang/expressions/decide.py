"""The questions of `s.decide`: `predicate`, `pick` and `rate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from ...runtime.protocol.decisions import Level, Option, Pick, Predicate, Question, Rate, check
from ...runtime.protocol.errors import RequestError
from ..types.questions import TypedPick, choice_text, instructions_of, values_of_type
from .format_marks import refuse_marks
from .symbols import known, texts_of


def predicate(instructions: str) -> Predicate:
    """Return a yes-or-no question. Its answer has a `probability`."""
    return Predicate(instructions=texts_of(instructions))


def pick(instructions: str, choices: Any) -> Pick | TypedPick:
    """Return a question for one of the choices: a sequence, a mapping that describes its keys, or a type.

    The values of an Enum, a Literal or bool are choices. The answer has `choice`, `confidence` and `probabilities`.
    """
    described = _described("choices", choices)
    options = tuple(Option(choice_text(value), text) for value, text in described)
    question = Pick(instructions=texts_of(instructions), choices=options)
    values = [value for value, _ in described]
    if all(type(value) in (str, bool) for value in values):
        return question
    return TypedPick(question, {option.value: value for option, value in zip(options, values, strict=True)})


def rate(instructions: str, levels: Any) -> Rate:
    """Return a question for a level of a scale that counts from 0: a sequence, a mapping that describes its keys, or an
    Enum or Literal.

    Its answer has `score` (the expected level), `confidence` and `probabilities`.
    """
    return Rate(
        instructions=texts_of(instructions),
        levels=tuple(Level(str(choice_text(label)), text) for label, text in _described("levels", levels)),
    )


def questions_of(given: Mapping[str, Any]) -> tuple[tuple[Question, Mapping[str | bool, Any] | None], ...]:
    """Return the named questions of `s.decide`, each with the values that its choices stand for, or None.

    A string is a predicate, a type a pick of its values. Raises RequestError naming an invalid question.
    """
    asked: list[Question] = []
    stand_for: list[Mapping[str | bool, Any] | None] = []
    for name, question in given.items():
        refuse_marks(name, msgspec.to_builtins(question) if isinstance(question, msgspec.Struct) else question)
        question = predicate(question) if isinstance(question, str) else question
        if values_of_type(question) is not None:
            question = pick(instructions_of(question, name), question)
        stand_for.append(question.values if isinstance(question, TypedPick) else None)
        question = question.question if isinstance(question, TypedPick) else question
        if not isinstance(question, Predicate | Pick | Rate):
            raise RequestError(
                f"{name} must be a string, predicate, pick or rate, or an Enum, Literal or bool, got {question!r}",
                param=name,
            )
        try:
            check([question])
        except RequestError as error:
            raise RequestError(f"{name}: {error}", param=name) from None
        asked.append(type(question)(**{**msgspec.structs.asdict(question), "name": name}))
    check(asked)
    return tuple(zip(asked, stand_for, strict=True))


def _described(param: str, given: Any) -> list[tuple[Any, str | None]]:
    if (values := values_of_type(known(given))) is not None:
        given = values
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise RequestError(
            f"{param} must be a sequence, a mapping or an Enum, Literal or bool, got {given!r}", param=param
        )
    for value in given:
        if not isinstance(value, str | bool | int | float | Enum | None):
            raise RequestError(f"{param} must be strings, numbers or members of an Enum, got {value!r}", param=param)
    pairs = given.items() if isinstance(given, Mapping) else [(value, None) for value in given]
    return [(texts_of(value), texts_of(description)) for value, description in pairs]
