"""The tools of one generation: the JSON Schema of their calls, the call itself, and its result as text."""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling import Constraint
from ..types.adapter import json_text, nested
from .call_patterns import CallPatterns
from .declaration import AnyTool, DeclaredTool, declared, key_of

OnError = Literal["text", "raise"]


@dataclass(frozen=True)
class UnansweredCall:
    """A call of a tool that has no function: the program answers it."""

    name: str
    arguments: dict[str, Any]


@dataclass
class ToolOutcome:
    """The call of a tool and its result; complete once the runtime has appended the result's text."""

    name: str | None = None
    arguments: dict[str, Any] | None = None
    result: Any = None
    text: str = ""
    error: str | None = None
    seconds: float = 0.0  # that the function took
    cause: Exception | None = None  # of the error
    saved: float = 0.0  # seconds of these in which the model still wrote the turn
    recognised: str | None = None  # how an agent found the call in the model's text

    def meta(self) -> dict[str, Any]:
        """Return the `tool_call` of the variable's meta info."""
        return {
            "name": self.name,
            "arguments": self.arguments,
            "result_text": self.text,
            "error": self.error,
            "seconds": self.seconds,
        }

    def label(self) -> str:
        """Return what traces show of the call."""
        how = f", {self.recognised}" if self.recognised else ""
        early = f", {self.saved:.3f} s early" if self.saved else ""
        return f"tool {'call' if self.name is None else self.name}{how}{early}"

    def to_error(self) -> RequestError:
        """Return the error for a program whose tools may not fail."""
        if self.name is None:
            return RequestError(str(self.error), param="tools", code="invalid_call")
        given = ", ".join(f"{name}={value!r}" for name, value in (self.arguments or {}).items())
        message = f"the tool {self.name}({given}) raised {self.error}"
        return RequestError(message, param=self.name, code="tool_failed")


@dataclass(frozen=True)
class PreparedCall:
    """A call whose arguments are valid. `key` is their JSON text."""

    tool: DeclaredTool[..., Any]
    arguments: dict[str, Any]
    key: str


class _CallText(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw


class ToolSet:
    """Tools that a model may call, by generating `{"name": ..., "arguments": {...}}`.

    Raises RequestError for what is no tool, and for two tools of one name.
    """

    def __init__(self, tools: Iterable[AnyTool], *, may_be_empty: bool = False) -> None:
        given = [] if callable(tools) or isinstance(tools, str | dict) or not isinstance(tools, Iterable) else [*tools]
        if not given and not (may_be_empty and isinstance(tools, list | tuple)):
            raise RequestError(f"tools must be a sequence of functions or definitions, got {tools!r}", param="tools")
        self.tools = {one.name: one for one in map(declared, given)}
        if len(self.tools) < len(given):
            names = [declared(one).name for one in given]
            raise RequestError(f"tools must have different names, got {names}", param="tools")
        schemas, definitions = nested({name: dict(one.parameters) for name, one in self.tools.items()})
        self.schemas = schemas  # of the arguments, by name; they refer to `definitions`
        self.definitions = definitions
        calls = [_call_schema(name, schema) for name, schema in schemas.items()]
        union = (calls[0] if len(calls) == 1 else {"anyOf": calls}) | ({"$defs": definitions} if definitions else {})
        self.constraint = Constraint("json_schema", json.dumps(union), "any", "closed")
        self.patterns = CallPatterns()

    def parse(self, text: str) -> PreparedCall:
        """Return the call of a text `{"name": ..., "arguments": {...}}`. Raises ValueError if it is not valid."""
        call = msgspec.json.decode(text, type=_CallText)
        return self.parse_arguments(call.name, bytes(call.arguments).decode())

    def parse_arguments(self, name: str, arguments: str) -> PreparedCall:
        """Return the call of a tool with arguments as JSON text. Raises ValueError if it is not valid."""
        if (tool := self.tools.get(name)) is None:
            raise ValueError(f"there is no tool {name!r}, only {', '.join(self.tools)}")
        return PreparedCall(tool, tool.read(arguments), key_of(arguments))


def tool_set(tools: Iterable[AnyTool]) -> ToolSet:
    """Return the ToolSet of the tools, cached for functions. Raises as ToolSet does."""
    if not isinstance(tools, Sequence):
        return ToolSet(tools)
    try:
        return _tool_set(tuple(tools))
    except TypeError:  # unhashable members: definitions, and objects that compare by value
        return ToolSet(tools)


_tool_set = functools.lru_cache(256)(ToolSet)


def begin_call(call: PreparedCall, outcome: ToolOutcome) -> Any:
    """Call the function, and return None, or an awaitable that ends the call; the outcome has the result or error."""
    outcome.name, outcome.arguments = call.tool.name, call.arguments
    if call.tool.function is None:
        outcome.result = UnansweredCall(call.tool.name, call.arguments)
        return None
    if kept := call.tool.kept(call.key):
        _succeed(outcome, kept[0])
        return None
    began = time.perf_counter()
    try:
        result = call.tool.function(**call.arguments)
        if inspect.isawaitable(result):
            return _finish(call, outcome, result, began)
        _succeed(outcome, result)
        call.tool.keep(call.key, result)
    except Exception as error:
        fail(outcome, error)
    outcome.seconds = time.perf_counter() - began
    return None


async def _finish(call: PreparedCall, outcome: ToolOutcome, result: Any, began: float) -> None:
    try:
        value = await result
        _succeed(outcome, value)
        call.tool.keep(call.key, value)
    except Exception as error:
        fail(outcome, error)
    outcome.seconds = time.perf_counter() - began


def _succeed(outcome: ToolOutcome, result: Any) -> None:
    outcome.text = text_of(result)
    outcome.result = result


def fail(outcome: ToolOutcome, error: Exception) -> None:
    """Make the error the result, as the model is told it."""
    described = str(error)
    outcome.cause = error
    outcome.error = f"{type(error).__name__}: {described}" if described else type(error).__name__
    outcome.result = outcome.text = f"Error: {outcome.error}"


def refuse(outcome: ToolOutcome, text: str, error: Exception, *, cut_off: bool) -> None:
    """Make the result the error of a text that is not a valid call."""
    outcome.cause = error
    cut = ", cut off at max_tokens," if cut_off else ""
    outcome.error = f"the text {text!r}{cut} is not a call: {error}"
    outcome.result = outcome.text = f"Error: {outcome.error}"


@dataclass(frozen=True)
class ToolCallback:
    """Callback that makes the generated call; its text is `template` with the result filled in."""

    tools: ToolSet
    on_error: OnError
    template: str
    outcome: ToolOutcome

    def __call__(self, done: session.Done) -> Any:
        try:
            call = self.tools.parse(done.text)
        except ValueError as error:  # msgspec's errors included
            refuse(self.outcome, done.text, error, cut_off=was_cut_off(done))
            return self._text()
        pending = begin_call(call, self.outcome)
        return self._text() if pending is None else self._after(pending)

    async def _after(self, pending: Any) -> str:
        await pending
        return self._text()

    def _text(self) -> str:
        outcome = self.outcome
        if outcome.error is not None and self.on_error == "raise":
            raise outcome.to_error() from outcome.cause
        if isinstance(outcome.result, UnansweredCall):
            return ""
        return self.template.replace("{result}", outcome.text)


def was_cut_off(done: session.Done) -> bool:
    """Return whether max_tokens ended the generation."""
    return bool(done.sequences) and done.sequences is not None and done.sequences[0].finish.type == "length"


def text_of(result: Any) -> str:
    """Return a string as it is, anything else as JSON if possible, else as `str` prints it."""
    if isinstance(result, str):
        return result
    try:
        return json_text(result)
    except (TypeError, ValueError):
        return str(result)


def tool_schemas(tools: Iterable[AnyTool]) -> list[dict[str, Any]]:
    """Describe tools in the form that chat templates and the OpenAI API take, for prompts."""
    return [one.schema() for one in ToolSet(tools).tools.values()]


def _call_schema(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
