"""The operations of one state and the runtime's answers to them, which programs wait for.

The connection holds the log for as long as the state lives, so the log must not keep its state alive.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

from ..runtime.protocol.errors import ErrorInfo, RamiformError
from ..runtime.protocol.session import Delta, Done, Failed, Operation
from .source_location import with_location


class OperationLog:
    """Operations in order, and the answers to the first `len(done)` of them.

    `Done` messages come in order within a state. `changed` guards every field. `version` grows with every change, so
    that a reader that looks and then waits misses nothing. Answers stay readable; waiting for an operation without an
    answer raises once there is an error. `about_to_wait(blocking)` is called before every wait, and may raise.
    """

    def __init__(self, about_to_wait: Callable[[bool], None] | None = None) -> None:
        self.about_to_wait = about_to_wait or _allow_wait
        self.changed = threading.Condition()
        self.version = 0
        self.operations: list[Operation] = []
        self.done: list[Done] = []
        self.partial = ""  # text streamed so far of the operation after `done`
        self.error: ErrorInfo | None = None  # with the program's line if an operation was waiting
        self.locations: list[str] = []  # file:line of each operation in the program
        self.recorded_at: list[float] = []  # by operation, on the clock `time.perf_counter`
        self.answered_at: list[float] = []  # by answer
        self.cause: BaseException | None = None  # the exception of a function of the program's own that failed it
        self.names: dict[int, str] = {}  # variable that an operation makes, by operation
        # Gathered variables: before which operation, from which states, and the program's file:line.
        self.joins: list[tuple[int, tuple[OperationLog, ...], str]] = []
        self._raised = [False]  # whether the program got `error`; shared with the branches that fail with this state
        self._branches: list[tuple[int, weakref.ref[OperationLog]]] = []  # the forking operation, and the child's log
        self._watchers: list[Callable[[], None]] = []
        self._callbacks: list[tuple[int, Callable[[], None]]] = []  # each with the number of answers it waits for

    # Called by the program

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
                self.about_to_wait(True)
                self.changed.wait()
            return self.done[operation]

    def settle(self, end: int, *, raised: bool = True) -> RamiformError | None:
        """Wait until the first `end` operations are answered; return the error, as `exception`, if one will not be."""
        with self.changed:
            while len(self.done) < end:
                if self.error is not None:
                    return self.exception(raised=raised)
                self.about_to_wait(True)
                self.changed.wait()
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
                self.about_to_wait(True)
                self.changed.wait()

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
        await answered

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
        try:
            if self.version == version:
                await changed.wait()
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

    def receive(self, message: Delta | Done | Failed) -> None:
        """Record an answer of the runtime."""
        with self.changed:
            if self.error is not None:
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
                    self._call_back(len(self.done))
                case Failed():
                    self.fail(message.error)

    def fail(self, error: ErrorInfo) -> None:
        """Fail every operation without an answer, with the program's line of the first one. The first error stays."""
        with self.changed:
            if self.error is not None:
                return
            failed = len(self.done)
            if failed < len(self.operations):
                error = with_location(error, self.locations[failed])
            self.error = error
            self.touch()
            self._call_back(None)
            orphans = [branch() for operation, branch in self._branches if operation >= failed]
        while orphans:  # a loop, since forks of forks may be deep
            if (child := orphans.pop()) is not None:
                orphans += child._inherit_failure(error, self._raised, self.cause)

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


def _allow_wait(blocking: bool) -> None:
    """Do nothing: every wait is allowed."""
