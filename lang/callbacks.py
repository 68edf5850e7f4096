"""Calling a program's own functions, tools and choices methods, for the text that the runtime asks for.

The runtime stops a state at an `Ask`. Once the operation before it is answered, the function is called with the answer,
in a thread or in the program's event loop, and its text is supplied.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from ..runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..runtime.protocol.session import Done, Supply
from .execution import Execution
from .operation_log import OperationLog

MAX_THREADS = 32  # functions that run at the same time in the whole process; more wait

Callback = Callable[[Done], str | Coroutine[Any, Any, str]]  # the answer of an operation -> the text to append


def ask_when_answered(execution: Execution, state: int, log: OperationLog, operation: int, callback: Callback) -> None:
    """Call back with the answer to `operation`, and supply the Ask that follows it. Its exception fails the state."""

    def answered() -> None:
        if len(log.done) <= operation:
            return  # the operation failed, and the Ask with it
        done = log.done[operation]
        with contextlib.suppress(RuntimeError):  # the loop or the interpreter has ended, so nothing waits for the text
            if execution.loop is not None:
                execution.loop.call_soon_threadsafe(_start, execution, state, operation, callback, done)
            else:
                _threads().submit(_call, execution, state, operation, callback, done)

    log.when(operation + 1, answered)


def _call(execution: Execution, state: int, operation: int, callback: Callback, done: Done) -> None:
    try:
        text = callback(done)
        if inspect.isawaitable(text):
            import asyncio

            text = asyncio.run(_awaited(text))
    except BaseException as error:
        _fail(execution, state, operation, error)
    else:
        execution.supply(Supply(state=state, op=operation + 1, text=text))


def _start(execution: Execution, state: int, operation: int, callback: Callback, done: Done) -> None:
    """Call back on the loop of an async program; a function that is not async gets a thread, since it may block."""
    import asyncio

    async def call() -> None:
        try:
            text = await asyncio.wrap_future(_threads().submit(callback, done))
            if inspect.isawaitable(text):
                text = await text
        except BaseException as error:
            _fail(execution, state, operation, error)
            if not isinstance(error, Exception):
                raise
        else:
            execution.supply(Supply(state=state, op=operation + 1, text=text))

    execution.keep(asyncio.get_running_loop().create_task(call()))


async def _awaited(text: Coroutine[Any, Any, str]) -> str:
    return await text


def _fail(execution: Execution, state: int, operation: int, error: BaseException) -> None:
    execution.note_cause(state, error)
    if not isinstance(error, RamiformError):
        error = RequestError(f"{type(error).__name__}: {error}", code="function_failed")
    execution.supply(Supply(state=state, op=operation + 1, error=ErrorInfo.of(error)))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ramiform-function")
