"""Questions about a state, as `s.decide(...)` takes them. Their values are the protocol's; here they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..runtime.protocol.decisions import Level, Option, Pick, Predicate, Question, Rate, check
from ..runtime.protocol.errors import RequestError


def predicate(instructions: str) -> Predicate:
    """Is it so? The answer has a `probability`."""
    return Predicate(instructions=instructions)


def pick(instructions: str, choices: Sequence[str | bool] | Mapping[str, str]) -> Pick:
    """Which is it? The answer has `choice`, `confidence` and `probabilities`. A mapping describes its keys."""
    return Pick(
        instructions=instructions, choices=tuple(Option(value, text) for value, text in _described("choices", choices))
    )


def rate(instructions: str, levels: Sequence[str] | Mapping[str, str]) -> Rate:
    """Where on the scale is it, whose levels count from 0? The answer has `score` (the expected one), `confidence` and
    `probabilities`. A mapping describes its keys."""
    return Rate(
        instructions=instructions, levels=tuple(Level(label, text) for label, text in _described("levels", levels))
    )


def questions_of(given: Mapping[str, Any]) -> tuple[Question, ...]:
    """By name; a string asks whether it is so. Raises RequestError naming the question that cannot be asked."""
    asked = []
    for name, question in given.items():
        question = predicate(question) if isinstance(question, str) else question
        if not isinstance(question, Predicate | Pick | Rate):
            raise RequestError(f"{name} must be a string, predicate, pick or rate, got {question!r}", param=name)
        try:
            check([question])
        except RequestError as error:
            raise RequestError(f"{name}: {error}", param=name) from None
        asked.append(type(question)(**{**_fields(question), "name": name}))
    check(asked)
    return tuple(asked)


def _fields(question: Question) -> dict[str, Any]:
    return {field: getattr(question, field) for field in question.__struct_fields__}


def _described(param: str, given: Sequence[Any] | Mapping[str, str]) -> list[tuple[Any, str | None]]:
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise RequestError(f"{param} must be a sequence or a mapping, got {given!r}", param=param)
    return list(given.items()) if isinstance(given, Mapping) else [(value, None) for value in given]
