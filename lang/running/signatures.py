"""Programs that are signatures: what a function is annotated to return, and a prompt made of the function itself.

A function with an empty body (a docstring, `...`) that is annotated `-> T` is such a program. Its prompt is made by
`prompt_messages` from an instruction (the docstring), demonstrations and the arguments; `Program.with_prompt` gives it
another instruction and demonstrations.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
import inspect
import json
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..backends.backend import Channel
from ..expressions.expr import Expr
from ..expressions.primitives import gen
from ..operations.execution import Execution
from ..operations.source_location import definition_line, with_location
from ..operations.state_handle import StateHandle
from ..states.state import ProgramState
from ..types.descriptions import result_text
from ..types.result_types import of_dtype, of_schema

MAX_TOKENS = 512  # of an answer, unless the run says otherwise
_DTYPES = (int, float, bool)
# What a function without a body of its own consists of, in any version of Python.
_EMPTY_BODY = frozenset(
    "RESUME NOP CACHE LOAD_CONST RETURN_CONST RETURN_VALUE RETURN_GENERATOR RAISE_VARARGS POP_TOP CALL_INTRINSIC_1 "
    "RERAISE".split()
)


class _Nothing:
    """The mark of a function whose annotation says nothing about its result."""


NOTHING = _Nothing()


@dataclass(frozen=True)
class Demonstration:
    """An example for the prompt of a signature: arguments by name, and the answer: a value of the type, or its text."""

    arguments: Mapping[str, Any]
    answer: Any


CHECKS = ("check", "retries", "on_invalid")  # arguments of `gen` that a signature's answer takes too


@dataclass(frozen=True)
class SignaturePrompt:
    """The parts of a signature's prompt that `with_prompt` sets."""

    instruction: str
    demonstrations: tuple[Demonstration, ...] = ()


# Signatures that are written as text


_IN_TYPES = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.BinOp, ast.BitOr, ast.Constant, ast.Load)


def function_of(text: str, instruction: str | None, name: str | None, frame: types.FrameType) -> Callable[..., Any]:
    """Return the function without a body that `text` describes, such as "question, n: int = 3 -> answer: str".

    `frame` is the caller's, whose names the types may have. Raises RequestError with what is wrong.
    """
    before, arrow, after = text.partition("->")
    names = {**vars(typing), **frame.f_globals, **frame.f_locals}
    inputs, outputs = (_parameters(part, text, names) for part in (before, after))
    if not arrow or not outputs:
        raise RequestError(f"write arguments -> outputs, as in 'question -> answer: str'; got {text!r}", param="text")
    name = name or "_".join(outputs)
    if not name.isidentifier():
        raise RequestError(f"name must be an identifier, got {name!r}", param="name")

    def template(s: ProgramState, /, *args: Any, **kwargs: Any) -> Any: ...

    line = frame.f_lineno
    code = template.__code__.replace(co_filename=frame.f_code.co_filename, co_firstlineno=line, co_name=name)
    made = types.FunctionType(code, frame.f_globals, name)
    made.__doc__, made.__module__ = instruction, frame.f_globals.get("__name__", "")
    if len(outputs) == 1:
        [kind] = (one.annotation for one in outputs.values())
    else:
        kind = _outputs_class(name, list(outputs.values()), made.__module__)
    made.__annotations__ = {"return": kind}
    state = inspect.Parameter("_state", inspect.Parameter.POSITIONAL_ONLY)
    signature: Any = inspect.Signature([state, *inputs.values()], return_annotation=kind)
    made.__signature__ = signature  # type: ignore[attr-defined]
    return made


def _parameters(part: str, text: str, names: Mapping[str, Any]) -> dict[str, inspect.Parameter]:
    """Return what one side of a signature declares: names with types, else str, and defaults."""
    try:
        [made] = ast.parse(f"def _({part}): ...").body
        assert isinstance(made, ast.FunctionDef)
        given = made.args
        if given.vararg or given.kwarg or given.posonlyargs or given.kwonlyargs:
            raise SyntaxError("no * and /")
        defaults = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults]
        found = {}
        for one, default in zip(given.args, defaults, strict=True):
            kind = str if one.annotation is None else _evaluated(one.annotation, names)
            value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
            either = inspect.Parameter.POSITIONAL_OR_KEYWORD
            if one.arg in found:
                raise SyntaxError(f"{one.arg} comes twice")
            found[one.arg] = inspect.Parameter(one.arg, either, default=value, annotation=kind)
        return found
    except (SyntaxError, ValueError, NameError, AttributeError, TypeError) as error:
        reason = getattr(error, "msg", None) or error
        raise RequestError(f"{part.strip()!r} in the signature {text!r}: {reason}", param="text") from None


def _evaluated(annotation: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the type that an annotation names. Nothing in it is called."""
    for node in ast.walk(annotation):
        if not isinstance(node, _IN_TYPES):
            raise ValueError(f"{ast.unparse(annotation)} is no type; give one that needs a call a name")

    def shim() -> None: ...

    shim.__annotations__ = {"return": ast.unparse(annotation)}
    return typing.get_type_hints(shim, dict(names), include_extras=True)["return"]


def _outputs_class(name: str, outputs: Sequence[inspect.Parameter], module: str) -> type:
    """Return the dataclass of several outputs, whose values can be unpacked."""

    def unpacked(self: Any) -> Iterator[Any]:
        return iter([getattr(self, one.name) for one in outputs])

    nothing = inspect.Parameter.empty
    fields: list[Any] = [(p.name, p.annotation, *([] if p.default is nothing else [p.default])) for p in outputs]
    title = "".join(word.capitalize() for word in name.split("_"))
    try:
        return dataclasses.make_dataclass(title, fields, namespace={"__iter__": unpacked, "__module__": module})
    except (TypeError, ValueError) as error:
        raise RequestError(f"the outputs of the signature {name}: {error}", param="text") from None


# The types of results


def annotated_result(function: Callable[..., Any], scope: Mapping[str, Any] | None = None) -> Any:
    """Return the type that a function is annotated to return; NOTHING for none, None, Any and ProgramState.

    `scope` has the names of the enclosing functions. Raises NameError for a name that does not exist yet.
    """
    annotation = getattr(inspect.unwrap(function), "__annotations__", {}).get("return", NOTHING)
    if isinstance(annotation, str):

        def shim() -> None: ...

        shim.__annotations__ = {"return": annotation}
        names = {**getattr(inspect.unwrap(function), "__globals__", {}), **_closure(function), **(scope or {})}
        annotation = typing.get_type_hints(shim, names, include_extras=True)["return"]
    return NOTHING if annotation in (None, type(None), Any, object, ProgramState) else annotation


def is_signature(function: Callable[..., Any]) -> bool:
    """Return whether a function's body is empty: a docstring, `...`, `pass` or `raise NotImplementedError`."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_name == "<lambda>":
        return False
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL" and step.argval == "NotImplementedError":
            continue
        is_constant = step.opname in ("LOAD_CONST", "RETURN_CONST")
        if step.opname not in _EMPTY_BODY or (is_constant and step.argval is not None):
            return False
    return True


def as_result(value: Any, kind: Any, function: Callable[..., Any]) -> Any:
    """Return what a program's function returned as a value of `kind`: text and JSON values are converted.

    Raises RequestError, code "invalid_result", with the program's line if it is not of the type.
    """
    if type(value) is kind or _fits(value, kind):
        return value
    refusal: Exception | str = "it is neither text nor JSON"
    for text in _json_texts(value):
        try:
            return (of_dtype(kind) if kind in _DTYPES else of_schema(kind)).parse(text)
        except (ValueError, KeyError) as error:
            refusal = error
    named = getattr(kind, "__name__", None) or kind
    message = f"the program {function.__name__!r} returned {value!r}, which is not of type {named}: {refusal}"
    info = ErrorInfo.of(RequestError(message, param="return", code="invalid_result"))
    raise with_location(info, definition_line(function)).to_exception()


def _json_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value, json.dumps(value)]
    if isinstance(value, dict | list | tuple | int | float):
        return [_json(value)]
    return []


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type, as far as the type can tell without a parser."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated or isinstance(kind, typing.NewType):
        return (
            False if origin is Annotated and isinstance(value, str) else _fits(value, getattr(kind, "__origin__", Any))
        )
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if kind is None or kind is type(None):
        return value is None
    if typing.is_typeddict(kind):
        return False
    if origin in (list, set, frozenset):
        return isinstance(value, origin) and all(_fits(part, parts[0]) for part in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if kind is float and type(value) is int:
        return True
    try:
        return isinstance(value, origin or kind)
    except TypeError:  # not a class: its author knows what it holds
        return not isinstance(value, str | dict | list)


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return dict(inspect.getclosurevars(inspect.unwrap(function)).nonlocals)
    except (TypeError, ValueError):
        return {}


# The prompt


def prompt_messages(
    instruction: str, demonstrations: Sequence[Demonstration], arguments: Mapping[str, Any], result: str
) -> list[tuple[Literal["user", "assistant"], str]]:
    """Return the chat messages that ask for an answer: role and content.

    The first message begins with the instruction and `result`, which says what the answer consists of. Each
    demonstration is a message with its arguments and one with its answer; the last message has the arguments.
    """
    messages: list[tuple[Literal["user", "assistant"], str]] = []
    for demonstration in demonstrations:
        messages.append(("user", _arguments_text(demonstration.arguments)))
        answer = demonstration.answer
        is_plain = isinstance(answer, str | bool | int | float)
        messages.append(("assistant", str(answer) if is_plain else _json(answer)))
    messages.append(("user", _arguments_text(arguments)))
    messages[0] = ("user", "\n\n".join(filter(None, (instruction, result, messages[0][1]))))
    return messages


def prompt_text(messages: Sequence[tuple[str, str]]) -> str:
    """Return the messages as plain text, which the answer continues."""
    lines = [f"Answer: {text}\n\n" if role == "assistant" else f"{text}\n" for role, text in messages]
    return "".join(lines) + "Answer:"


def _arguments_text(arguments: Mapping[str, Any]) -> str:
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else _json(value)}" for name, value in arguments.items()
    )


def _json(value: Any) -> str:
    def builtins_of(other: Any) -> Any:
        return other.model_dump(mode="json") if hasattr(other, "model_dump") else str(other)

    return json.dumps(msgspec.to_builtins(value, enc_hook=builtins_of, str_keys=True), ensure_ascii=False)


# The program


class SignatureProgram:
    """The body of a program that is a signature: asks for the answer on a state, and reads it.

    `options` are arguments of the answer's `gen`: its checks, and sampling arguments.
    """

    def __init__(
        self, function: Callable[..., Any], kind: Any, prompt: SignaturePrompt | None, options: Mapping[str, Any]
    ) -> None:
        self.kind, self._options = kind, dict(options)
        if kind is str and self._options.get("check") is not None:
            self._options["check"] = _of_stripped(self._options["check"])
        self.name = function.__name__
        self.prompt = prompt or SignaturePrompt(inspect.cleandoc(function.__doc__ or self.name.replace("_", " ")))
        self._signature = inspect.signature(function)
        self._result = result_text(kind)

    def ask(self, state: ProgramState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Append the prompt and the answer; return its value."""
        self._append(state, args, kwargs, _takes_roles(state))
        return self._value(state[self.name])

    async def ask_async(self, state: ProgramState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Append the prompt and the answer; return its value, without blocking the event loop."""
        import asyncio

        self._append(state, args, kwargs, await asyncio.to_thread(_takes_roles, state))
        return self._value(await state.get(self.name))

    def _append(self, state: ProgramState, args: tuple[Any, ...], kwargs: dict[str, Any], roles: bool) -> None:
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        messages = prompt_messages(
            self.prompt.instruction, self.prompt.demonstrations, dict(list(bound.arguments.items())[1:]), self._result
        )
        if not roles:
            state += prompt_text(messages)
            state += self._answer(state, stop="\n")
            state += "\n"
            return
        for role, content in messages:
            state.user(content) if role == "user" else state.assistant(content)
        with state.assistant():
            state += self._answer(state, stop=None)

    def _answer(self, state: ProgramState, stop: str | None) -> Expr:
        most = MAX_TOKENS if state._defaults.get("max_tokens") is None else None
        options = {"max_tokens": most, **self._options}
        if self.kind is str:
            return gen(self.name, **{"stop": stop, **options})
        if self.kind in _DTYPES:
            return gen(self.name, dtype=self.kind, **options)
        return gen(self.name, schema=self.kind, **options)

    def _value(self, value: Any) -> Any:
        if self.kind is not str:
            return value
        return [one.strip() for one in value] if isinstance(value, list) else value.strip()


def _of_stripped(check: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the check of a text as the check of one with white space around it."""

    @functools.wraps(check)
    def checked(text: str) -> Any:
        return check(text.strip())

    return checked


def body_of(signature: SignatureProgram, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that asks for the answer; its frames are shown at the line of the user's function."""

    def ask(state: ProgramState, /, *args: Any, **kwargs: Any) -> Any:
        return signature.ask(state, args, kwargs)

    async def ask_async(state: ProgramState, /, *args: Any, **kwargs: Any) -> Any:
        return await signature.ask_async(state, args, kwargs)

    made: Any = ask_async if inspect.iscoroutinefunction(function) else ask
    code, own = made.__code__, inspect.unwrap(function).__code__
    # Errors, plans and traces name the innermost line outside the language, which has to be one of the user's.
    made.__code__ = code.replace(
        co_filename=own.co_filename, co_firstlineno=max(1, own.co_firstlineno - 1), co_name=own.co_name
    )
    made.__name__ = made.__qualname__ = function.__name__
    made.__signature__ = inspect.signature(function)
    return made  # type: ignore[no-any-return]


_with_roles: weakref.WeakKeyDictionary[Channel, bool] = weakref.WeakKeyDictionary()


def _takes_roles(state: ProgramState) -> bool:
    """Return whether the answer is asked for by chat messages: none is open, and the backend has a chat template."""
    execution = state._handle.execution
    if state._open_role is not None:
        return False
    if execution.only_records:
        return True
    if (known := _with_roles.get(execution.channel)) is None:
        probe = ProgramState(StateHandle.open(Execution(execution.channel)), defaults={})
        probe.user("?")
        error: RamiformError | Exception | None = probe.error()
        probe.close()
        known = not isinstance(error, RequestError)
        if error is None or not known:
            _with_roles[execution.channel] = known
    return known
