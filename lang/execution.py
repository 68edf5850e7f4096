"""One run of a program, as all its states share it: where its messages go, when, and how it ends.

Knows messages, logs and the channel; knows no expressions and no variables.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from ..runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..runtime.protocol.session import Append, Budget, Close, Open, Play, Supply
from .backend import Channel
from .operation_log import OperationLog
from .recording import Recording
from .source_location import program_location, with_location

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task


class ValueNeeded(BaseException):
    """The program needs a value that only a run can give, at this place; not an Exception, so that it catches none."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class Execution:
    """`deferred`: keep what is said until `flush`, which sends it as one message; the first wait flushes too.

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
    ) -> None:
        self.loop: AbstractEventLoop | None = None  # of an async program: nothing may block it
        self.may_wait = may_wait
        self.attached: list[tuple[int, OperationLog]] = []  # in order; forgotten once sent
        self.recording = recording
        self._channel = channel
        self._budget = budget
        self._program: int | None = None
        self._kept: list[tuple[Open | Append, OperationLog]] | None = [] if deferred else None
        self._saying = threading.RLock()  # guards `_kept`: threads of a program may speak while another one flushes
        self._detached: list[int] = []
        self._logs: weakref.WeakSet[OperationLog] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._tasks: set[Task[None]] = set()

    @property
    def sent_nothing(self) -> bool:
        return self._kept is not None

    def attach(self, log: OperationLog) -> int:
        number = self._channel.attach(log)
        with self._lock:
            self._logs.add(log)
        if self.recording is not None:
            self.recording.add(number, log)
        if self._kept is not None:
            self.attached.append((number, log))
        return number

    def detach(self, number: int) -> None:
        """Forget a state. Never raises and takes no lock: garbage collection may call it."""
        self._detached.append(number)
        if self._kept is None:  # else: after what is kept, which may need it
            self._let_go()

    def open(self, number: int, log: OperationLog) -> None:
        """The state that begins the program, which takes its number."""
        self._program = number
        self._say(Open(number, number, self._budget), log)

    def append(self, message: Append, log: OperationLog) -> None:
        """Raises RamiformError when it cannot be sent."""
        self._say(message, log)

    def supply(self, message: Supply) -> None:
        """Answer an Ask, if there is still somebody to answer. Never raises RamiformError."""
        try:
            self._channel.send(message)
        except RequestError as error:  # the text cannot be sent; why not can
            with contextlib.suppress(RamiformError):
                self._channel.send(Supply(state=message.state, op=message.op, error=ErrorInfo.of(error)))
        except RamiformError:
            return  # the runtime is gone, as every reader is told

    def flush(self, complete: bool = False) -> None:
        """Send what is kept; from here on everything goes at once. `complete`: the program has ended.

        Raises RamiformError, with the program's line, when it cannot be sent.
        """
        with self._saying:
            if self._kept is None:
                return
            try:
                self._channel.send(Play([message for message, _ in self._kept], complete))
            except RequestError:
                for message, log in self._kept:  # which one it is
                    self._send_blaming(message, log)
            self._kept = None
        self.attached.clear()
        self._let_go()

    def about_to_wait(self, blocking: bool) -> None:
        """Raises `ValueNeeded` where waiting is not allowed, RequestError where it would block the program's event loop."""
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
        """A task on the program's loop, which ends with the run at the latest. Call on the loop."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, why: ErrorInfo) -> None:
        """End the run: what its states still do is aborted, what is not answered fails. Calling it again does
        nothing."""
        with self._saying:
            if self._kept is None and self._program is not None:
                with contextlib.suppress(RamiformError):
                    self._channel.send(Close((), (self._program,)))
            self._kept = None
        self.attached.clear()
        self._let_go()
        with self._lock:
            logs = list(self._logs)
        for log in logs:
            log.fail(why)
        if self.loop is not None:
            for task in self._tasks:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
                    self.loop.call_soon_threadsafe(task.cancel)

    def _say(self, message: Open | Append, log: OperationLog) -> None:
        with self._saying:
            if self._kept is None:
                self._channel.send(message)
            else:
                self._kept.append((message, log))

    def _let_go(self) -> None:
        while self._detached:
            try:
                number = self._detached.pop()
            except IndexError:  # somebody else was faster
                return
            self._channel.detach(number)

    def _send_blaming(self, message: Open | Append, log: OperationLog) -> None:
        try:
            self._channel.send(message)
        except RamiformError as error:
            place = log.places[message.first] if isinstance(message, Append) else program_location()
            raise with_location(ErrorInfo.of(error), place).to_exception() from None


def _running_loop() -> AbstractEventLoop | None:
    import asyncio  # who has a loop has it loaded

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
