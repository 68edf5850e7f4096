"""Runs one program for all its states: sends their messages, at once or together, and ends the run."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..backends.backend import Channel
from .operation_log import OperationLog
from .recording import NoteTaker, OperationTimes, Recording, traceparent
from .source_location import program_location, traceback_location, with_location

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task


MAX_KEPT = 10_000  # characters of a text that waits for the operation after it


class ValueNeeded(BaseException):
    """The program reads a generated value while it is only recorded, at this `file:line`.

    Not an Exception, so that the program's `except Exception` does not catch it.
    """

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


class Execution:
    """The messages of a run. `deferred`: keep them until `flush`, or the first wait, sends them as one message.

    Texts of an async program are sent with the operation after them, at the latest at the end of the loop's turn.
    Without `may_wait` a wait raises `ValueNeeded` instead, and nothing has been sent.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        budget: session.Budget | None = None,
        deferred: bool = False,
        may_wait: bool = True,
        recording: Recording | None = None,
        keep_callback: Callable[[int, Any], Any] | None = None,
        title: str | None = None,
    ) -> None:
        self.loop: AbstractEventLoop | None = None  # the loop of an async program, which nothing may block
        self.may_wait = may_wait
        self.attached: list[tuple[int, OperationLog]] = []  # the states whose messages are kept, in order
        self.recording = recording
        self.began = time.perf_counter()
        self.channel = channel
        self.failure: ErrorInfo | None = None  # the exception that ends the program
        self._title = title
        self._notes = NoteTaker() if getattr(channel, "wants_notes", False) else None
        self._keep_callback = keep_callback
        self._budget = budget
        self._program: int | None = None
        self._deferred: list[tuple[session.Open | session.Append, OperationLog]] | None = [] if deferred else None
        self._texts: list[session.Open | session.Append | session.Close] = []  # of an async program
        # Guards `_deferred` and `_texts`: one thread may append while another one flushes.
        self._sending = threading.RLock()
        self._detached: list[int] = []
        self._logs: weakref.WeakValueDictionary[int, OperationLog] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._tasks: set[Task[None]] = set()

    @property
    def sent_nothing(self) -> bool:
        """Return whether all messages so far are still kept."""
        return self._deferred is not None

    @property
    def kept_messages(self) -> list[tuple[session.Open | session.Append, OperationLog]]:
        """Return the messages that are still kept, in order, each with its state's log."""
        return list(self._deferred or ())

    def attach(self, log: OperationLog) -> int:
        """Register a new state's log; return the state's number."""
        number = self.channel.attach(log)
        with self._lock:
            self._logs[number] = log
        log.number = number
        if self.recording is not None:
            self.recording.add(number, log)
        if self._notes is not None:
            log.on_waited.append(self._notes.note_wait)
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
        if self._notes is None:
            self._send(session.Open(number, number, self._budget), log)
        else:
            title = None if self._title is None else self._title[: session.MAX_NOTE]
            self._send(session.Open(number, number, self._budget, title, traceparent()), log)

    def append(self, message: session.Append, log: OperationLog) -> None:
        """Send operations, or keep them. Raises RamiformError if they cannot be sent."""
        self._send(message, log)

    def notes(self, log: OperationLog, location: str, names: Mapping[int, str]) -> list[session.Note]:
        """Return the notes of the log's next operations, for a server that keeps records."""
        return [] if self._notes is None else self._notes.notes(log, len(log.operations), location, names)

    def note_end(self) -> None:
        """Tell a server that keeps records that the program's function has returned."""
        if self.recording is not None:
            self.recording.note_body_end()
        if self._notes is None or self._program is None or (log := self._logs.get(self._program)) is None:
            return
        with log.changed:
            first = len(log.operations)
            message = session.Append(log.number, first, [], self._notes.notes(log, first, "", {}, ended=True))
            with contextlib.suppress(RamiformError):  # the runtime is gone, which the program learns from its log
                self._send(message, log)

    def supply(self, message: session.Supply) -> None:
        """Answer an Ask, if the runtime is still there. Never raises RamiformError."""
        if self._notes is not None and (log := self._logs.get(message.state)) is not None:
            label = log.labels.get(message.op)
            message = message if label is None else replace(message, label=label()[: session.MAX_NOTE])
        try:
            self.channel.send(message)
        except RequestError as error:  # the text cannot be sent, but the reason can
            with contextlib.suppress(RamiformError):
                self.channel.send(session.Supply(state=message.state, op=message.op, error=ErrorInfo.of(error)))
        except RamiformError:
            return  # the runtime is gone, which every reader learns from its log

    @property
    def has_checkpoint(self) -> bool:
        """Return whether a checkpoint may hold the results of tools."""
        return self._keep_callback is not None

    def kept_callback(self, state: int, callback: Any) -> Any:
        """Return the callback of an Ask; with a checkpoint it makes no tool call that the checkpoint holds."""
        return callback if self._keep_callback is None else self._keep_callback(state, callback)

    def flush(self, complete: bool = False) -> None:
        """Send the kept messages as one; later ones are sent at once. `complete`: the program has ended.

        Raises RamiformError, with the program's line, if they cannot be sent.
        """
        with self._sending:
            if self._deferred is None:
                self._send_texts()
                return
            try:
                self.channel.send(session.Play([message for message, _ in self._deferred], complete))
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

    def note_failure(self, error: BaseException) -> None:
        """Note the exception that ends the program, for a server that keeps records."""
        if self._notes is not None:
            told = ErrorInfo.of(error)
            line = told.line or getattr(error, "line", None) or traceback_location(error.__traceback__)
            self.failure = replace(told, message=told.message[: session.MAX_NOTE], line=line or None)

    def note_cause(self, state: int, error: BaseException) -> None:
        """Note the exception of a function of the program's own that fails a state: the cause of the state's error."""
        if (log := self._logs.get(state)) is not None:
            log.cause = error

    def recorded(self, title: str) -> Recording:
        """Return the recording of the run, or one of the states that are still held if it is not recorded."""
        if self.recording is not None:
            return self.recording
        recording = Recording(title)
        recording.began_at -= time.perf_counter() - self.began
        with self._lock:
            logs = dict(sorted(self._logs.items()))
        for log in list(logs.values()):
            forked = [one.children for one in list(log.operations) if isinstance(one, session.Fork)]
            for child in (child for children in forked for child in children):
                logs.setdefault(child, OperationLog())  # of a branch that is not held any more
        for number, log in logs.items():
            recording.logs.append((number, log))
            recorded, answered = ([one - self.began for one in list(t)] for t in (log.recorded_at, log.answered_at))
            recording.times.append(OperationTimes(recorded, answered))
        return recording

    def keep(self, task: Task[None]) -> None:
        """Hold a task of the program's loop, and cancel it when the run ends. Call on the loop."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, error: ErrorInfo) -> None:
        """End the run: abort its states' work and fail the operations without an answer. Idempotent."""
        with self._sending:
            self._send_texts()
            if self._deferred is None and self._program is not None:
                failure = None if self._notes is None else self.failure
                with contextlib.suppress(RamiformError):
                    self.channel.send(session.Close((), (self._program,), failure))
            self._deferred = None
        self.attached.clear()
        self._forget_detached()
        with self._lock:
            logs = list(self._logs.values())
        for log in logs:
            log.fail(error)
        if self.loop is not None:
            for task in self._tasks:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
                    self.loop.call_soon_threadsafe(task.cancel)

    def _send(self, message: session.Open | session.Append, log: OperationLog) -> None:
        with self._sending:
            if self._deferred is not None:
                self._deferred.append((message, log))
            elif self.loop is not None and _is_text(message) and _running_loop() is self.loop:
                if not self._texts:
                    self.loop.call_soon(self._send_texts)
                self._texts.append(message)
            elif not self._texts:
                self.channel.send(message)
            else:
                try:
                    self.channel.send(session.Play([*self._texts, message]))
                    self._texts = []
                except RequestError:
                    self._send_texts()
                    self.channel.send(message)  # raises, if it is at fault

    def _send_texts(self) -> None:
        """Send the texts that are kept. Never raises RamiformError: if the runtime is gone, readers learn it."""
        with self._sending, contextlib.suppress(RamiformError):
            texts, self._texts = self._texts, []
            try:
                if texts:
                    self.channel.send(texts[0] if len(texts) == 1 else session.Play(texts))
            except RequestError:  # together they are too long for a message
                for text in texts:
                    self.channel.send(text)

    def _forget_detached(self) -> None:
        while self._detached:
            try:
                number = self._detached.pop()
            except IndexError:  # another thread took it
                return
            self.channel.detach(number)

    def _send_alone(self, message: session.Open | session.Append, log: OperationLog) -> None:
        try:
            self.channel.send(message)
        except RamiformError as error:
            location = program_location()
            if isinstance(message, session.Append) and message.operations:
                location = log.locations[message.first]
            raise with_location(ErrorInfo.of(error), location).to_exception() from None


def _is_text(message: session.Open | session.Append) -> bool:
    """Return whether a message appends nothing but short texts and borders of messages, and can be encoded."""
    if not isinstance(message, session.Append) or not message.operations:
        return False
    for operation in message.operations:
        match operation:
            case session.Text(text=text) if len(text) <= MAX_KEPT and (text.isascii() or _is_unicode(text)):
                pass
            case session.RoleBegin(role=role, tools=None) if role.isascii():
                pass
            case session.RoleEnd():
                pass
            case _:
                return False
    return True


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _running_loop() -> AbstractEventLoop | None:
    import asyncio  # loaded already where there is a loop

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
