"""One run of a program, shared by all its states: sends their messages, now or together, and ends the run."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..runtime.protocol.session import Append, Budget, Close, Open, Play, Supply
from .backend import Channel
from .operation_log import OperationLog
from .source_location import program_location, with_location
from .tracing.recording import Recording

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task


class ValueNeeded(BaseException):
    """The program reads a generated value while it is only recorded, at this `file:line`.

    Not an Exception, so that the program's `except Exception` does not catch it.
    """

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


class Execution:
    """The messages of a run. `deferred`: keep them until `flush`, or the first wait, sends them as one message.

    Without `may_wait` a wait raises `ValueNeeded` instead, and nothing has been sent.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        budget: Budget | None = None,
        deferred: bool = False,
        may_wait: bool = True,
        recording: Recording | None = None,
        keep_callback: Callable[[int, Any], Any] | None = None,
    ) -> None:
        self.loop: AbstractEventLoop | None = None  # the loop of an async program, which nothing may block
        self.may_wait = may_wait
        self.attached: list[tuple[int, OperationLog]] = []  # the states whose messages are kept, in order
        self.recording = recording
        self._channel = channel
        self._keep_callback = keep_callback
        self._budget = budget
        self._program: int | None = None
        self._deferred: list[tuple[Open | Append, OperationLog]] | None = [] if deferred else None
        self._sending = threading.RLock()  # guards `_deferred`: one thread may append while another one flushes
        self._detached: list[int] = []
        self._logs: weakref.WeakSet[OperationLog] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._tasks: set[Task[None]] = set()

    @property
    def sent_nothing(self) -> bool:
        """Return whether all messages so far are still kept."""
        return self._deferred is not None

    @property
    def kept_messages(self) -> list[tuple[Open | Append, OperationLog]]:
        """Return the messages that are still kept, in order, each with its state's log."""
        return list(self._deferred or ())

    def attach(self, log: OperationLog) -> int:
        """Register a new state's log; return the state's number."""
        number = self._channel.attach(log)
        with self._lock:
            self._logs.add(log)
        if self.recording is not None:
            self.recording.add(number, log)
        if self._deferred is not None:
            self.attached.append((number, log))
        return number

    def detach(self, number: int) -> None:
        """Forget a state. Never raises and takes no lock, since the garbage collector may call it."""
        self._detached.append(number)
        if self._deferred is None:  # else once the kept messages, which may refer to it, are sent
            self._forget_detached()

    def open(self, number: int, log: OperationLog) -> None:
        """Open the program's first state; the program has the state's number."""
        self._program = number
        self._send(Open(number, number, self._budget), log)

    def append(self, message: Append, log: OperationLog) -> None:
        """Send operations, or keep them. Raises RamiformError if they cannot be sent."""
        self._send(message, log)

    def supply(self, message: Supply) -> None:
        """Answer an Ask, if the runtime is still there. Never raises RamiformError."""
        try:
            self._channel.send(message)
        except RequestError as error:  # the text cannot be sent, but the reason can
            with contextlib.suppress(RamiformError):
                self._channel.send(Supply(state=message.state, op=message.op, error=ErrorInfo.of(error)))
        except RamiformError:
            return  # the runtime is gone, which every reader learns from its log

    def kept_callback(self, state: int, callback: Any) -> Any:
        """Return the callback of an Ask, which with a checkpoint does not call a tool again."""
        return callback if self._keep_callback is None else self._keep_callback(state, callback)

    def flush(self, complete: bool = False) -> None:
        """Send the kept messages as one; later ones are sent at once. `complete`: the program has ended.

        Raises RamiformError, with the program's line, if they cannot be sent.
        """
        with self._sending:
            if self._deferred is None:
                return
            try:
                self._channel.send(Play([message for message, _ in self._deferred], complete))
            except RequestError:
                for message, log in self._deferred:  # one by one, to find the message at fault
                    self._send_alone(message, log)
            self._deferred = None
            if self.recording is not None:
                self.recording.note_sent()
        self.attached.clear()
        self._forget_detached()

    def about_to_wait(self, blocking: bool) -> None:
        """Flush before a wait.

        Raises ValueNeeded where the program may not wait, RequestError where it would block its own event loop.
        """
        if not self.may_wait:
            raise ValueNeeded(program_location())
        self.flush()
        if blocking and self.loop is not None and _running_loop() is self.loop:
            raise RequestError(
                f"{program_location()}: reading waits, and would block the event loop of an async program; "
                "use `await s.get(name)`, `await s.wait()` or `async for ... in s.text_async_iter()` first",
                code="would_block",
            )

    def keep(self, task: Task[None]) -> None:
        """Hold a task of the program's loop, and cancel it when the run ends. Call on the loop."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, error: ErrorInfo) -> None:
        """End the run: abort its states' work and fail the operations without an answer. Idempotent."""
        with self._sending:
            if self._deferred is None and self._program is not None:
                with contextlib.suppress(RamiformError):
                    self._channel.send(Close((), (self._program,)))
            self._deferred = None
        self.attached.clear()
        self._forget_detached()
        with self._lock:
            logs = list(self._logs)
        for log in logs:
            log.fail(error)
        if self.loop is not None:
            for task in self._tasks:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
                    self.loop.call_soon_threadsafe(task.cancel)

    def _send(self, message: Open | Append, log: OperationLog) -> None:
        with self._sending:
            if self._deferred is None:
                self._channel.send(message)
            else:
                self._deferred.append((message, log))

    def _forget_detached(self) -> None:
        while self._detached:
            try:
                number = self._detached.pop()
            except IndexError:  # another thread took it
                return
            self._channel.detach(number)

    def _send_alone(self, message: Open | Append, log: OperationLog) -> None:
        try:
            self._channel.send(message)
        except RamiformError as error:
            location = log.locations[message.first] if isinstance(message, Append) else program_location()
            raise with_location(ErrorInfo.of(error), location).to_exception() from None


def _running_loop() -> AbstractEventLoop | None:
    import asyncio  # loaded already where there is a loop

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
