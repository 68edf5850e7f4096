"""What can be appended to a state, as frozen values. Knows no state, no defaults and no runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.sampling import AdditionalProperties
from .choices import Method
from .result_types import ReasoningFormat
from .tools import OnError, ToolSet

StringOrMany = str | Sequence[str]
RESULT = "\nResult: {result}\n"  # what follows a tool's call


class Expr:
    """Anything that `state +=` takes besides a string. `+` chains expressions and strings."""

    __slots__ = ()

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
    text: str


@dataclass(frozen=True, slots=True)
class RoleBeginExpr(Expr):
    role: str


@dataclass(frozen=True, slots=True)
class RoleEndExpr(Expr):
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenExpr(Expr):
    """Generated text. What is None is taken from the arguments of `run`, then from the defaults."""

    name: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: StringOrMany | None = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: StringOrMany | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int | str, float] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    dtype: type | str | None = None
    regex: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    grammar: str | None = None
    schema: Any = None
    tools: ToolSet | None = None
    tool_errors: OnError = "text"
    tool_result: str = RESULT
    additional_properties: AdditionalProperties | None = None
    reasoning: ReasoningFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectExpr(Expr):
    """One of the choices. At temperature 0 the likeliest by `method`, else drawn among them."""

    name: str | None
    choices: tuple[str, ...]
    temperature: float
    method: Method
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Concat(Expr):
    parts: tuple[Expr, ...]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.parts)


def parts_of(value: Expr | str) -> tuple[Expr, ...]:
    """The flat sequence of expressions that `value` stands for. Raises RequestError when it is neither."""
    match value:
        case Concat(parts):
            return parts
        case Expr():
            return (value,)
        case str():
            return (Constant(value),) if value else ()
    raise RequestError(
        f"cannot append {value!r}: a state takes strings and expressions such as gen(...), not {type(value).__name__}"
    )
