"""A decorator of the small values that grammars are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """Make a dataclass that is frozen for type checkers only, and hashed by its fields or, without `eq`, by identity.

    A frozen dataclass sets each field by a call, so that making one takes several times as long. A schema makes
    hundreds before its first mask. A class with a `__hash__` of its own keeps it.
    """

    def made(cls: type[T]) -> type[T]:
        return dataclass(eq=eq, unsafe_hash=eq and "__hash__" not in cls.__dict__)(cls)

    return made
