"""Holds what a program has before it runs: its function, the arguments bound to it, and a signature's prompt."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import types
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self

from ...runtime.protocol.errors import RequestError
from ..expressions.format_marks import refuse_marks
from ..states.state import FunctionBody, ProgramState
from ..tracing.plan import Plan
from . import signatures
from .arguments import RunArguments, SavedProgram, plain_parameters
from .planning import PreparedProgram


class DeclaredProgram:
    """Base of Program: what the decorator `@function` and `bind` have made of a function."""

    def __init__(
        self,
        function: Callable[..., Any],
        scope: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        """`scope` has the names that annotations may refer to besides the module's."""
        if num_api_spec_tokens is not None and (type(num_api_spec_tokens) is not int or num_api_spec_tokens < 1):
            raise RequestError(
                f"num_api_spec_tokens must be a positive int, got {num_api_spec_tokens!r}", param="num_api_spec_tokens"
            )
        self._is_class_method = isinstance(function, classmethod)
        self._is_static = isinstance(function, staticmethod)
        if isinstance(function, classmethod | staticmethod):
            function = function.__func__
        wrapper: Any = self  # which is called as Program
        functools.update_wrapper(wrapper, function)
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise RequestError(f"a program's first argument is its state; {function!r} takes none", param="function")
        self.function = self.func = function  # `func` is SGLang's name
        self.parameters = tuple(parameter.name for parameter in parameters[1:])
        self.is_async = inspect.iscoroutinefunction(function)
        self._takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
        self._bound: dict[str, Any] = {}
        api = {} if num_api_spec_tokens is None else {"num_api_spec_tokens": num_api_spec_tokens}
        self._bound_run = RunArguments(api)
        self.trials: list[Any] = []  # prompts that `optimise` has tried
        self._signature = inspect.signature(function)
        self.__signature__ = self._signature.replace(parameters=parameters[1:])  # of a call, for whoever inspects it
        self._plain = plain_parameters(self._signature)
        self._prepared = PreparedProgram()
        self._scope = scope
        self._prompt: signatures.SignaturePrompt | None = None
        self._checks: dict[str, Any] = {}  # of a signature's answer
        self._is_signature = signatures.is_signature(function)
        if scope is not None:
            with contextlib.suppress(RequestError):
                self._result  # noqa: B018  resolved while the names of the enclosing function are there

    @functools.cached_property
    def _result(self) -> Any:
        """The type that calls return; NOTHING if they return the state."""
        try:
            return signatures.annotated_result(self.function, self._scope)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            if self._is_signature:
                raise RequestError(f"{self.function.__name__}: its result's type is not known: {error}") from None
            return signatures.NOTHING

    @functools.cached_property
    def _body(self) -> Callable[..., Any]:
        """The function that runs: a signature's asks for the answer."""
        return self._body_with(self._checks)

    @functools.cached_property
    def _body_inside(self) -> Callable[..., Any]:
        """The function that continues another program's state: a signature's has the sampling arguments of `bind`."""
        return self._body_with({**self._bound_run.sampling, **self._checks})

    def _body_with(self, options: Mapping[str, Any]) -> Callable[..., Any]:
        if not self.is_signature:
            return self.function
        made = signatures.SignatureProgram(self.function, self._result, self._prompt, options)
        return signatures.body_of(made, self.function)

    @property
    def compiled(self) -> Plan | None:
        """Return the plan that `compile` made."""
        return self._prepared.compiled

    def __repr__(self) -> str:
        return f"<program {self.function.__qualname__}{self.__signature__}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Self:
        """Return the program of an instance, if the function is a method; else the program itself."""
        scope, dot, _ = getattr(self.function, "__qualname__", "").rpartition(".")
        if self._is_class_method and owner is not None:
            instance = owner
        if instance is None or self._is_static or not dot or scope.endswith("<locals>"):
            return self
        made = self._like(types.MethodType(self.function, instance))
        made._prepared = self._prepared
        return made

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of the arguments that a call must give."""
        rest = list(self._signature.parameters.values())[1:]
        named = [one for one in rest if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        return tuple(one.name for one in named if one.default is one.empty and one.name not in self._bound)

    @property
    def is_signature(self) -> bool:
        """Return whether the function is its own prompt: its body is empty, and its result annotated."""
        return self._is_signature and self._result is not signatures.NOTHING

    def argument(self, name: str) -> Any:
        """Return the value of an argument that is bound or has a default, else None."""
        default = self._signature.parameters[name].default
        return self._bound.get(name, None if default is inspect.Parameter.empty else default)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bound arguments and a signature's prompt as JSON. Raises RequestError for other values."""
        SavedProgram(ramiform_program=self.function.__name__, arguments=self._bound, prompt=self._prompt).write(path)

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Return the program with what `save` has written. Raises RequestError for another program's file."""
        saved = SavedProgram.read(path, self.function.__name__)
        made = self._like(self.function)
        made._bound |= saved.arguments
        if saved.prompt is not None:
            made._prompt = self.with_prompt(saved.prompt.instruction, saved.prompt.demonstrations)._prompt
        return made

    def with_prompt(
        self, instruction: str | None = None, demonstrations: Sequence[signatures.Demonstration] | None = None
    ) -> Self:
        """Return the program, which must be a signature, with another instruction or other demonstrations.

        A demonstration has arguments and the answer to them.
        """
        if not self.is_signature:
            raise RequestError(
                f"{self.function.__name__} is no signature: a signature's body is empty, and its result annotated",
                param="instruction",
            )
        prompt = signatures.SignatureProgram(self.function, self._result, self._prompt, {}).prompt
        made = self._like(self.function)
        made._prompt = signatures.SignaturePrompt(
            prompt.instruction if instruction is None else instruction,
            prompt.demonstrations if demonstrations is None else tuple(demonstrations),
        )
        return made

    @property
    def prompt(self) -> signatures.SignaturePrompt:
        """Return the instruction and the demonstrations of a signature. Raises RequestError for other programs."""
        prompt = self.with_prompt()._prompt
        assert prompt is not None
        return prompt

    def _like(self, function: Callable[..., Any]) -> Self:
        """Return a program of the function with this one's arguments and prompt."""
        made = type(self)(function, self._scope)
        made._is_static, made._is_class_method = self._is_static, self._is_class_method
        made._bound, made._bound_run, made._prompt = dict(self._bound), self._bound_run, self._prompt
        made._checks = dict(self._checks)
        return made

    def _converted(self, value: Any) -> Any:
        refuse_marks("return", value, depth=0)
        if self._result is signatures.NOTHING or self._is_signature:  # whose value is read as one of the type
            return value
        return signatures.as_result(value, self._result, self.function)

    async def _converted_async(self, state: ProgramState, value: Coroutine[Any, Any, Any]) -> Any:
        with FunctionBody(state):
            returned = await value
        return self._converted(returned)
