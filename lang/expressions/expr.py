"""Expressions: the frozen values that can be appended to a state."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling import PARAMETERS, AdditionalProperties, Constraint, JsonWhitespace
from ..tools.interface import signature_of
from ..tools.tool_set import OnError, ToolSet
from ..types.result_types import (
    TEXT,
    ReasoningFormat,
    ResultType,
    constrained_text,
    json_schema_text,
    of_dtype,
    of_schema,
)
from .attempts import GenCheck
from .choices import Method
from .format_marks import has_mark, mark_of, split_at_marks

OnCut = Literal["raise", "keep"]
StringOrMany = str | Sequence[str]
# Arguments of `gen` that are sampling parameters: the parameter's name -> the argument's.
GEN_NAMES = {row.name: name for row in PARAMETERS.values() if (name := row.name_in("gen")) is not None}
_REQUEST_ARGUMENTS = (
    "n",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "lora",
)
# Arguments that `run` takes too, by the parameter's name or gen's: the name in `run` -> the name in `gen`.
RUN_ARGUMENTS = GEN_NAMES | {name: name for name in (*GEN_NAMES.values(), *_REQUEST_ARGUMENTS)}
RESULT = "\nResult: {result}\n"  # appended after a tool's call


class Expr:
    """Base of the expressions that `state +=` takes besides strings. `+` chains expressions and strings.

    In an f-string, and as `str(expr)`, an expression is a mark that stands for it (see `format_marks`).
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        if spec:
            raise RequestError(
                f"{_label(self)} takes no format such as {spec!r}: its text is not known yet",
                param="format_spec",
            )
        return mark_of(self, sum(len(str(getattr(part, "text", ""))) for part in parts_of(self)))

    def __str__(self) -> str:
        return format(self)

    def __add__(self, other: Expr | str) -> Concat:
        if not isinstance(other, Expr | str):
            return NotImplemented
        return Concat((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: str) -> Concat:
        if not isinstance(other, str):
            return NotImplemented
        return Concat((*parts_of(other), *parts_of(self)))


@dataclass(frozen=True, slots=True)
class Constant(Expr):
    """Text of the program's own."""

    text: str


@dataclass(frozen=True, slots=True)
class ImageExpr(Expr):
    """An image: the bytes of its file."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RoleBeginExpr(Expr):
    """Begins a chat message; the first one of a chat may offer tools."""

    role: str
    tools: ToolSet | None = None


@dataclass(frozen=True, slots=True)
class RoleEndExpr(Expr):
    """Ends a chat message."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenExpr(Expr):
    """Generated text. Parameters that `sampling` lacks come from the arguments of `run`, then from their defaults."""

    name: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # by gen's argument names
    dtype: type | str | None = None
    regex: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    grammar: str | None = None
    schema: Any = None
    tools: ToolSet | None = None
    substring: str | None = None  # the text to quote
    heal: bool = False
    structural_tag: str | None = None  # of an agent's turn
    streamed: bool = False  # whether or not the run is
    tool_errors: OnError = "text"
    tool_result: str = RESULT
    additional_properties: AdditionalProperties | None = None
    number_digits: int | None = None
    json_whitespace: JsonWhitespace | None = None
    on_cut: OnCut = "raise"
    check: GenCheck | None = None
    reasoning: ReasoningFormat | None = None

    def constraint(self) -> tuple[Constraint | None, ResultType]:
        """Return the constraint of the text, and the type of its value. Raises RequestError for a type without one."""
        if inspect.isroutine(self.schema) or isinstance(self.schema, functools.partial):
            return _arguments_of(self.schema)
        if self.dtype is not None or self.schema is not None:
            result = of_schema(self.schema) if self.dtype is None else of_dtype(self.dtype)
            return result.constraint, result
        if self.regex is not None:
            return self._text_of(Constraint("regex", self.regex))
        if self.json_schema is not None:
            return self._text_of(Constraint("json_schema", json_schema_text(self.json_schema)))
        if self.grammar is not None:
            return self._text_of(Constraint("grammar", self.grammar))
        if self.substring is not None:
            return self._text_of(Constraint("substring", self.substring))
        if self.tools is not None:
            return self.tools.constraint, TEXT
        if self.structural_tag is not None:
            return Constraint("structural_tag", self.structural_tag, additional_properties="closed"), TEXT
        return None, TEXT

    def _text_of(self, constraint: Constraint) -> tuple[Constraint, ResultType]:
        return constraint, TEXT if self.on_cut == "keep" else constrained_text(constraint)


def _arguments_of(function: Callable[..., Any]) -> tuple[Constraint, ResultType]:
    """Return the constraint and the type of a function's arguments, a dict of all that are given or have defaults."""
    try:
        read = signature_of(function, None)
    except RequestError as error:
        raise RequestError(f"schema: {error}", param="schema") from None
    constraint = Constraint("json_schema", json.dumps(read.parameters), "any", "closed")
    return constraint, ResultType(f"arguments of {read.name}", read.read, constraint)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectExpr(Expr):
    """One of the choices: at temperature 0 the likeliest by `method`, else drawn among them."""

    name: str | None
    choices: tuple[str, ...]
    temperature: float
    method: Method
    seed: int | None = None
    lora: str | None = None
    values: Mapping[str, Any] | None = None  # what the choices stand for; None: for themselves


@dataclass(frozen=True, slots=True)
class Concat(Expr):
    """A sequence of expressions, which are no sequences themselves."""

    parts: tuple[Expr, ...]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.parts)


def parts_of(value: Expr | str) -> tuple[Expr, ...]:
    """Return the flat sequence of expressions of a string or expression, those in f-strings included.

    Raises RequestError for other values, and for a string that was cut inside an expression.
    """
    match value:
        case Concat(parts):
            return parts
        case Expr():
            return (value,)
        case str():
            text = str.__str__(value)  # of a subclass too: its plain text
            if has_mark(text):
                return tuple(part for piece in split_at_marks(text) for part in parts_of(piece))
            return (Constant(text),) if text else ()
    raise RequestError(
        f"cannot append {value!r}: a state takes strings, expressions such as gen(...) and lists of chat messages, not "
        f"{type(value).__name__}"
    )


def messages_of(messages: Sequence[Any]) -> tuple[Expr, ...]:
    """Return the expressions of chat messages, dicts of `role` and `content`. Raises RequestError for other items."""
    parts: list[Expr] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(
                f"cannot append a list whose item {index} is of type {type(message).__name__}: it holds chat messages; "
                "append strings and expressions one by one, or chain them with +",
                param="messages",
            )
        if message.keys() != {"role", "content"} or not (
            isinstance(message["role"], str) and isinstance(message["content"], str | Expr)
        ):
            raise RequestError(
                f"message {index} must be a dict of 'role' and 'content', a text, and no more; got {dict(message)!r}",
                param="messages",
            )
        name = message["role"]
        parts += [RoleBeginExpr(name), *parts_of(message["content"]), RoleEndExpr(name)]
    return tuple(parts)


def _label(expr: Expr) -> str:
    """Return an expression as programs write it, with its name only."""
    name = getattr(expr, "name", None)
    return f"{type(expr).__name__.removesuffix('Expr').lower()}({'...' if name is None else repr(name)})"
