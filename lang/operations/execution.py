"""Runs one program for all its states: sends their messages, at once or together, and ends the run."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..backends.backend import Channel
from .hooks import Hook, HookedCall, ModelOperation, observe
from .operation_log import OperationLog
from .recording import NoteTaker, OperationTimes, Recording, traceparent
from .source_location import program_location, traceback_location, with_location

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from ..backends.channel import Check

MAX_KEPT = 10_000  # characters of a text that waits for the operation after it
MAX_DETACHED = 32  # states of called programs that the runtime is told of together


_model_names: weakref.WeakKeyDictionary[Channel, str | None] = weakref.WeakKeyDictionary()


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

    With `caller` it is a part of that run: of a program that its function has called. Its states are the caller's
    program's, with its budget and recording; it has an event loop and an end of its own.
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
        caller: Execution | None = None,
    ) -> None:
        self.loop: AbstractEventLoop | None = None  # the loop of an async program, which nothing may block
        self.may_wait = may_wait
        self.attached: list[tuple[int, OperationLog]] = []  # the states whose messages are kept, in order
        self.recording = recording
        self.began = time.perf_counter()
        self.channel = channel
        self.check: Check | None = getattr(channel, "check", None)  # of operations, before they are recorded
        self.failure: ErrorInfo | None = None  # the exception that ends the program
        self.path = "0"  # of the first state, by which a checkpoint knows it
        self._caller = caller
        self.title = title
        self.hooks: tuple[Hook, ...] = () if caller is None else caller.hooks
        self._keep_callback = keep_callback
        self._budget = budget
        self._program: int | None = None
        self._deferred: list[tuple[session.Open | session.Append, OperationLog]] | None = [] if deferred else None
        self._texts: list[session.Open | session.Append | session.Close] = []  # of an async program
        self._logs: dict[int, OperationLog] = {}  # of the states that are held
        self._lock: threading.Lock = threading.Lock() if caller is None else caller._lock
        self._tasks: set[Task[None]] = set()
        self._ended: ErrorInfo | None = None  # `close` was called, with this error
        self._called: list[weakref.ref[Execution]] = []  # parts of this run; the last one may be gone
        self._num_called: dict[str, int] = {}  # by what a checkpoint knows of a call
        self._unfinished: list[Any] = []  # states of called programs that were only recorded, to be waited for
        if caller is None:
            self._notes = NoteTaker() if getattr(channel, "wants_notes", False) else None
            # Guards `_deferred` and `_texts`: one thread may append while another one flushes.
            self._sending = threading.RLock()
            self._detached: list[int] = []
            # With a dict, logs are held to the end of the run: its events tell of branches and calls that are gone.
            self.kept_logs: dict[int, OperationLog] | None = None
            self.kept_states: list[Any] | None = None  # with a list they are held to its end, for who reads tokens
        else:
            self._notes, self._sending, self._detached = caller._notes, caller._sending, caller._detached
            self.kept_logs, self.kept_states = caller.kept_logs, caller.kept_states

    def called(
        self, title: str, *, key: Callable[[], str], budget: session.Budget | None = None, deferred: bool = False
    ) -> Execution:
        """Return the execution of a program that this one's function calls. `key` tells its calls apart for a
        checkpoint. Raises RamiformError if this one has ended."""
        if (ended := self._ended or self._lost()) is not None:
            raise ended.to_exception()
        made = Execution(
            self.channel,
            budget=budget,
            deferred=deferred and self._keeper() is None,
            recording=self.recording,
            keep_callback=self._keep_callback,
            title=title,
            caller=self,
        )
        made._program = self._program if budget is None else None
        with self._lock:
            while self._called and self._called[-1]() is None:
                self._called.pop()
            if len(self._called) % 64 == 63:
                self._called = [one for one in self._called if one() is not None]
            self._called.append(weakref.ref(made))
            if self.has_checkpoint:
                known = key()
                number = self._num_called[known] = self._num_called.get(known, -1) + 1
                made.path = f"{self.path}/{known}#{number}"
        return made

    def observe(self, segments: Sequence[tuple[OperationLog, int]], first: int) -> None:
        """Tell the run's hooks of the calls among a state's operations from `first` on, and of their ends."""
        log, end = segments[-1]
        for index in range(first, end):
            if isinstance(log.operations[index], ModelOperation):
                call = HookedCall(segments, index, self.title, self.model_name)
                observe(call, index, log, self.hooks)

    def model_name(self) -> str | None:
        """Return the name of the model, if the backend tells it. Asks it at first."""
        if self.channel not in _model_names:
            try:
                info = self.channel.call("info").info
            except RamiformError:
                return None
            model = getattr(getattr(self.channel, "_model", None), "model", None)
            _model_names[self.channel] = model if info is None else info.name
        return _model_names[self.channel]

    @property
    def is_plain(self) -> bool:
        """Return whether nobody is told of its states: those of called programs may then begin at their first use."""
        is_told = self.recording is not None or self.kept_logs is not None or self._notes is not None
        return not (is_told or self.has_checkpoint or self._keeper() is not None or self.only_records)

    @property
    def sent_nothing(self) -> bool:
        """Return whether all messages so far are still kept."""
        return self._deferred is not None

    @property
    def only_records(self) -> bool:
        """Return whether a wait of it, or of its callers, raises `ValueNeeded`."""
        return not self.may_wait or (self._caller is not None and self._caller.only_records)

    def finish_later(self, state: Any) -> bool:
        """Keep the state of a called program that is only recorded for the end of the run; return whether it is one."""
        if self._caller is None or not self.only_records:
            return False
        one = self._caller
        while one._caller is not None:
            one = one._caller
        one._unfinished.append(state)
        return True

    def take_unfinished(self) -> list[Any]:
        """Return the states that were kept for the end of the run, once."""
        taken, self._unfinished = self._unfinished, []
        return taken

    @property
    def kept_messages(self) -> list[tuple[session.Open | session.Append, OperationLog]]:
        """Return the messages that are still kept, in order, each with its state's log."""
        return list(self._deferred or ())

    def attach(self, log: OperationLog) -> int:
        """Register a new state's log; return the state's number."""
        number = self.channel.attach(log)
        with self._lock:
            self._logs[number] = log
            if self.kept_logs is not None:
                self.kept_logs[number] = log
        log.number = number
        if self.recording is not None:
            self.recording.add(number, log)
        if self._notes is not None:
            log.on_waited.append(self._notes.note_wait)
        if (keeper := self._keeper()) is not None:
            keeper.attached.append((number, log))
        return number

    def log_of(self, number: int) -> OperationLog | None:
        """Return the log of a state, also of a called program's; None if nobody holds the log any more."""
        if self.kept_logs is not None:
            return self.kept_logs.get(number)
        with self._lock:
            found, called = self._logs.get(number), [one() for one in self._called]
        logs = (one.log_of(number) for one in called if one is not None)
        return found if found is not None else next((log for log in logs if log is not None), None)

    def forget(self, number: int) -> None:
        """Forget a state that nobody holds any more, once it is detached. Takes no lock, as `detach`."""
        self._logs.pop(number, None)

    def detach(self, number: int) -> None:
        """Let the runtime forget a state. Never raises and takes no lock, since the garbage collector may call it."""
        self._detached.append(number)
        if self._caller is not None and len(self._detached) < MAX_DETACHED:
            return  # each message wakes a thread, which takes longer than a call
        if self._keeper() is None:  # else once the kept messages, which may refer to it, are sent
            self._forget_detached()

    def open(self, number: int, log: OperationLog) -> None:
        """Open the program's first state; the program has the state's number, or is the caller's."""
        if self._caller is not None:
            if self.has_checkpoint:
                self.channel.name_state(number, self.path)  # type: ignore[attr-defined]
            opened = session.Open(number, self._program or number, self._budget)
            if self._program is None:
                self._program = number
                opened = replace(opened, caller=self._caller._program)
            if self._keeper() is None:
                self._texts.append(opened)  # it goes with the first operation: a program may have none of its own
            else:
                self._send(opened, log)
            return
        self._program = number
        if self._notes is None:
            self._send(session.Open(number, number, self._budget), log)
        else:
            title = None if self.title is None else self.title[: session.MAX_NOTE]
            self._send(session.Open(number, number, self._budget, title, traceparent()), log)

    def append(self, message: session.Append, log: OperationLog) -> None:
        """Send operations, or keep them. Raises RamiformError if they cannot be sent."""
        self._send(message, log)

    def notes(self, log: OperationLog, location: str, names: Mapping[int, str]) -> list[session.Note]:
        """Return the notes of the log's next operations, for a server that keeps records."""
        return [] if self._notes is None else self._notes.notes(log, len(log.operations), location, names)

    def note_end(self) -> None:
        """Tell a server that keeps records that the program's function has returned."""
        is_called = self._caller is not None
        if self.recording is not None and not is_called:
            self.recording.note_body_end()
        if not is_called and self._keeper() is None:
            self._forget_detached()
        if self._notes is None:
            return
        first_state = min(self._logs, default=None) if is_called else self._program
        if first_state is None or (log := self._logs.get(first_state)) is None:
            return
        with log.changed:
            first = len(log.operations)
            notes = self._notes.notes(log, first, "", {}, ended=True)
            if is_called and not (notes := notes[:-1]):  # the caller's program goes on
                return
            message = session.Append(log.number, first, [], notes)
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
                if (keeper := self._keeper()) is not None:
                    keeper.flush()
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
        if self.only_records:
            raise ValueNeeded(program_location())
        self.flush()
        if blocking and self.loop is not None and running_loop() is self.loop:
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
        logs = dict(sorted(self._held_logs().items()))
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
        """End the run: abort its states' work and fail the operations without an answer. Idempotent.

        A called program's end leaves its caller's states as they are.
        """
        self._ended = self._ended or error
        logs, called = self._held()
        with self._sending:
            if not (len(self._texts) == 1 and isinstance(self._texts[0], session.Open)):
                self._send_texts()
            self._texts = []
            if self._caller is not None:
                for number in logs:
                    self.detach(number)
            elif self._deferred is None and self._program is not None:
                failure = None if self._notes is None else self.failure
                with contextlib.suppress(RamiformError):
                    self.channel.send(session.Close((), (self._program,), failure))
            self._deferred = None
        self.attached.clear()
        self._forget_detached()
        for log in logs.values():
            log.fail(error)
        for one in called:
            one.close(error)
        if self.loop is not None:
            for task in self._tasks:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
                    self.loop.call_soon_threadsafe(task.cancel)

    def _send(self, message: session.Open | session.Append, log: OperationLog) -> None:
        with self._sending:
            if (keeper := self._keeper()) is not None and keeper._deferred is not None:
                keeper._deferred.append((message, log))
            elif self.loop is not None and _is_text(message) and running_loop() is self.loop:
                if not self._texts or isinstance(self._texts[-1], session.Open):
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

    def _keeper(self) -> Execution | None:
        """Return the execution that keeps this one's messages: itself, or a caller; None: they are sent at once."""
        one: Execution | None = self
        while one is not None and one._deferred is None:
            one = one._caller
        return one

    def _held_logs(self) -> dict[int, OperationLog]:
        """Return the logs of the states that are still held, those of called programs included, by number."""
        logs, called = self._held()
        for one in called:
            logs |= one._held_logs()
        return logs

    def _held(self) -> tuple[dict[int, OperationLog], list[Execution]]:
        """Return the own logs and the called executions that are still held."""
        with self._lock:
            found = [one() for one in self._called]
            return dict(self._logs), [one for one in found if one is not None]

    def _lost(self) -> ErrorInfo | None:
        """Return the error by which the runtime has ended the program, as where its budget is spent."""
        log = None if self._program is None else self._logs.get(self._program)
        if log is not None:
            return log.lost
        return None if self._caller is None else self._caller._lost()

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


def running_loop() -> AbstractEventLoop | None:
    """Return the event loop that runs in this thread."""
    asyncio = sys.modules.get("asyncio")  # not loaded: no loop runs
    return None if asyncio is None else asyncio._get_running_loop()
