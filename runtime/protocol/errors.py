"""Errors, by who can act: the client (RequestError, BusyError) or the operator (RuntimeFailed, ModelError)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec


class RamiformError(Exception):
    """Base of every error that ramiform raises on purpose.

    An exception of any class that ends a program has these attributes too: the program's `state`, the `trace` of what
    ran before, the `program`'s name, its `line` (file:line) and the `arguments` of the call.
    """

    state: Any = None  # a ProgramState, whose earlier answers are readable
    trace: Any = None  # a Trace
    program: str | None = None
    line: str | None = None
    arguments: dict[str, Any] | None = None
    is_repeated: bool = False  # whether the program had this error before, and went on


class RequestError(RamiformError, ValueError):
    """A mistake of the client. `param` names the parameter; the message quotes the offending text.

    `code` is a stable machine-readable word, e.g. "context_length_exceeded", "invalid_grammar".
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def context_exceeded(
    context_length: int,
    num_prompt: int,
    num_completion: int = 0,
    *,
    prompt: str = "prompt",
    limit: str = "max_tokens",
    at_least: bool = False,
) -> RequestError:
    """Make the error for a request that is longer than the context, worded like OpenAI's, which clients look for.

    `prompt` and `limit` name the parameters that hold the prompt and the number of completion tokens; the error names
    the one at fault. `num_completion` is 0 if none were requested. `at_least`: the prompt was not counted to its end.
    """
    noun = "messages" if prompt == "messages" else "prompt"
    about = "at least " if at_least else ""
    if num_completion:
        told = (
            f"you requested {about}{num_prompt + num_completion} tokens "
            f"({about}{num_prompt} in the {noun}, {num_completion} in the completion). "
            f"Please reduce the length of the {noun} or completion."
        )
    else:
        told = f"your {noun} resulted in {about}{num_prompt} tokens. Please reduce the length of the {noun}."
    return RequestError(
        f"This model's maximum context length is {context_length} tokens. However, {told}",
        param=limit if num_prompt < context_length else prompt,
        code="context_length_exceeded",
    )


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'name'?` for the known name that is most like the given one, or nothing."""
    import difflib  # loaded for errors only

    names = [name for name in known if name != given]
    close = difflib.get_close_matches(str(given), names, 1)
    if not close and len(str(given)) >= 3:
        close = [name for name in names if name.startswith(str(given))]
    return f"; did you mean {close[0]!r}?" if close else ""


def json_fault(text: str | bytes, error: Exception, *, first_line: int = 1) -> str:
    """Return why a text is no JSON: its line and column, counted from `first_line`; else the words of `error`."""
    import json

    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        return f"{found.msg} (line {first_line - 1 + found.lineno}, column {found.colno})"
    except (UnicodeDecodeError, RecursionError):
        pass
    return str(error)


class BusyError(RamiformError):
    """The runtime is full, or with the code "asleep" it sleeps; the same request may succeed later."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class RuntimeFailed(RamiformError):
    """The runtime, or one of its processes, died or could not start. Running requests will not be answered."""


class ModelError(RamiformError):
    """The model computed NaN or infinity for this request. Others are not affected; the weights or the device may be
    at fault."""

    code = "not_finite"


ErrorKind = Literal["request", "busy", "runtime", "model"]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An error in a message. `to_exception` is the inverse of `ErrorInfo.of`."""

    kind: ErrorKind
    message: str
    param: str | None = None
    code: str | None = None
    line: str | None = None  # file:line of the program, once it is known

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        match error:
            case RequestError():
                return cls(kind="request", message=str(error), param=error.param, code=error.code)
            case BusyError():
                return cls(kind="busy", message=str(error), code=error.code)
            case ModelError():
                return cls(kind="model", message=str(error), code=error.code)
            case RamiformError():
                return cls(kind="runtime", message=str(error))
            case _:
                return cls(kind="runtime", message=f"{type(error).__name__}: {error}")

    def to_exception(self) -> RamiformError:
        error = self._exception()
        error.line = self.line
        return error

    def _exception(self) -> RamiformError:
        match self.kind:
            case "request":
                return RequestError(self.message, param=self.param, code=self.code or "invalid_value")
            case "busy":
                return BusyError(self.message, code=self.code)
            case "runtime":
                return RuntimeFailed(self.message)
            case "model":
                return ModelError(self.message)
