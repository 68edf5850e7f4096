"""Running one call of a program to its end: in a thread, in an event loop, or recorded and sent as one message."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ...runtime.protocol import session
from ...runtime.protocol.errors import RamiformError, RequestError
from ...runtime.protocol.session import Budget
from ..backends.backend import Backend, Channel, channel_of
from ..expressions.format_marks import refuse_marks
from ..expressions.lowering import Defaults
from ..operations.execution import Execution, ValueNeeded, running_loop
from ..operations.hooks import Hook
from ..operations.recording import Recording, is_recording_all
from ..operations.source_location import definition_line, traceback_location
from ..operations.state_handle import StateHandle
from ..states.state import CalledPart, FunctionBody, ProgramState
from .failures import describe, is_ours, is_plumbing
from .planning import check_recorded

if TYPE_CHECKING:
    from ..storage.resume import CheckpointItem

MAX_THREADS = 128  # for sync programs that event loops run


class Begun(NamedTuple):
    """A recorded call of a batch: its state, the text that this begins with, and functions that send it and wait for
    its end."""

    state: ProgramState
    opening: str
    send: Callable[[], None]
    finish: Callable[[], None]


class ProgramCall(msgspec.Struct, frozen=True):
    """A call of a program with all its arguments.

    `compiled`: its messages are kept until the first read. `is_whole`: the example it was compiled with never read.
    With `caller` it is made by the function of that state's program, as its call `number`, and is a part of that run.
    """

    function: Callable[..., Any]
    is_async: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    defaults: Defaults
    budget: Budget | None = None
    compiled: bool = False
    is_whole: bool = False
    traced: bool = False
    checkpoint: CheckpointItem | None = None
    called_at: float | None = None  # `time.perf_counter()` of the call; None: when its state is opened
    caller: ProgramState | None = None
    number: int = 0
    place: str = ""  # file:line of a call that has a caller
    hooks: tuple[Hook, ...] = ()
    keeps_states: bool = False  # all states of the run are held, for those who read their tokens

    @property
    def may_be_sent_whole(self) -> bool:
        """Return whether the call may be recorded to its end and sent as one message."""
        return self.is_whole and self.caller is None

    def key(self) -> str:
        """Return what a checkpoint knows of a call that another program makes."""
        from ..storage.resume import digest

        return f"{self.function.__qualname__}:{digest(self.args, self.kwargs)}"

    def apply(self, state: ProgramState) -> Any:
        """Call the program's function; the state has what it returns, unless it is async."""
        with FunctionBody(state):
            state.ret_value = value = self.function(state, *self.args, **self.kwargs)
            refuse_marks("return", value, depth=0)
        return value

    def describe(self, error: BaseException, state: ProgramState | None) -> None:
        """Describe an exception that ends the program, as `failures.describe`. A cancellation stays as it is."""
        if isinstance(error, Exception | KeyboardInterrupt):
            bound = list(inspect.signature(self.function).bind(None, *self.args, **self.kwargs).arguments.items())
            describe(error, state, self.function.__name__, definition_line(self.function), dict(bound[1:]))


def kept(calls: list[ProgramCall], path: str | os.PathLike[str] | None) -> list[ProgramCall]:
    """Return the calls of one program with their items of a checkpoint file, if there is one."""
    if path is None or not calls:
        return calls
    from ..storage.resume import checkpointed

    items = checkpointed(path, calls[0].function.__qualname__, [(call.args, call.kwargs) for call in calls])
    return [replace(call, checkpoint=item) for call, item in zip(calls, items, strict=True)]


def channel_for(caller: ProgramState | None, backend: Backend | None) -> Channel:
    """Return the channel of a caller's run, or of the backend, or of the default one."""
    return channel_of(backend) if caller is None else caller._opened_caller._handle.execution.channel


def new_state(channel: Channel, call: ProgramCall, *, stream: bool = False) -> ProgramState:
    """Open the state of a run; with `stream` its messages are sent at once."""
    if call.caller is not None:
        return _part_of_run(call.caller, call)
    recording = Recording(call.function.__name__, call.called_at) if call.traced or is_recording_all() else None
    kept = None if call.checkpoint is None else call.checkpoint.channel(channel)
    asked = channel if kept is None else kept
    execution = Execution(
        asked,
        budget=call.budget,
        # A backend that checks operations gets none before those up to the first read are checked.
        deferred=(call.compiled or getattr(asked, "check", None) is not None) and not stream,
        recording=recording,
        keep_callback=None if kept is None else kept.kept_callback,
        title=call.function.__name__,
    )
    execution.hooks = call.hooks
    if stream:
        execution.kept_logs = {}
    if call.keeps_states:
        execution.kept_states = []
    try:
        return ProgramState(StateHandle.open(execution), defaults=call.defaults, stream=stream)
    except Exception as error:
        call.describe(error, None)
        raise


def _part_of_run(caller: ProgramState, call: ProgramCall) -> ProgramState:
    try:
        place = definition_line(call.function) if is_plumbing(call.place) else call.place
        began = time.perf_counter()
        opening = CalledPart(caller, call.function.__name__, place, call.key, began, call.budget, call.compiled)
        is_lazy = not (call.is_async or call.compiled or call.budget is not None)
        return caller._open_part(opening, call.number, call.defaults, is_lazy=is_lazy)
    except Exception as error:
        call.describe(error, None)
        raise


def run(state: ProgramState, call: ProgramCall) -> None:
    """Run the program to its last answer. An exception ends it in the runtime too."""
    with AbandonedOnError(state, call):
        run_body(state, call)


def run_in_background(state: ProgramState, call: ProgramCall, *, in_loop: bool) -> ProgramState:
    """Begin to run the program in a task of the running event loop, else in a thread of its own.

    Returns the state for its reader: the program ends once that object is gone.
    """
    background = state._in_background(lambda error: call.describe(error, state))
    if in_loop:
        background.in_loop(run_body_async(state, call))
    else:
        background.in_thread(functools.partial(run_body, state, call))
    return state._readers_own()


def run_body(state: ProgramState, call: ProgramCall) -> None:
    """Run the program to its last answer; the caller must abandon the state on an exception."""
    if call.is_async:
        _run_coroutine(run_body_async(state, call))
        return
    call.apply(state)
    if not state._is_open:
        return
    state._handle.execution.note_end()
    _send(state._handle.execution, call)
    state._finish()


async def run_body_async(state: ProgramState, call: ProgramCall) -> None:
    """Run an async program to its last answer in the running loop, as `run_body` does."""
    import asyncio

    state._handle.execution.loop = asyncio.get_running_loop()
    seconds = None if call.budget is None else call.budget.seconds
    try:
        async with asyncio.timeout(seconds) as limit:
            with FunctionBody(state):
                state.ret_value = await call.apply(state)
                refuse_marks("return", state.ret_value, depth=0)
            state._handle.execution.note_end()
            _send(state._handle.execution, call)
            await state._finish_async()
    except TimeoutError as error:
        if not limit.expired():
            raise
        where = "" if error.__cause__ is None else traceback_location(error.__cause__.__traceback__, outermost=True)
        message = f"the program did not end within its {seconds:g} s (timeout)"
        refusal = RequestError(": ".join(filter(None, (where, message))), param="timeout", code="timeout")
        refusal.line = where or None
        raise refusal from None


async def run_async(channel: Channel, call: ProgramCall) -> ProgramState:
    """Run a call to its end in the running loop; a sync program that is not compiled to its end gets a thread."""
    if call.is_async:
        state = new_state(channel, call)
        with AbandonedOnError(state, call):
            await run_body_async(state, call)
        return state
    if call.may_be_sent_whole and (recorded := record(channel, call)) is not None:
        send_recorded(recorded, call)
        with AbandonedOnError(recorded, call):
            await recorded._finish_async()
        return recorded
    state = new_state(channel, call)
    if state._handle.execution.only_records:
        run(state, call)
        return state
    return await _run_in_thread(state, call)


def record(channel: Channel, call: ProgramCall) -> ProgramState | None:
    """Call the function and keep its operations for `send_recorded`. Returns None if it reads a generated value."""
    state = new_state(channel, call)
    execution = state._handle.execution
    execution.may_wait = False
    try:
        call.apply(state)
    except ValueNeeded as needed:
        state._abandon(needed)
        if execution.recording is not None:
            execution.recording.discard()  # nothing was sent; the program runs again from the beginning
        return None
    except BaseException as error:
        state._abandon(error)
        call.describe(error, state)
        raise
    execution.may_wait = True
    return state


def send_recorded(state: ProgramState, call: ProgramCall) -> None:
    """Send the operations that `record` has kept, as one message."""
    with AbandonedOnError(state, call):
        _send(state._handle.execution, call)


def run_now(call: ProgramCall) -> ProgramState:
    """Run a call that another program makes to its end; return its state."""
    assert call.caller is not None
    state = _part_of_run(call.caller, call)
    if not call.is_async and not (state._is_open and state._handle.execution.only_records):
        warn_if_loop_runs(call.function.__name__)
    run(state, call)
    return state


def begin(channel: Channel, call: ProgramCall) -> tuple[ProgramState, Callable[[], None]]:
    """Return a new state, and a function that runs the program on it."""
    state = new_state(channel, call)
    return state, functools.partial(run, state, call)


def begin_recorded(channel: Channel, call: ProgramCall) -> Begun:
    """Record a call that is sent whole, or is run if its arguments make it read a generated value."""
    state = record(channel, call)
    if state is None:
        state, run_to_end = begin(channel, call)
        return Begun(state, "", lambda: None, run_to_end)
    send, finish = (functools.partial(each, state, call) for each in (send_recorded, _finish))
    return Begun(state, _opening(state._handle.log.operations), send, finish)


def _opening(operations: Iterable[session.Operation]) -> str:
    """Return the text that a state begins with, before anything is generated; roles count as text."""
    texts = []
    for operation in operations:
        match operation:
            case session.Text(text=text):
                texts.append(text)
            case session.RoleBegin() | session.RoleEnd():
                texts.append(f"\0{operation}\0")
            case _:
                break
    return "".join(texts)


async def _run_in_thread(state: ProgramState, call: ProgramCall) -> ProgramState:
    import asyncio

    running = asyncio.get_running_loop().run_in_executor(_threads(), run, state, call)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError as cancelled:
        state._abandon(cancelled)  # its thread stops at the next wait
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
    return state


def _send(execution: Execution, call: ProgramCall) -> None:
    """Send the messages kept so far, after the end of the function; those of a compiled program are checked before."""
    if execution.sent_nothing:
        if call.compiled:
            check_recorded([log for _, log in execution.attached])
        execution.flush(complete=True)


def _finish(state: ProgramState, call: ProgramCall) -> None:
    with AbandonedOnError(state, call):
        state._finish()


class AbandonedOnError:
    """Context manager that abandons the state and describes the exception if its block raises.

    Not a generator with `contextmanager`, which sets the exception's traceback: a frozen one refuses that.
    """

    def __init__(self, state: ProgramState, call: ProgramCall) -> None:
        self.state = state
        self.call = call

    def __enter__(self) -> None:
        """Nothing is acquired."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        state: ProgramState | None = self.state
        try:
            self.state._abandon(error)
        except RamiformError:  # it has never begun, and the run has ended
            state = None
        self.call.describe(error, state)


def _run_coroutine(coroutine: Coroutine[Any, Any, None]) -> None:
    import asyncio

    if running_loop() is None:
        asyncio.run(coroutine)
        return
    coroutine.close()
    raise RequestError("an event loop runs here: run an async program with `await program.arun(...)`")


def warn_if_loop_runs(name: str, instead: str | None = None) -> None:
    """Warn that the program blocks the event loop that runs in this thread, once for each line that runs it so.

    `instead`: the method that does not. None: it is called as a function.
    """
    # In a notebook every cell runs in the loop, and blocking it is what running a cell does.
    if running_loop() is None or "ipykernel" in sys.modules:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and is_ours(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    way = f"asyncio.to_thread({name}, ...)" if instead is None else f"{name}.{instead}"
    message = f"the program {name!r} blocks the event loop that runs here: use `await {way}`"
    warnings.warn(message, RuntimeWarning, stacklevel=level)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ramiform-program")
