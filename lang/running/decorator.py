"""The decorator `@function`, which makes programs, and its types."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from ..expressions import decide, messages, primitives
from ..states.state import ProgramState
from .program import Program
from .signatures import function_of, is_signature

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
    func: None = None, *, num_api_spec_tokens: int | None = None, **options: Any
) -> Callable[[Callable[Concatenate[ProgramState, P], R]], Program[P, R]]: ...


def function(func: Any = None, *, num_api_spec_tokens: int | None = None, **options: Any) -> Any:
    """Make a Program of a function whose first argument is the state: `@function` or `@function()`.

    In a class it makes a method: `def program(self, s, ...)`. It stands above `@staticmethod` and `@classmethod`.
    `options` are given as by `Program.bind`: sampling arguments, budgets and, for a signature, `check`, `retries` and
    `on_invalid`.
    `num_api_spec_tokens` is for the backend `OpenAI`, where every call computes its prompt again: one call may
    generate so many tokens, which serve later gens too. Backends that keep a state need no such calls and ignore it.
    """
    frame = sys._getframe(1)
    scope = None if frame.f_locals is frame.f_globals else frame.f_locals

    def made(func: Any) -> Program[Any, Any]:
        _warn_of_unused(func)
        _warn_of_no_result(func)
        program: Program[Any, Any] = Program(func, scope, num_api_spec_tokens)
        return program.bind(**options) if options else program

    return made if func is None else made(func)


def signature(
    text: str, instruction: str | None = None, *, name: str | None = None, **options: Any
) -> Program[..., Any]:
    """Make the signature that a text describes: `signature("review: str -> summary: str, stars: int", "Judge it.")`.

    Names have the type str unless one stands behind them, which may be any that the caller's names spell. Called, it
    returns the output or, if there are several, a dataclass of them, which can be unpacked. `instruction` begins the
    prompt; `name` is the variable's, by default that of the outputs. `options` are those of `function`. Raises
    RequestError for a text that is none.
    """
    made: Program[..., Any] = Program(function_of(text, instruction, name, sys._getframe(1)))
    return made.bind(**options) if options else made


def _warn_of_no_result(func: Any) -> None:
    """Warn of a function that looks like a signature and says nothing of its answer, so that it asks nothing."""
    func = inspect.unwrap(getattr(func, "__func__", func))
    if getattr(func, "__doc__", None) and is_signature(func) and "return" not in func.__annotations__:
        warnings.warn_explicit(
            f"the program {func.__name__} asks nothing: it has no body, and no type of an answer; write -> str, say",
            RuntimeWarning,
            func.__code__.co_filename,
            func.__code__.co_firstlineno,
        )


def _warn_of_unused(func: Any) -> None:
    """Warn of each statement of the function that makes an expression, such as a gen, and appends it nowhere, and
    gives it no name that is read."""
    func = inspect.unwrap(getattr(func, "__func__", func))
    if not inspect.isfunction(func):
        return
    own = {*func.__code__.co_varnames, *func.__code__.co_cellvars}
    with contextlib.suppress(OSError, SyntaxError):  # no source, or a part of a line
        lines, first = inspect.getsourcelines(func)
        nodes = list(ast.walk(ast.parse(textwrap.dedent("".join(lines)))))
        read = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)}
        for node in nodes:
            match node:
                case ast.Expr(value=value):
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in own and name not in read:
                    pass
                case _:
                    continue
            if any(_makes_expression(part, func) for part in _summands(value)):
                text = ast.unparse(value)
                warnings.warn_explicit(
                    f"{text} is appended to no state: write s += {text}",
                    RuntimeWarning,
                    func.__code__.co_filename,
                    first + node.lineno - 1,
                )


def _summands(node: ast.expr) -> list[ast.expr]:
    return [*_summands(node.left), *_summands(node.right)] if isinstance(node, ast.BinOp) else [node]


def _makes_expression(node: ast.expr, func: Any) -> bool:
    """Return True for a call of a global name, or of a module's, that stands for a function of the language."""
    match node:
        case ast.Call(func=ast.Name(id=first) | ast.Attribute(value=ast.Name(id=first)) as callee):
            called, name = func.__globals__.get(first), first
        case _:
            return False
    if isinstance(callee, ast.Attribute):
        called, name = getattr(called, callee.attr, None), callee.attr
    code = func.__code__
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    modules = (primitives, messages, decide)
    return first not in own and any(called is getattr(module, name, module) for module in modules)
