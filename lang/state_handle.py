"""One state as the client sees it: numbered, recorded, forked, closed. Knows operations; knows no variables."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence

from ..runtime.protocol.errors import ErrorInfo, RamiformError, RuntimeFailed
from ..runtime.protocol.session import Append, Concatenate, Done, Fork, Operation
from .execution import Execution
from .operation_log import OperationLog
from .source_location import program_location, with_location


class StateHandle:
    """Says what is appended and never waits for it. The runtime forgets the state when nobody holds this.

    A fork holds its parent, which thereby lives until the fork has been played and as long as its text is of use.
    """

    def __init__(self, execution: Execution, parent: StateHandle | None = None) -> None:
        self.execution = execution
        self.log = OperationLog(execution.about_to_wait)
        self.number = execution.attach(self.log)
        self._parent = parent
        self._forked_at = 0  # how many of the parent's operations this state begins with
        self._forget = weakref.finalize(self, execution.detach, self.number)
        self._forget.atexit = False  # the connection says goodbye for all its states at once

    @classmethod
    def open(cls, execution: Execution) -> StateHandle:
        """A new, empty state: the first of a program."""
        recorder = cls(execution)
        execution.open(recorder.number, recorder.log)
        return recorder

    def append(self, operations: Sequence[Operation], names: Mapping[int, str] | None = None) -> int:
        """Record and send; the number of the first. Raises the state's error if it has failed already."""
        with self.log.changed:
            return self._append(list(operations), names)

    def fork(self, size: int) -> list[StateHandle]:
        """`size` states that begin as this one is now."""
        with self.log.changed:
            self._raise_if_failed(program_location())
            children = [StateHandle(self.execution, parent=self) for _ in range(size)]
            operation = self._append([Fork(tuple(child.number for child in children))])
            for child in children:
                child._forked_at = operation
                self.log.add_branch(operation, child.log)
        return children

    def concatenate(self, children: Sequence[StateHandle]) -> None:
        """Append what each child appended since its fork. The caller keeps the children until that is done."""
        self.append([Concatenate(tuple(child.number for child in children))])

    def close(self, why: str) -> None:
        """Abort what runs. What is not answered yet fails for that reason; of a program's first state, in all of it."""
        error = ErrorInfo.of(RuntimeFailed(why))
        if self._parent is None:
            self.execution.close(error)
        self._forget()
        self.log.fail(error)

    def segments(self) -> list[tuple[OperationLog, int]]:
        """The logs this state's text is made of, oldest first, each with how many of its operations belong to it."""
        segments = [(self.log, len(self.log.operations))]
        recorder = self
        while recorder._parent is not None:  # as often as a program forks what was forked
            segments.append((recorder._parent.log, recorder._forked_at))
            recorder = recorder._parent
        return segments[::-1]

    def history(self) -> Iterator[tuple[Operation, Done]]:
        """Every operation so far with its answer, waiting for each. Raises the state's error when one has none."""
        for log, end in self.segments():
            for index in range(end):
                done = log.wait_for(index)
                yield log.operations[index], done

    def text_so_far(self) -> str:
        """What is answered, and what is streamed of the answer after it; waits for nothing and never raises."""
        pieces = []
        for log, end in self.segments():
            with log.changed:
                pieces += [done.text for done in log.done[:end]]
                if len(log.done) < end:
                    return "".join([*pieces, log.partial])
        return "".join(pieces)

    def settle(self) -> RamiformError | None:
        """Wait until everything recorded is answered, in this state and where it came from; the error, if any."""
        for log, end in self.segments():
            if (error := log.settle(end)) is not None:
                return error
        return None

    def _append(self, operations: list[Operation], names: Mapping[int, str] | None = None) -> int:
        place = program_location()
        self._raise_if_failed(place)
        first = len(self.log.operations)
        try:
            self.execution.append(Append(self.number, first, operations), self.log)
        except RamiformError as error:
            raise with_location(ErrorInfo.of(error), place).to_exception() from None
        self.log.record(operations, place, names or {})
        return first

    def _raise_if_failed(self, place: str) -> None:
        log = self.log
        if log.error is None:
            return
        all_answered = len(log.done) == len(log.operations)  # then it is this line that finds the runtime gone
        raise (with_location(log.error, place) if all_answered else log.error).to_exception()
