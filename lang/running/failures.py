"""Exceptions that end programs: their attributes and notes, and their tracebacks without ramiform's frames."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...runtime.protocol.errors import RamiformError

if TYPE_CHECKING:
    from ..states.state import ProgramState

DEBUG_VARIABLE = "RAMIFORM_DEBUG"  # if set, tracebacks keep ramiform's frames
_PACKAGE = Path(os.path.abspath(__file__)).parents[2]  # not `resolve`: frames name files as they were imported
_OURS = (os.path.join(_PACKAGE, "lang", ""), os.path.join(_PACKAGE, "runtime", ""), contextlib.__file__)
_STDLIB = os.path.dirname(os.__file__) + os.sep
# Between a run and its program's first frame these belong to the run.
_PLUMBING = tuple(os.path.join(_STDLIB, name) for name in ("asyncio", "concurrent", "threading.py"))


class BatchError(RamiformError):
    """The failure of one program of a batch, in the place of its state.

    `error` is the program's exception, `index` its place in the batch, `arguments` those of its call, and `state` its
    state, whose earlier answers are readable.
    """

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.index = index
        self.error = error
        self.__cause__ = error
        self.state: ProgramState | None = getattr(error, "state", None)
        self.trace = getattr(error, "trace", None)
        self.program = getattr(error, "program", None)
        self.line = getattr(error, "line", None)
        self.arguments = getattr(error, "arguments", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.index, self.error)


def describe(
    error: BaseException, state: ProgramState | None, name: str, defined_at: str, arguments: Mapping[str, Any]
) -> None:
    """Set the exception's `state`, `trace`, `program`, `line` and `arguments`: those of the innermost program.

    Attributes of the exception's own class stay. A note names the program and its line unless the message has the line.
    """
    from ..tracing.trace import trace_of

    began = 0.0 if state is None else state._handle.execution.began
    described = getattr(error, "_ramiform", None)
    if described is not None and described[0] > began:
        return  # by a program that this one has run; an earlier one means that the exception is raised again
    line = getattr(error, "line", None) if isinstance(error, RamiformError) and described is None else None
    line = line or program_line(error) or defined_at
    facts = {"state": state, "program": name, "line": line, "arguments": dict(arguments)}
    facts["trace"] = None if state is None else trace_of(state._handle.execution.recorded(name))
    own = set() if isinstance(error, RamiformError) else {fact for fact in facts if hasattr(error, fact)}
    for fact, value in facts.items():
        if fact not in own or (described is not None and fact in described[1]):
            object.__setattr__(error, fact, value)  # the exception may be a frozen dataclass
    note = f"in the program {name!r}, at {line}"
    if described is not None and described[2] in getattr(error, "__notes__", ()):
        error.__notes__.remove(described[2])
    if line not in str(error):
        with contextlib.suppress(AttributeError):  # of a frozen exception
            error.add_note(note)
    object.__setattr__(error, "_ramiform", (began, facts.keys() - own, note))


def program_line(error: BaseException) -> str | None:
    """Return `file:line` of the innermost frame of the user's own code, as far as the exception has been raised."""
    seen: BaseException | None = error
    while seen is not None:
        found = None
        for frame, line in walk_tb(seen.__traceback__):
            file = frame.f_code.co_filename
            if not is_ours(file) and not file.startswith((_STDLIB, "<frozen")) and "site-packages" not in file:
                found = f"{file}:{line}"
        if found is not None:
            return found
        seen = seen.__context__  # Ctrl-C in an event loop cancels the program, and is raised outside it
    return None


def is_ours(file: str) -> bool:
    """Return whether a source file is the language's or the runtime's."""
    return file.startswith(_OURS)


def is_plumbing(file: str) -> bool:
    """Return whether a source file is the standard library's, of its threads and event loops."""
    return file.startswith(_PLUMBING)


def fold(error: BaseException) -> None:
    """Remove ramiform's frames from the traceback of an exception and of those that caused it."""
    if os.environ.get(DEBUG_VARIABLE):
        return
    left, seen = [error], set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.with_traceback(folded(one.__traceback__))
        left += [other for other in (one.__cause__, one.__context__) if other is not None]
        left += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def folded(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without ramiform's frames, and without those of threads and event loops before the rest."""
    kept: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_ours(file) and (kept or not is_plumbing(file)):
            kept.append(trace)
        trace = trace.tb_next
    rest: TracebackType | None = None
    for one in reversed(kept):
        rest = TracebackType(rest, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return rest


class Folded:
    """Context manager that removes ramiform's frames from the traceback of an exception that leaves its block.

    Not a generator with `contextmanager`, which puts the old traceback back.
    """

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            fold(error)
