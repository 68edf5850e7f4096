"""Lists the ported programs, and has the types, tools and two called programs that they share."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ramiform
from ramiform import (
    ProgramState,
    gen,
)

Ported = tuple[str, str, Callable[..., Any], Any, Any]  # framework, kind, program, answers, what it returns


def into(programs: list[Ported]) -> Callable[..., Any]:
    """Return the decorator `ported(framework, kind, answers, expected)` that adds a program to the list."""

    def ported(framework: str, kind: str, answers: Any, expected: Any) -> Callable[..., Any]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            programs.append((framework, kind, function, answers, expected))
            return function

        return add

    return ported


@dataclass
class City:
    name: str
    people: int


@dataclass
class Person:
    name: str
    age: int


class Mood(enum.Enum):
    GLAD = "glad"
    SAD = "sad"


LYON = '{"name": "Lyon", "people": 5}'


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def call(city: str = "Oslo", name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


@ramiform.function
def find_city(s: ProgramState, text: str) -> City:
    """Find the city."""


@ramiform.function
def shorten(s: ProgramState, text: str) -> str:
    s += f"Shorten: {text}\n" + gen("short", stop="\n")
    return str(s["short"])
