"""One call of a program brought to its end: played here, in an event loop, or recorded and sent as one message.

Knows functions, states and how they end; knows nothing of programs' signatures, and no batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.session import Budget
from .backend import Channel
from .execution import Execution, ValueNeeded
from .lowering import Defaults
from .planning import check_recorded
from .recording import Recording, is_recording_all
from .source_location import traceback_location
from .state import ProgramState
from .state_handle import StateHandle

MAX_THREADS = 128  # of sync programs that event loops run


@dataclass(frozen=True)
class ProgramCall:
    """A run, said and not begun. `compiled`: it is sent when it first reads; `is_whole`: its example never did."""

    function: Callable[..., Any]
    is_async: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    defaults: Defaults
    budget: Budget | None = None
    compiled: bool = False
    is_whole: bool = False
    traced: bool = False

    def apply(self, state: ProgramState) -> Any:
        return self.function(state, *self.args, **self.kwargs)


def new_state(channel: Channel, call: ProgramCall, *, stream: bool = False) -> ProgramState:
    """A streamed one is sent as it is said."""
    recording = Recording(call.function.__name__) if call.traced or is_recording_all() else None
    execution = Execution(channel, budget=call.budget, deferred=call.compiled and not stream, recording=recording)
    return ProgramState(StateHandle.open(execution), defaults=call.defaults, stream=stream)


def play(state: ProgramState, call: ProgramCall) -> None:
    """The program from its first line to its last answer. Raising ends it in the runtime too."""
    _guarded(state, functools.partial(body, state, call))


def body(state: ProgramState, call: ProgramCall) -> None:
    """`play` for who ends it himself when it raises."""
    if call.is_async:
        _run_coroutine(body_async(state, call))
        return
    state.ret_value = call.apply(state)
    _send(state._recorder.execution)
    state._finish()


async def body_async(state: ProgramState, call: ProgramCall) -> None:
    """The same of an async program, in the running loop."""
    import asyncio

    state._recorder.execution.loop = asyncio.get_running_loop()
    seconds = None if call.budget is None else call.budget.seconds
    try:
        async with asyncio.timeout(seconds) as limit:
            state.ret_value = await call.apply(state)
            _send(state._recorder.execution)
            await state._finish_async()
    except TimeoutError as error:
        if not limit.expired():
            raise
        where = "" if error.__cause__ is None else traceback_location(error.__cause__.__traceback__, outermost=True)
        message = f"the program did not end within its {seconds:g} s (timeout)"
        raise RequestError(": ".join(filter(None, (where, message))), param="timeout", code="timeout") from None


async def run_async(channel: Channel, call: ProgramCall) -> ProgramState:
    """To the end, in the running loop; a sync program that is not compiled to its end gets a thread."""
    if call.is_async:
        state = new_state(channel, call)
        await _guarded_async(state, functools.partial(body_async, state, call))
        return state
    if call.is_whole and (recorded := record(channel, call)) is not None:
        await _guarded_async(recorded, recorded._finish_async)
        return recorded
    return await _run_in_thread(new_state(channel, call), call)


def record(channel: Channel, call: ProgramCall) -> ProgramState | None:
    """Call the function and send what it does. None, and nothing was sent, when it needs a generated value."""
    state = new_state(channel, call)
    execution = state._recorder.execution
    execution.may_wait = False
    try:
        state.ret_value = call.apply(state)
    except ValueNeeded as wait:
        state._abandon(wait)
        if execution.recording is not None:
            execution.recording.discard()  # nothing of it was sent; it is played from the beginning
        return None
    except BaseException as error:
        state._abandon(error)
        raise
    execution.may_wait = True
    _guarded(state, functools.partial(_send, execution))
    return state


def begin(channel: Channel, call: ProgramCall) -> tuple[ProgramState, Callable[[], None]]:
    """A state, and what plays it."""
    state = new_state(channel, call)
    return state, functools.partial(play, state, call)


def begin_recorded(channel: Channel, call: ProgramCall) -> tuple[ProgramState, Callable[[], None]]:
    """A state that runs already, and what waits for its end; played there when its arguments lead where it reads."""
    state = record(channel, call)
    return begin(channel, call) if state is None else (state, functools.partial(_guarded, state, state._finish))


async def _run_in_thread(state: ProgramState, call: ProgramCall) -> ProgramState:
    import asyncio

    playing = asyncio.get_running_loop().run_in_executor(_threads(), play, state, call)
    try:
        await asyncio.shield(playing)
    except asyncio.CancelledError as cancelled:
        state._abandon(cancelled)  # whatever its thread waits for fails
        playing.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
    return state


def _send(execution: Execution) -> None:
    """At the end of a function: what it has said and not sent is all that it says."""
    if execution.sent_nothing:
        check_recorded([log for _, log in execution.attached])
        execution.flush(complete=True)


def _guarded(state: ProgramState, run: Callable[[], None]) -> None:
    try:
        run()
    except BaseException as error:
        state._abandon(error)
        raise


async def _guarded_async(state: ProgramState, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await run()
    except BaseException as error:
        state._abandon(error)
        raise


def _run_coroutine(coroutine: Coroutine[Any, Any, None]) -> None:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(coroutine)
        return
    coroutine.close()
    raise RequestError("an event loop runs here: run an async program with `await program.arun(...)`")


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ramiform-program")
