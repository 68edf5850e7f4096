"""Declared tools: the name, description and JSON Schema of what a model may call, and the function that answers."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from ...runtime.protocol.errors import RequestError
from .interface import read_definition, signature_of

P = ParamSpec("P")
R = TypeVar("R")

MAX_KEPT_RESULTS = 256  # of one pure tool; the oldest goes first
_MISSING: Any = object()


class KeptResults:
    """The results of a pure tool, by the JSON text of its arguments."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Any:
        """Return the result that was kept, or `_MISSING`."""
        with self._lock:
            return self._results.get(key, _MISSING)

    def keep(self, key: str, result: Any) -> None:
        with self._lock:
            self._results[key] = result
            while len(self._results) > MAX_KEPT_RESULTS:
                self._results.popitem(last=False)


@dataclass(frozen=True, eq=False)
class DeclaredTool(Generic[P, R]):
    """A tool: what a model may call. Calling it calls the function.

    `read` makes the arguments of JSON text, and raises ValueError for text that is not valid. Without a function a call
    is answered by the program. The results of a `pure` tool are kept, and returned for equal arguments. `speculate`:
    agents may call it on predicted arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]  # JSON Schema of the arguments
    read: Callable[[str], dict[str, Any]]
    function: Callable[P, R] | None
    pure: bool = False
    speculate: bool = False
    _kept: KeptResults = field(default_factory=KeptResults, repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.function is None:
            raise RequestError(f"the tool {self.name} has no function", param="tools")
        return self.function(*args, **kwargs)

    def schema(self) -> dict[str, Any]:
        """Return the description in the form that chat templates and the OpenAI API take."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def kept(self, key: str) -> tuple[Any, ...]:
        """Return the kept result for arguments with this JSON text, as a tuple of one, or nothing."""
        result = self._kept.get(key) if self.pure else _MISSING
        return () if result is _MISSING else (result,)

    def keep(self, key: str, result: Any) -> None:
        """Keep a result for arguments with this JSON text, if the tool is pure."""
        if self.pure:
            self._kept.keep(key, result)


AnyTool = DeclaredTool[..., Any] | Callable[..., Any] | Mapping[str, Any]


class ToolOptions(TypedDict, total=False):
    """Keyword arguments of `tool`."""

    name: str | None
    description: str | None
    pure: bool
    speculate: bool


@overload
def tool(function: Callable[P, R], **options: Unpack[ToolOptions]) -> DeclaredTool[P, R]: ...
@overload
def tool(
    function: Mapping[str, Any], handler: Callable[..., Any] | None = None, **options: Unpack[ToolOptions]
) -> DeclaredTool[..., Any]: ...
@overload
def tool(function: None = None, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]: ...
def tool(
    function: Any = None,
    handler: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    pure: bool = False,
    speculate: bool = False,
) -> Any:
    """Declare a tool: `@tool`, `@tool(name=..., pure=True)`, `tool(function, ...)` or `tool(definition, handler)`.

    A definition is a dict in OpenAI's form, `{"type": "function", "function": {...}}`, or MCP's, `{"name": ...,
    "inputSchema": {...}}`; `handler` is called with the arguments by keyword. `name` and `description` replace those of
    the function or definition. The results of a `pure` tool are kept in this process for calls with equal arguments,
    errors are not. An agent calls it as soon as its arguments are written, and with `speculate` also on arguments that
    earlier runs let it expect; a result is used for equal arguments only. Raises RequestError for functions whose
    arguments have no type hints, and for invalid definitions.
    """
    if function is None:
        return lambda one: tool(one, handler, name=name, description=description, pure=pure, speculate=speculate)
    _check(name, description, pure, speculate)
    if isinstance(function, Mapping):
        if handler is not None and not callable(handler):
            raise RequestError(f"handler must be a function, got {handler!r}", param="handler")
        read = read_definition(function)
        target = handler
    elif callable(function):
        if handler is not None:
            raise RequestError("a handler belongs to a definition; a function answers itself", param="handler")
        read = signature_of(function, name)
        target = function
    else:
        raise RequestError(f"a tool is a function or a definition (a dict), got {function!r}", param="tools")
    described = read.description if description is None else description
    if pure and target is None:
        raise RequestError(
            f"the tool {read.name} is pure, but has no function whose results could be kept", param="pure"
        )
    return DeclaredTool(name or read.name, described, read.parameters, read.read, target, pure, speculate)


def declared(given: AnyTool) -> DeclaredTool[..., Any]:
    """Return a tool as it was declared, or declare a function or definition. Raises RequestError as `tool` does."""
    return given if isinstance(given, DeclaredTool) else tool(given)


def key_of(arguments: bytes | str) -> str:
    """Return the JSON text by which results are kept: equal for equal arguments, in whatever order."""
    return json.dumps(json.loads(arguments), sort_keys=True)


def _check(name: Any, description: Any, pure: Any, speculate: Any) -> None:
    if name is not None and not (isinstance(name, str) and name):
        raise RequestError(f"name must be a non-empty string, got {name!r}", param="name")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"description must be a string, got {description!r}", param="description")
    for param, value in (("pure", pure), ("speculate", speculate)):
        if not isinstance(value, bool):
            raise RequestError(f"{param} must be True or False, got {value!r}", param=param)
    if speculate and not pure:
        raise RequestError(
            "speculate calls a tool that the model has not called, so only a pure tool may have it: write pure=True",
            param="speculate",
        )
