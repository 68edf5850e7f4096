"""Source locations in the user's program: the `file:line` that errors, plans and traces name."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from ...runtime.protocol.errors import ErrorInfo

_LANGUAGE_FILES = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, contextlib.__file__)


def program_location() -> str:
    """Return `file:line` of the innermost frame outside the language: the line of the program that runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LANGUAGE_FILES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def definition_line(function: Callable[..., Any]) -> str:
    """Return `file:line` of a function's definition; its name if that is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def with_location(error: ErrorInfo, location: str, what: str = "") -> ErrorInfo:
    """Return the error with the program's line, and what was asked there, before its message."""
    message = ": ".join(filter(None, (location, what, error.message)))
    return msgspec.structs.replace(error, message=message, line=error.line or location)


def traceback_location(trace: TracebackType | None, *, outermost: bool = False) -> str:
    """Return `file:line` of the innermost, or outermost, frame of a traceback outside the language; "" without one."""
    found = ""
    while trace is not None and not (found and outermost):
        if not trace.tb_frame.f_code.co_filename.startswith(_LANGUAGE_FILES):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
