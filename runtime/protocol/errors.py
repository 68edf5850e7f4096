"""What can go wrong, named by who can act: the client (RequestError, BusyError) or the operator (RuntimeFailed)."""

from __future__ import annotations

from typing import Literal

import msgspec


class RamiformError(Exception):
    """Base of every error that ramiform raises on purpose."""


class RequestError(RamiformError, ValueError):
    """The client's mistake. `param` names the parameter, the message quotes the offending text.

    `code` is a stable machine-readable word, e.g. "context_length_exceeded", "invalid_grammar".
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def context_overflow(
    most: int, num_prompt: int, *, param: str, asked: int | None = None, at_least: bool = False
) -> RequestError:
    """The error for a prompt of `num_prompt` tokens that, with `asked` for the answer, exceeds a context of `most`.

    `at_least`: the prompt was refused before all of it was tokenised, so that it may have more tokens.
    """
    number = f"at least {num_prompt}" if at_least else str(num_prompt)
    answer = "" if asked is None else f" and {asked} are asked for the answer"
    return RequestError(
        f"the prompt has {number} tokens{answer}, the context length is {most}",
        param=param,
        code="context_length_exceeded",
    )


class BusyError(RamiformError):
    """The runtime is full; the same request may succeed later."""


class RuntimeFailed(RamiformError):
    """The runtime, or one of its processes, died or could not start. Nothing that was running will be answered."""


ErrorKind = Literal["request", "busy", "runtime"]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it travels. `to_exception` is the inverse of `ErrorInfo.of`."""

    kind: ErrorKind
    message: str
    param: str | None = None
    code: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        match error:
            case RequestError():
                return cls(kind="request", message=str(error), param=error.param, code=error.code)
            case BusyError():
                return cls(kind="busy", message=str(error))
            case RamiformError():
                return cls(kind="runtime", message=str(error))
            case _:
                return cls(kind="runtime", message=f"{type(error).__name__}: {error}")

    def to_exception(self) -> RamiformError:
        match self.kind:
            case "request":
                return RequestError(self.message, param=self.param, code=self.code or "invalid_value")
            case "busy":
                return BusyError(self.message)
            case "runtime":
                return RuntimeFailed(self.message)
