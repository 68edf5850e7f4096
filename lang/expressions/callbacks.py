"""Calling a program's own functions for what the runtime asks: tools, choices methods, and checks of generated values.

The runtime stops a state at an `Ask`. Once the operation before it is answered, the function is called with the answer,
in a thread or in the program's event loop, and its text is supplied. A checked Gen stops at each of its attempts.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ...runtime.protocol.session import Attempted, Done, Retry, Supply
from ..operations.execution import Execution
from ..operations.operation_log import OperationLog
from .format_marks import refuse_marks

MAX_FUNCTIONS = 32  # that run at the same time in the whole process; more wait

Callback = Callable[[Done], str | Coroutine[Any, Any, str]]  # the answer of an operation -> the text to append
# An attempt of a checked Gen -> a text if it is accepted, else the next attempt.
AttemptCallback = Callable[[Attempted], str | Retry | Coroutine[Any, Any, str | Retry]]


def ask_when_answered(execution: Execution, state: int, log: OperationLog, operation: int, callback: Callback) -> None:
    """Call back with the answer to `operation`, and supply the Ask that follows it. Its exception fails the state."""
    callback = execution.kept_callback(state, callback)
    context = contextvars.copy_context()

    def answered() -> None:
        if len(log.done) <= operation or operation in log.failed:
            return  # the operation failed, and the Ask with it
        call = partial(context.copy().run, callback, log.done[operation])
        _supply_later(execution, state, operation + 1, call)

    log.when(operation + 1, answered)


def check_attempts(
    execution: Execution, state: int, log: OperationLog, operation: int, callback: AttemptCallback
) -> None:
    """Call back with each attempt of a checked Gen, and supply the verdict. The callback's exception fails the Gen."""

    context = contextvars.copy_context()

    def attempted(message: Attempted) -> None:
        _supply_later(execution, state, operation, partial(context.copy().run, callback, message))

    log.on_attempt(operation, attempted)


def _supply_later(execution: Execution, state: int, operation: int, call: Callable[[], Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop or the interpreter has ended, so nothing waits for the text
        if execution.loop is not None:
            execution.loop.call_soon_threadsafe(_start, execution, state, operation, call)
        else:
            _threads().submit(_call, execution, state, operation, call)


def _call(execution: Execution, state: int, operation: int, call: Callable[[], Any]) -> None:
    try:
        text = call()
        if inspect.isawaitable(text):
            import asyncio

            text = asyncio.run(_awaited(text))
        refuse_marks("result", text)
    except BaseException as error:
        _fail(execution, state, operation, error)
    else:
        execution.supply(_supply_of(state, operation, text))


def _start(execution: Execution, state: int, operation: int, function: Callable[[], Any]) -> None:
    """Call back on the loop of an async program; a function that is not async gets a thread, since it may block."""
    import asyncio

    async def call() -> None:
        try:
            text = await asyncio.wrap_future(_threads().submit(function))
            if inspect.isawaitable(text):
                text = await text
            refuse_marks("result", text)
        except BaseException as error:
            _fail(execution, state, operation, error)
            if not isinstance(error, Exception):
                raise
        else:
            execution.supply(_supply_of(state, operation, text))

    execution.keep(asyncio.get_running_loop().create_task(call()))


async def _awaited(text: Awaitable[Any]) -> Any:
    return await text


def _supply_of(state: int, operation: int, supplied: str | Retry) -> Supply:
    if isinstance(supplied, Retry):
        return Supply(state=state, op=operation, retry=supplied)
    return Supply(state=state, op=operation, text=supplied)


def _fail(execution: Execution, state: int, operation: int, error: BaseException) -> None:
    execution.note_cause(state, error)
    if not isinstance(error, RamiformError):
        error = RequestError(f"{type(error).__name__}: {error}", code="function_failed")
    execution.supply(Supply(state=state, op=operation, error=ErrorInfo.of(error)))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_FUNCTIONS, thread_name_prefix="ramiform-function")
