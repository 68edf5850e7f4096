"""What became of one state's operations: the half of a state that the runtime writes and programs wait on.

Knows messages, order and waiting; knows no variables and no expressions. It must not hold its state alive: the
connection holds the log for as long as the state lives.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

from ..runtime.protocol.errors import ErrorInfo, RamiformError
from ..runtime.protocol.session import Delta, Done, Failed, Operation
from .source_location import with_location


class OperationLog:
    """Operations in order, and the answers to the first `len(done)` of them. `Done` comes in order within a state.

    `changed` guards every field; `version` grows with every change, so that who looked and then waits misses nothing.
    What is answered stays readable, whatever happens later; what is not, raises once there is an error.
    `about_to_wait(blocking)` is called before anybody waits, and may raise.
    """

    def __init__(self, about_to_wait: Callable[[bool], None] | None = None) -> None:
        self.about_to_wait = about_to_wait or _let_wait
        self.changed = threading.Condition()
        self.version = 0
        self.operations: list[Operation] = []
        self.done: list[Done] = []
        self.partial = ""  # streamed so far of the operation after `done`
        self.error: ErrorInfo | None = None  # names the program's line when an operation was waiting
        self.places: list[str] = []  # of the operations in the program
        self.names: dict[int, str] = {}  # of the variables that operations make
        self.joins: list[
            tuple[int, tuple[OperationLog, ...], str]
        ] = []  # before which operation whose variables, and where
        self._branches: list[tuple[int, weakref.ref[OperationLog]]] = []  # which operation forked, and the child's log
        self._watchers: list[Callable[[], None]] = []
        self._due: list[tuple[int, Callable[[], None]]] = []

    # The program's side

    def record(self, operations: Sequence[Operation], place: str, names: Mapping[int, str]) -> None:
        """`names` of variables by the index of their operation among these. Call with `changed` held."""
        self.names.update((len(self.operations) + index, name) for index, name in names.items())
        self.operations.extend(operations)
        self.places.extend([place] * len(operations))
        self.touch()

    def add_branch(self, operation: int, child: OperationLog) -> None:
        """Call with `changed` held. A child whose fork fails never comes to be, and fails likewise."""
        self._branches.append((operation, weakref.ref(child)))

    def touch(self) -> None:
        """Wake everybody who waits. Call with `changed` held."""
        self.version += 1
        self.changed.notify_all()
        for watcher in self._watchers:
            watcher()

    def wait_for(self, operation: int) -> Done:
        """The answer to one operation. Raises the state's error when there will be none."""
        with self.changed:
            while len(self.done) <= operation:
                if self.error is not None:
                    raise self.error.to_exception()
                self.about_to_wait(True)
                self.changed.wait()
            return self.done[operation]

    def settle(self, end: int) -> RamiformError | None:
        """Wait until the first `end` operations are answered; the error when one of them will not be."""
        with self.changed:
            while len(self.done) < end:
                if self.error is not None:
                    return self.error.to_exception()
                self.about_to_wait(True)
                self.changed.wait()
            return None

    def when(self, end: int, callback: Callable[[], None]) -> None:
        """Call back once when the first `end` operations are answered or will not all be; maybe at once. `callback`
        must neither block nor raise."""
        with self.changed:
            if len(self.done) < end and self.error is None:
                self._due.append((end, callback))
                return
        callback()

    def wait_for_change(self, version: int) -> None:
        """Wait until something is newer than `version`."""
        with self.changed:
            while self.version == version:
                self.about_to_wait(True)
                self.changed.wait()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher`, which must neither block nor raise, at every change."""
        with self.changed:
            self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        with self.changed:
            self._watchers.remove(watcher)

    # The connection's side: see `Listener`

    def receive(self, message: Delta | Done | Failed) -> None:
        with self.changed:
            if self.error is not None:
                return  # the operations after the one that failed are answered with its error
            assert message.op == len(self.done), f"answer to operation {message.op} instead of {len(self.done)}"
            match message:
                case Delta():
                    self.partial += message.text
                    self.touch()
                case Done():
                    self.done.append(message)
                    self.partial = ""
                    self.touch()
                    self._call_back(len(self.done))
                case Failed():
                    self.fail(message.error)

    def fail(self, error: ErrorInfo) -> None:
        """Whatever is not answered by now has failed. The operation that was next is named; the first error stays."""
        with self.changed:
            if self.error is not None:
                return
            failed = len(self.done)
            if failed < len(self.operations):
                error = with_location(error, self.places[failed])
            self.error = error
            self.touch()
            self._call_back(None)
            orphans = [branch() for operation, branch in self._branches if operation >= failed]
        while orphans:  # and theirs, however deep
            if (child := orphans.pop()) is not None:
                orphans += child._inherit_failure(error)

    def _inherit_failure(self, error: ErrorInfo) -> list[OperationLog | None]:
        """The state this one was to be forked from failed before; the error names the line already. Returns those
        that were to be forked from this one."""
        with self.changed:
            if self.error is None:
                self.error = error
                self.touch()
                self._call_back(None)
            return [branch() for _, branch in self._branches]

    def _call_back(self, num_answered: int | None) -> None:
        """Whoever waits for no more than that; everybody for None."""
        if self._due:
            due = [one for one in self._due if num_answered is None or one[0] <= num_answered]
            self._due = [one for one in self._due if one not in due]
            for _, callback in due:
                callback()


def _let_wait(blocking: bool) -> None:
    """Nothing stands against waiting."""
