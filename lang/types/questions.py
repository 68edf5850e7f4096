"""Choices of `select`, and of questions of `decide`, that are the values of a type: an Enum, a Literal, bool."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from ...runtime.protocol.decisions import DecisionAnswer, OptionProbability, Pick, PickAnswer
from ...runtime.protocol.errors import RequestError
from .members import metadata_of


@dataclass(frozen=True, slots=True)
class TypedPick:
    """A `Pick` with the values that its choices stand for."""

    question: Pick
    values: Mapping[str | bool, Any]


def values_of_type(kind: Any) -> list[Any] | None:
    """Return the values of an Enum, a Literal or bool in their order, else None."""
    if get_origin(kind) is Annotated:
        return values_of_type(kind.__origin__)
    if kind is bool:
        return [True, False]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)
    return list(get_args(kind)) if get_origin(kind) is Literal else None


def choice_text(value: Any) -> str | bool:
    """Return the choice that stands for a value: a member's string or, without one, its name."""
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name
    return value if isinstance(value, str | bool) else str(value)


def typed_choices(kind: Any, param: str = "choices") -> Mapping[str, Any] | None:
    """Return the values of an Enum, a Literal or bool by the texts that stand for them, None for anything else.

    Raises RequestError if two values have one text.
    """
    if (values := values_of_type(kind)) is None:
        return None
    found = {str(choice_text(value)): value for value in values}
    if len(found) < len(values):
        raise RequestError(f"{param}: two values of {kind} are written alike", param=param)
    return found


def instructions_of(kind: Any, name: str) -> str:
    """Return the question that asks for a value of a type: the text in Annotated, the docstring, or one of `name`."""
    for one in metadata_of(kind):
        text = one if isinstance(one, str) else getattr(one, "description", None)
        if isinstance(text, str):
            return text
    kind = kind.__origin__ if get_origin(kind) is Annotated else kind
    words = name.replace("_", " ")
    if kind is bool:
        return f"{words[:1].upper()}{words[1:]}?"
    own = vars(kind).get("__doc__") if isinstance(kind, type) else None
    # The text that Enum itself gives to classes without a docstring differs between versions of Python.
    if own and own not in (Enum.__doc__, "An enumeration."):
        return inspect.cleandoc(own)
    return f"Which {words}?"


def with_values(answer: DecisionAnswer, values: Mapping[str | bool, Any]) -> DecisionAnswer:
    """Return the answer with values in place of the choices that stand for them."""
    if not isinstance(answer, PickAnswer):
        return answer
    probabilities: Sequence[Any] = [
        OptionProbability(values[option.value], option.probability) for option in answer.probabilities
    ]
    return msgspec.structs.replace(answer, choice=values[answer.choice], probabilities=probabilities)
