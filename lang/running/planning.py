"""Recording a program's call without a runtime: its plan, and the mistakes that can be found before it runs."""

from __future__ import annotations

import contextvars
import inspect
import json
import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar

from ...runtime.protocol import session
from ...runtime.protocol.errors import RamiformError, RequestError
from ...runtime.protocol.sampling import Constraint
from ...runtime.protocol.session import ToFrontend
from ..expressions.lowering import Defaults
from ..expressions.symbols import ArgumentNeeded, as_symbol, odd_symbol, symbol, with_values
from ..operations.execution import Execution, ValueNeeded, running_loop
from ..operations.operation_log import OperationLog
from ..operations.source_location import traceback_location
from ..operations.state_handle import StateHandle
from ..states.reader import UndefinedVariable
from ..states.state import FunctionBody, ProgramState
from ..tracing.plan import Plan, substituted

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener

P = ParamSpec("P")
T = TypeVar("T")


class PreparedProgram:
    """Plan and prefix that `compile` and `cache` have made; the programs of all instances of a method share them."""

    def __init__(self, compiled: Plan | None = None) -> None:
        self.compiled = compiled
        self.prefix: ProgramState | None = None


def check_recorded(logs: Sequence[OperationLog], *, is_whole: bool = True) -> None:
    """Check the operations of a program before they are sent.

    Raises RequestError, with the program's line, for an invalid pattern, schema or grammar, and, if the program
    `is_whole`, a chat message that is not ended.
    """
    for log in logs:
        for operation, location in zip(log.operations, log.locations, strict=True):
            if isinstance(operation, session.Gen) and operation.sampling.constraint is not None:
                _check_constraint(operation.sampling.constraint, location)
        if is_whole:
            _check_roles(log)


def _check_roles(log: OperationLog) -> None:
    open_at: int | None = None
    for op in log.visible(0, len(log.operations)):
        operation = log.operations[op]
        if isinstance(operation, session.RoleBegin):
            open_at = op
        elif isinstance(operation, session.RoleEnd):
            open_at = None
    if open_at is not None:
        operation = log.operations[open_at]
        assert isinstance(operation, session.RoleBegin)
        raise _wrong(log.locations[open_at], f"the {operation.role} message is never ended", "role")


def _check_constraint(constraint: Constraint, location: str) -> None:
    """Raise RequestError for a source that every grammar engine would refuse; the runtime checks the rest."""
    source = constraint.source
    match constraint.kind:
        case "regex":
            try:
                re.compile(source)
            except (re.error, RecursionError, OverflowError) as error:
                if r"\p" not in source.lower():  # `re` has no Unicode classes, the engine does
                    raise _wrong(location, f"regex {source!r}: {error}", "regex") from None
        case "json_schema":
            try:
                schema = json.loads(source)
            except ValueError as error:
                raise _wrong(location, f"json_schema {source!r} is not JSON: {error}", "json_schema") from None
            if not isinstance(schema, dict | bool):
                raise _wrong(location, f"json_schema must be an object, got {source!r}", "json_schema")
        case "grammar":
            if not source.strip():
                raise _wrong(location, "the grammar is empty", "grammar")


def _wrong(location: str, message: str, param: str) -> RequestError:
    error = RequestError(f"{location}: {message}", param=param, code="invalid_program")
    error.line = location
    return error


@dataclass(frozen=True)
class RecordedCall:
    """The logs of a call, and its messages in order.

    `stops_at` is the line where the function needed a value that is not known; None: it ended. `argument_needed` names
    the argument whose value it needed; None: a generated one.
    """

    logs: list[tuple[int, OperationLog]]
    messages: list[tuple[session.Open | session.Append, OperationLog]]
    stops_at: str | None = None
    argument_needed: str | None = None


class NullChannel:
    """Channel of a call that is only recorded: sends nothing."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def attach(self, listener: Listener) -> int:
        return next(self._numbers)

    def detach(self, state: int) -> None:
        """Do nothing: no state was opened."""

    def send(self, message: ToFrontend) -> None:
        raise AssertionError(f"planning a call sends nothing, but got {message!r}")

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> NoReturn:
        raise RequestError("a program that is only planned has no runtime to ask", param=method)


def plan_call(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    missing: frozenset[str],
    defaults: Defaults,
    constants: Collection[str] = (),
) -> RecordedCall:
    """Record a call up to the line where it reads a generated value or looks into an argument, if it does.

    Arguments that are `missing` become symbols. The function is called again with other symbols: where the operations
    differ, it has looked into a text that holds one. String arguments that are not `constants` become symbols too
    where that changes nothing else, which one more call tells. Raises RequestError, with the program's line, for
    mistakes that can be found before a run.
    """
    symbols = {name: symbol(name) for name in missing}
    recorded = _record_call(function, {**arguments, **symbols}, missing, defaults)
    if missing:
        odd = {name: odd_symbol(name) for name in missing}
        other = _record_call(function, {**arguments, **odd}, missing, defaults, stops_at_errors=True)
        recorded = _up_to_difference(recorded, other, missing)
    check_recorded([log for _, log in recorded.logs], is_whole=recorded.stops_at is None)
    texts = {name: value for name, value in arguments.items() if isinstance(value, str) and name not in constants}
    if texts:
        try:
            abstract = _record_call(
                function, {**arguments, **symbols, **{n: symbol(n) for n in texts}}, missing, defaults
            )
        except Exception:
            return recorded  # the function inspects a value, and fails on its symbol
        if _agree(abstract, recorded, texts):
            return abstract
    return recorded


def blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the twin of a coroutine function for code outside event loops; its name lacks the `a` at the beginning."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_coroutine(function(*args, **kwargs))

    run.__name__ = run.__qualname__ = function.__name__.removeprefix("a")
    return run


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, run in a thread if an event loop runs already. Raises its exception."""
    import asyncio

    if running_loop() is None:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()


def _record_call(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    missing: frozenset[str],
    defaults: Defaults,
    *,
    stops_at_errors: bool = False,
) -> RecordedCall:
    execution = Execution(NullChannel(), deferred=True, may_wait=False)
    state = ProgramState(StateHandle.open(execution), defaults=defaults)
    stops_at: str | None = None
    argument_needed: str | None = None
    try:
        with FunctionBody(state):
            result = function(state, **arguments)
            if inspect.iscoroutine(result):
                run_coroutine(result)
    except ValueNeeded as needed:
        stops_at = needed.location
        argument_needed = needed.name if isinstance(needed, ArgumentNeeded) else None
    except Exception as error:
        if not stops_at_errors:
            _raise_mistake(error, missing)
        stops_at = traceback_location(error.__traceback__)
    return RecordedCall(list(execution.attached), execution.kept_messages, stops_at, argument_needed)


def _raise_mistake(error: Exception, missing: frozenset[str]) -> NoReturn:
    """Raise the error of a program that is planned, with the program's line."""
    location = traceback_location(error.__traceback__)
    if isinstance(error, UndefinedVariable):
        raise RequestError(f"{location}: {error.args[0]}", param=error.name, code="invalid_program") from None
    if isinstance(error, RamiformError) or not missing:
        raise error
    raise RequestError(
        f"{location}: {type(error).__name__}: {error}; the program looks into an argument: give an example of "
        f"{', '.join(sorted(missing))}",
        code="invalid_program",
    ) from error


def _agree(abstract: RecordedCall, concrete: RecordedCall, values: Mapping[str, str]) -> bool:
    if abstract.stops_at != concrete.stops_at or len(abstract.logs) != len(concrete.logs):
        return False
    return all(
        [substituted(operation, lambda text: with_values(text, values)) for operation in a.operations]
        == [substituted(operation, str) for operation in b.operations]
        and (a.locations, a.names) == (b.locations, b.names)
        for (_, a), (_, b) in zip(abstract.logs, concrete.logs, strict=True)
    )


def _up_to_difference(recorded: RecordedCall, other: RecordedCall, missing: frozenset[str]) -> RecordedCall:
    """Cut a call at the first message that differs from that of the call with the odd symbols."""

    def usual(text: str) -> str:
        for name in missing:
            text = as_symbol(text, name)
        return text

    def content(message: session.Open | session.Append, log: OperationLog, rewrite: Callable[[str], str]) -> Any:
        if isinstance(message, session.Open):
            return message.state
        end = message.first + len(message.operations)
        operations = [substituted(operation, rewrite) for operation in message.operations]
        return message.state, operations, log.locations[message.first : end]

    ours = [content(message, log, str) for message, log in recorded.messages]
    theirs = [content(message, log, usual) for message, log in other.messages]
    same = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    cut = min(len(ours), len(theirs)) if same is None else same
    if cut == len(ours) == len(theirs) and recorded.stops_at == other.stops_at:
        return recorded

    def location(call: RecordedCall) -> str | None:
        if cut == len(call.messages):
            return call.stops_at
        message, log = call.messages[cut]
        return log.locations[message.first] if isinstance(message, session.Append) else None

    at = location(recorded) or location(other)
    if cut == len(theirs) < len(ours):  # the other call has ended here
        at = other.stops_at or at
    return replace(_cut(recorded, cut), stops_at=at, argument_needed=" or ".join(sorted(missing)))


def _cut(call: RecordedCall, num_messages: int) -> RecordedCall:
    """Return the call with its first messages only."""
    kept = call.messages[:num_messages]
    lengths: dict[int, int] = {}
    states = {message.state for message, _ in kept if isinstance(message, session.Open)}
    for message, log in kept:
        if isinstance(message, session.Append):
            lengths[id(log)] = message.first + len(message.operations)
            forks = (operation for operation in message.operations if isinstance(operation, session.Fork))
            states.update(child for fork in forks for child in fork.children)
    for _, log in call.logs:
        end = lengths.get(id(log), 0)
        if end < len(log.operations):
            del log.operations[end:], log.locations[end:]
            log.names = {op: name for op, name in log.names.items() if op < end}
            log.ties = [tie for tie in log.ties if tie.before < end]
    return replace(call, logs=[(number, log) for number, log in call.logs if number in states], messages=kept)
