"""The operations of one state and the runtime's answers to them, which programs wait for.

The connection holds the log for as long as the state lives, so the log must not keep its state alive.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ...runtime.protocol.session import Answer, Attempted, Delta, Done, Failed, Operation, Rollback
from .source_location import with_location

_checked_log: ContextVar[OperationLog | None] = ContextVar("ramiform_checked_log", default=None)


class StateTie(NamedTuple):
    """States that are tied to another one without an operation: it gathers their variables, or calls their program."""

    before: int  # the other one's next operation
    states: tuple[int, ...]
    place: str  # file:line of the program
    called: str | None = None  # the called program's name; None: variables are gathered


class OperationLog:
    """Operations in order, and the answers to the first `len(done)` of them.

    `Done` messages come in order within a state. `changed` guards every field. `version` grows with every change, so
    that a reader that looks and then waits misses nothing. Answers stay readable; waiting for an operation without an
    answer raises once there is an error. `about_to_wait(blocking)` is called before every wait, and may raise.

    A Rollback removes the operations since its mark from the state, not from the log. Those that were not done have an
    empty answer in `done`, and in `failed` the error that waiting for them raises.
    """

    def __init__(self, about_to_wait: Callable[[bool], None] | None = None) -> None:
        self._allow_wait = about_to_wait or (lambda blocking: None)
        self.number = 0  # the state's, once it is attached
        self.on_waited: list[Callable[[float], None]] = []  # called after a wait with its `perf_counter()` begin
        self.changed = threading.Condition()
        self.version = 0
        self.operations: list[Operation] = []
        self.done: list[Done] = []
        self.partial = ""  # text streamed so far of the operation after `done`
        self.error: ErrorInfo | None = None  # with the program's line if an operation was waiting
        self.failed: dict[int, ErrorInfo] = {}  # removed operations without an answer, by index
        self.locations: list[str] = []  # file:line of each operation in the program
        self.recorded_at: list[float] = []  # by operation, on the clock `time.perf_counter`
        self.answered_at: list[float] = []  # by answer
        self.cause: BaseException | None = None  # the exception of a function of the program's own that failed it
        self.names: dict[int, str] = {}  # variable that an operation makes, by operation
        self.labels: dict[int, Callable[[], str]] = {}  # give what traces show of an Ask, by operation
        self.outcomes: dict[int, Any] = {}  # of tools, by the Ask that their results answer
        # What operations make of their answers for variables, by operation: names and functions of the answer.
        self.values: dict[int, tuple[tuple[str, Callable[[Done], Any]], ...]] = {}
        self.saved: dict[int, float] = {}  # seconds that an Ask's tool ran before it, by operation
        self.ties: list[StateTie] = []
        self._raised = [False]  # whether the program got `error`; shared with the branches that fail with this state
        self._branches: list[tuple[int, weakref.ref[OperationLog]]] = []  # the forking operation, and the child's log
        self._watchers: list[Callable[[], None]] = []
        self._callbacks: list[tuple[int, Callable[[], None]]] = []  # each with the number of answers it waits for
        self._failed_at: int | None = None  # the operation whose failure is `error`; None if the state itself failed
        self._removed: list[tuple[int, int]] = []  # disjoint, in order: a mark, and the last rollback to it
        self._on_attempts: dict[int, Callable[[Attempted], None]] = {}  # by the checked Gen

    @property
    def lost(self) -> ErrorInfo | None:
        """Return the error by which the whole state is lost, and not only an operation of it."""
        return self.error if self._failed_at is None else None

    # Called by the program

    def about_to_wait(self, blocking: bool) -> None:
        """Called before every wait. Raises RequestError where it would never end, or if the program may not wait."""
        if _checked_log.get() is self:
            raise RequestError(
                "a check waits for a value of the state that waits for the check: use the value that it is called with",
                param="check",
                code="would_block",
            )
        self._allow_wait(blocking)

    @contextlib.contextmanager
    def being_checked(self) -> Iterator[None]:
        """Refuse waits of the code inside the block: the runtime plays this state no further before it has ended."""
        token = _checked_log.set(self)
        try:
            yield
        finally:
            _checked_log.reset(token)

    def record(self, operations: Sequence[Operation], location: str, names: Mapping[int, str]) -> None:
        """Add operations; `names` are their variables, by index among these. Call with `changed` held."""
        self.names.update((len(self.operations) + index, name) for index, name in names.items())
        self.operations.extend(operations)
        self.locations.extend([location] * len(operations))
        self.recorded_at.extend([time.perf_counter()] * len(operations))
        self.touch()

    def add_branch(self, operation: int, child: OperationLog) -> None:
        """Note that `operation` forks `child`: if it fails, the child fails too. Call with `changed` held."""
        self._branches.append((operation, weakref.ref(child)))

    def roll_back(self, mark: int) -> None:
        """Note that the operation recorded last is a Rollback to operation `mark`. Call with `changed` held.

        An error of an operation since the mark is the state's no longer; those operations keep it.
        """
        rollback = len(self.operations) - 1
        while self._removed and self._removed[-1][0] >= mark:
            self._removed.pop()
        self._removed.append((mark, rollback))
        if self.error is not None:
            while len(self.done) < rollback:
                self._skip(self.error)
            self.error = self.cause = self._failed_at = None
            self._raised = [False]
        self.touch()
        self._call_back(len(self.done))

    def can_recover(self, mark: int) -> bool:
        """Return whether the log has no error, or a rollback to operation `mark` would remove it."""
        return self.error is None or (self._failed_at is not None and self._failed_at > mark)

    def is_removed(self, operation: int) -> bool:
        """Return whether a rollback has removed the operation."""
        index = bisect.bisect_left(self._removed, (operation,)) - 1
        return index >= 0 and operation <= self._removed[index][1]

    def visible(self, first: int, end: int) -> list[int]:
        """Return the operations from `first` to before `end` that the rollbacks before `end` have not removed."""
        found = []
        index = end - 1
        while index >= first:
            operation = self.operations[index]
            if isinstance(operation, Rollback):
                index = operation.mark
            else:
                found.append(index)
                index -= 1
        return found[::-1]

    def on_attempt(self, operation: int, callback: Callable[[Attempted], None]) -> None:
        """Call back with each attempt of a checked Gen. `callback` must neither block nor raise."""
        self._on_attempts[operation] = callback

    def touch(self) -> None:
        """Wake every waiter. Call with `changed` held."""
        self.version += 1
        self.changed.notify_all()
        for watcher in self._watchers:
            watcher()

    def exception(self, *, raised: bool = True) -> RamiformError:
        """Return the log's error, for the program unless `raised` is False. Call only if there is one.

        `is_repeated` tells whether the program got it before.
        """
        assert self.error is not None
        exception = self.error.to_exception()
        if self.cause is not None:
            exception.__cause__ = self.cause
        exception.is_repeated = self._raised[0]
        self._raised[0] |= raised
        return exception

    def wait_for(self, operation: int) -> Done:
        """Wait for the answer to one operation. Raises the state's error if there will be none."""
        with self.changed:
            while len(self.done) <= operation:
                if self.error is not None:
                    raise self.exception()
                self._wait()
            if operation in self.failed:
                raise self.failed[operation].to_exception()
            return self.done[operation]

    def settle(self, end: int, *, raised: bool = True) -> RamiformError | None:
        """Wait until the first `end` operations are answered; return the error, as `exception`, if one will not be."""
        with self.changed:
            while len(self.done) < end:
                if self.error is not None:
                    return self.exception(raised=raised)
                self._wait()
            return None

    def when(self, end: int, callback: Callable[[], None]) -> None:
        """Call back once the first `end` operations are answered or have failed, possibly at once.

        `callback` must neither block nor raise.
        """
        with self.changed:
            if len(self.done) < end and self.error is None:
                self._callbacks.append((end, callback))
                return
        callback()

    def wait_for_change(self, version: int) -> None:
        """Wait for a change after `version`."""
        with self.changed:
            while self.version == version:
                self._wait()

    async def wait_answered_async(self, end: int) -> None:
        """Wait, in an event loop, until the first `end` operations are answered or have failed."""
        import asyncio  # loaded already where there is a loop; the language does without

        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not answered.done():
                answered.set_result(None)

        def on_answer() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(resolve)

        with self.changed:
            if len(self.done) >= end or self.error is not None:
                return
            self.about_to_wait(False)
            self.when(end, on_answer)
        began = time.perf_counter()
        await answered
        self._note_wait(began)

    async def wait_for_change_async(self, version: int) -> None:
        """Wait, in an event loop, for a change after `version`."""
        import asyncio

        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def on_change() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(changed.set)

        self.about_to_wait(False)
        self.watch(on_change)
        began = time.perf_counter()
        try:
            if self.version == version:
                await changed.wait()
                self._note_wait(began)
        finally:
            self.unwatch(on_change)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` at every change; it must neither block nor raise."""
        with self.changed:
            self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        with self.changed:
            self._watchers.remove(watcher)

    # Called by the connection: see `Listener`

    def receive(self, message: Answer) -> None:
        """Record an answer of the runtime."""
        with self.changed:
            if self.error is not None or message.op in self.failed:
                return  # the runtime fails the operations after the first failed one too
            assert message.op == len(self.done), f"answer to operation {message.op} instead of {len(self.done)}"
            match message:
                case Delta():
                    self.partial += message.text
                    self.touch()
                case Done():
                    self.done.append(message)
                    self.answered_at.append(time.perf_counter())
                    self.partial = ""
                    self.touch()
                    self._on_attempts.pop(message.op, None)
                    self._call_back(len(self.done))
                case Attempted():
                    if (on_attempt := self._on_attempts.get(message.op)) is not None:
                        on_attempt(message)
                case Failed() if self.is_removed(message.op):
                    self._skip(message.error)
                    self.touch()
                    self._call_back(len(self.done))
                    branches = [branch() for operation, branch in self._branches if operation == message.op]
                    _fail_branches(branches, self.failed[message.op])
                case Failed():
                    self.fail(message.error)
                    self._failed_at = message.op

    def fail(self, error: ErrorInfo) -> None:
        """Fail every operation without an answer, with the program's line of the first one. The first error stays."""
        with self.changed:
            if self.error is not None:
                self._failed_at = None  # now the state is lost as well
                return
            failed = len(self.done)
            if failed < len(self.operations):
                error = with_location(error, self.locations[failed])
            self.error = error
            self.touch()
            self._call_back(None)
            orphans = [branch() for operation, branch in self._branches if operation >= failed]
        _fail_branches(orphans, error, self._raised, self.cause)

    def _skip(self, error: ErrorInfo) -> None:
        """Note that the next operation, which is removed, has no answer but this error."""
        operation = len(self.done)
        if error.code == "rolled_back":
            error = with_location(error, self.locations[operation])
        self.failed[operation] = error
        self.done.append(Done(0, operation, ""))
        self.partial = ""

    def _wait(self) -> None:
        """Wait for the next change. Call with `changed` held."""
        self.about_to_wait(True)
        began = time.perf_counter()
        self.changed.wait()
        self._note_wait(began)

    def _note_wait(self, began: float) -> None:
        for callback in self.on_waited:
            callback(began)

    def _inherit_failure(
        self, error: ErrorInfo, raised: list[bool], cause: BaseException | None
    ) -> list[OperationLog | None]:
        """Fail because the parent failed before its fork; return the logs of the states to fork from this one.

        The error names the program's line already.
        """
        with self.changed:
            if self.error is None:
                self.error, self._raised, self.cause = error, raised, cause
                self.touch()
                self._call_back(None)
            return [branch() for _, branch in self._branches]

    def _call_back(self, num_answered: int | None) -> None:
        """Call the callbacks that wait for at most this number of answers; None: all of them."""
        if self._callbacks:
            due = [one for one in self._callbacks if num_answered is None or one[0] <= num_answered]
            self._callbacks = [one for one in self._callbacks if one not in due]
            for _, callback in due:
                callback()


def _fail_branches(
    branches: list[OperationLog | None],
    error: ErrorInfo,
    raised: list[bool] | None = None,
    cause: BaseException | None = None,
) -> None:
    raised = [False] if raised is None else raised
    while branches:  # a loop, since forks of forks may be deep
        if (child := branches.pop()) is not None:
            branches += child._inherit_failure(error, raised, cause)
