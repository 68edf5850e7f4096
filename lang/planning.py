"""Calling a program's function without a runtime, to see what it would do. Knows calls and recordings."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ..runtime.protocol import session
from ..runtime.protocol.errors import RamiformError, RequestError
from ..runtime.protocol.sampling import Constraint
from ..runtime.protocol.session import ToFrontend
from .execution import Execution, ValueNeeded
from .lowering import Defaults
from .operation_log import OperationLog
from .plan import PlannedState, states_of, substituted, symbol
from .reader import UndefinedVariable
from .source_location import traceback_location
from .state import ProgramState
from .state_handle import StateHandle

if TYPE_CHECKING:
    from ..runtime.protocol.client import Listener


def check_recorded(logs: Sequence[OperationLog], *, is_whole: bool = True) -> None:
    """Raises RequestError for a variable made twice by one state, a pattern, schema or grammar that is none, and, in
    a program that is whole, a message that is not ended."""
    for log in logs:
        _check_names(log)
        for operation, place in zip(log.operations, log.places, strict=True):
            if isinstance(operation, session.Gen) and operation.sampling.constraint is not None:
                _check_constraint(operation.sampling.constraint, place)
        if is_whole:
            _check_roles(log)


def _check_names(log: OperationLog) -> None:
    first: dict[str, int] = {}
    for op, name in log.names.items():
        if name in first and log.places[first[name]] == log.places[op]:
            raise _wrong(log.places[op], f"the variable {name!r} is generated again by the same line", name)
        if name in first:
            earlier = log.places[first[name]]
            raise _wrong(log.places[op], f"the variable {name!r} is generated again; first at {earlier}", name)
        first[name] = op


def _check_roles(log: OperationLog) -> None:
    open_at: int | None = None
    for op, operation in enumerate(log.operations):
        if isinstance(operation, session.RoleBegin):
            open_at = op
        elif isinstance(operation, session.RoleEnd):
            open_at = None
    if open_at is not None:
        operation = log.operations[open_at]
        assert isinstance(operation, session.RoleBegin)
        raise _wrong(log.places[open_at], f"the {operation.role} message is never ended", "role")


def _check_constraint(constraint: Constraint, place: str) -> None:
    """What is wrong whatever the engine: the runtime knows the rest."""
    source = constraint.source
    match constraint.kind:
        case "regex":
            try:
                re.compile(source)
            except (re.error, RecursionError, OverflowError) as error:
                if r"\p" not in source.lower():  # Unicode classes are the engine's to judge
                    raise _wrong(place, f"regex {source!r}: {error}", "regex") from None
        case "json_schema":
            try:
                schema = json.loads(source)
            except ValueError as error:
                raise _wrong(place, f"json_schema {source!r} is no JSON: {error}", "json_schema") from None
            if not isinstance(schema, dict | bool):
                raise _wrong(place, f"json_schema must be an object, got {source!r}", "json_schema")
        case "grammar":
            if not source.strip():
                raise _wrong(place, "the grammar is empty", "grammar")


def _wrong(place: str, message: str, param: str) -> RequestError:
    return RequestError(f"{place}: {message}", param=param, code="invalid_program")


@dataclass(frozen=True)
class RecordedCall:
    """`stops_at`: where the function read what only a run can give; None: it ended."""

    logs: list[tuple[int, OperationLog]]
    stops_at: str | None


class NullChannel:
    """A channel on which nothing is ever sent."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def attach(self, listener: Listener) -> int:
        return next(self._numbers)

    def detach(self, state: int) -> None:
        """There is nothing to forget."""

    def send(self, message: ToFrontend) -> None:
        raise AssertionError(f"a trace sends nothing, but {message!r}")

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> NoReturn:
        raise RequestError("a program that is traced has no runtime to ask", param=method)


def plan_call(
    function: Callable[..., Any], arguments: Mapping[str, Any], missing: frozenset[str], defaults: Defaults
) -> tuple[tuple[PlannedState, ...], str | None]:
    """The states of a call, and where it stops to be known.

    Arguments that are `missing` are symbols. Those that are given as strings are too where that makes no difference:
    the function is called twice, and what it does with symbols must be what it does with the values. Raises
    RequestError, with the program's line, for what can be told wrong.
    """
    symbols = {name: symbol(name) for name in missing}
    recorded = _recorded(function, {**arguments, **symbols}, missing, defaults)
    check_recorded([log for _, log in recorded.logs], is_whole=recorded.stops_at is None)
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    if texts:
        try:
            abstract = _recorded(function, {**arguments, **symbols, **{n: symbol(n) for n in texts}}, missing, defaults)
        except Exception:
            return states_of(recorded.logs), recorded.stops_at  # it looks into a value, and finds another one there
        if _agree(abstract, recorded, texts):
            return states_of(abstract.logs), abstract.stops_at
    return states_of(recorded.logs), recorded.stops_at


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """To its end, also where an event loop runs already. Raises what it raises."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((asyncio.run(coroutine), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = outcome
    if error is not None:
        raise error
    return result


def _recorded(
    function: Callable[..., Any], arguments: Mapping[str, Any], missing: frozenset[str], defaults: Defaults
) -> RecordedCall:
    execution = Execution(NullChannel(), deferred=True, may_wait=False)
    state = ProgramState(StateHandle.open(execution), defaults=defaults)
    stops_at: str | None = None
    try:
        result = function(state, **arguments)
        if inspect.iscoroutine(result):
            run_coroutine(result)
    except ValueNeeded as wait:
        stops_at = wait.place
    except UndefinedVariable as error:
        raise RequestError(
            f"{traceback_location(error.__traceback__)}: {error.args[0]}", param=error.name, code="invalid_program"
        ) from None
    except RamiformError:
        raise
    except Exception as error:
        if not missing:
            raise
        raise RequestError(
            f"{traceback_location(error.__traceback__)}: {type(error).__name__}: {error}; the program looks into an argument: "
            f"give an example of {', '.join(sorted(missing))}",
            code="invalid_program",
        ) from error
    return RecordedCall(list(execution.attached), stops_at)


def _agree(abstract: RecordedCall, concrete: RecordedCall, values: Mapping[str, str]) -> bool:
    if abstract.stops_at != concrete.stops_at or len(abstract.logs) != len(concrete.logs):
        return False
    return all(
        [substituted(operation, values) for operation in a.operations]
        == [substituted(operation, {}) for operation in b.operations]
        and (a.places, a.names) == (b.places, b.names)
        for (_, a), (_, b) in zip(abstract.logs, concrete.logs, strict=True)
    )
