"""Python functions as tools: the JSON Schema of their calls, the call itself, and its result as text."""

from __future__ import annotations

import functools
import inspect
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling import Constraint
from ..types.result_types import closed

Tool = Callable[..., Any]
OnError = Literal["text", "raise"]

_ARGUMENT = re.compile(r"^\s*(?::param\s+)?(\w+)\s*(?:\([^)]*\))?\s*:\s+(.+)$")


@dataclass
class ToolOutcome:
    """The call of a tool and its result; complete once the runtime has appended the result's text."""

    name: str | None = None
    arguments: dict[str, Any] | None = None
    result: Any = None
    text: str = ""
    error: str | None = None

    def meta(self) -> dict[str, Any]:
        """Return the `tool_call` of the variable's meta info."""
        return {"name": self.name, "arguments": self.arguments, "result_text": self.text, "error": self.error}


class ToolSet:
    """Functions that a model may call, by generating `{"name": ..., "arguments": {...}}`.

    Raises RequestError for functions without type hints, or with *args.
    """

    def __init__(self, functions: Sequence[Tool]) -> None:
        if callable(functions) or not functions or not all(callable(function) for function in functions):
            raise RequestError(f"tools must be a sequence of functions, got {functions!r}", param="tools")
        self.functions = {_name_of(function): function for function in functions}
        if len(self.functions) < len(functions):
            raise RequestError(f"tools must have different names, got {list(map(_name_of, functions))}", param="tools")
        self._calls = [_call_type(name, function) for name, function in self.functions.items()]
        union: Any = functools.reduce(operator.or_, self._calls)
        self._decoder = msgspec.json.Decoder(union)
        self.constraint = Constraint("json_schema", json.dumps(msgspec.json.schema(union)), "any", "closed")

    def parse(self, text: str) -> tuple[str, dict[str, Any]]:
        """Return the function's name and its arguments. Raises ValueError if the text is not a complete call."""
        call = self._decoder.decode(text)
        arguments = call.arguments
        return call.__struct_config__.tag, {field: getattr(arguments, field) for field in arguments.__struct_fields__}


def tool_set(functions: Sequence[Tool]) -> ToolSet:
    """Return the ToolSet of the functions, cached. Raises as ToolSet does."""
    try:
        return _tool_set(tuple(functions))
    except TypeError:  # not a sequence, or with unhashable members
        return ToolSet(functions)


_tool_set = functools.lru_cache(256)(ToolSet)


@dataclass(frozen=True)
class ToolCallback:
    """Callback that makes the generated call; its text is `template` with the result filled in."""

    tools: ToolSet
    on_error: OnError
    template: str
    outcome: ToolOutcome

    def __call__(self, done: session.Done) -> Any:
        outcome = self.outcome
        try:
            outcome.name, outcome.arguments = self.tools.parse(done.text)
        except ValueError as error:  # msgspec's errors included
            raise RequestError(f"the text {done.text!r} is not a call: {error}", param="tools") from None
        try:
            result = self.tools.functions[outcome.name](**outcome.arguments)
        except Exception as error:
            return self._failed(error)
        return self._await_result(result) if inspect.isawaitable(result) else self._succeeded(result)

    async def _await_result(self, result: Any) -> str:
        try:
            result = await result
        except Exception as error:
            return self._failed(error)
        return self._succeeded(result)

    def _succeeded(self, result: Any) -> str:
        self.outcome.result = result
        self.outcome.text = text_of(result)
        return self.template.replace("{result}", self.outcome.text)

    def _failed(self, error: Exception) -> str:
        outcome = self.outcome
        outcome.error = f"{type(error).__name__}: {error}"
        if self.on_error == "raise":
            call = (
                f"{outcome.name}({', '.join(f'{name}={value!r}' for name, value in (outcome.arguments or {}).items())})"
            )
            raise RequestError(
                f"the tool {call} raised {outcome.error}", param=outcome.name, code="tool_failed"
            ) from error
        return self._succeeded(f"Error: {outcome.error}")


def text_of(result: Any) -> str:
    """Return a string as it is, anything else as JSON if possible, else as `str` prints it."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError):
        return str(result)


def tool_schemas(functions: Sequence[Tool]) -> list[dict[str, Any]]:
    """Describe functions in the form that chat templates and the OpenAI API take, for prompts."""
    described = []
    for name, function in ToolSet(functions).functions.items():
        schema = closed(msgspec.json.schema(_arguments_type(name, function)))
        definitions = schema.pop("$defs", {})
        parameters = definitions.pop(schema["$ref"].rpartition("/")[2]) if "$ref" in schema else schema
        parameters = {key: value for key, value in parameters.items() if key != "title"}
        if definitions:
            parameters["$defs"] = definitions
        summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        described.append(
            {"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}}
        )
    return described


def _name_of(function: Tool) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _call_type(name: str, function: Tool) -> type[msgspec.Struct]:
    arguments = _arguments_type(name, function)
    return msgspec.defstruct(
        f"call_{name}", [("arguments", arguments)], tag_field="name", tag=name, forbid_unknown_fields=True
    )


def _arguments_type(name: str, function: Tool) -> type[msgspec.Struct]:
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise RequestError(f"the signature of the tool {name} cannot be read: {error}", param="tools") from None
    descriptions = _argument_descriptions(inspect.getdoc(function) or "")
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RequestError(f"the tool {name} takes {parameter}; each argument must have a name", param="tools")
        if parameter.name not in hints:
            raise RequestError(f"the argument {parameter.name!r} of the tool {name} has no type hint", param="tools")
        kind = hints[parameter.name]
        if parameter.name in descriptions:
            kind = Annotated[kind, msgspec.Meta(description=descriptions[parameter.name])]
        has_default = parameter.default is not parameter.empty
        default = msgspec.field(default_factory=functools.partial(_same, parameter.default))
        fields.append((parameter.name, kind, default) if has_default else (parameter.name, kind))
    try:
        made = msgspec.defstruct(f"arguments_{name}", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(made)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"the tool {name} has an argument without a JSON Schema: {error}", param="tools") from None
    return made


def _same(value: Any) -> Any:
    return value


def _argument_descriptions(docstring: str) -> dict[str, str]:
    """Return the descriptions of arguments in lines such as `city: where` or `:param city: where`."""
    _, _, rest = docstring.partition("\n")
    matches = filter(None, map(_ARGUMENT.match, rest.splitlines()))
    return {match.group(1): match.group(2).strip() for match in matches}
