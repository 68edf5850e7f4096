"""The decorator `@function`, which makes programs, and its types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from ..states.state import ProgramState
from .program import Program

P = ParamSpec("P")
R = TypeVar("R")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Owner = TypeVar("Owner", contravariant=True)


class ProgramMethod(Protocol[Owner, Arguments, Result]):
    """Type of a program that is defined in a class; its instances have it as a Program."""

    def __get__(self, instance: Owner, owner: type | None = None) -> Program[Arguments, Result]: ...


@overload
def function(func: Callable[Concatenate[ProgramState, P], R]) -> Program[P, R]: ...


@overload
def function(func: Callable[Concatenate[Owner, ProgramState, P], R]) -> ProgramMethod[Owner, P, R]: ...


@overload
def function(
    func: None = None, *, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[Concatenate[ProgramState, P], R]], Program[P, R]]: ...


def function(func: Any = None, *, num_api_spec_tokens: int | None = None) -> Any:
    """Make a Program of a function whose first argument is the state: `@function` or `@function()`.

    In a class it makes a method: `def program(self, s, ...)`. It stands above `@staticmethod` and `@classmethod`.
    `num_api_spec_tokens` is for the backend `OpenAI`, where every call computes its prompt again: one call may
    generate so many tokens, which serve later gens too. Backends that keep a state need no such calls and ignore it.
    """
    frame = sys._getframe(1)
    scope = None if frame.f_locals is frame.f_globals else frame.f_locals
    if func is None:
        return lambda func: Program(func, scope, num_api_spec_tokens)
    return Program(func, scope, num_api_spec_tokens)
