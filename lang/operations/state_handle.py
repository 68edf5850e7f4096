"""Client-side handles of the runtime's states: append operations, fork, close, and wait for answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...runtime.protocol.errors import ErrorInfo, RamiformError, RuntimeFailed
from ...runtime.protocol.session import (
    Append,
    Concatenate,
    Decide,
    Done,
    Fork,
    Gen,
    Operation,
    Rollback,
    Select,
)
from .execution import Execution
from .operation_log import OperationLog
from .source_location import program_location, with_location

if TYPE_CHECKING:
    from ..backends.channel import Check


class StateHandle:
    """A state of the runtime. Appending never waits; the runtime forgets the state once the handle is collected.

    A fork holds its parent: the fork must be played before the parent goes, and its text begins with the parent's.
    """

    number = 0  # of the runtime's state; 0: it has none yet

    def __init__(self, execution: Execution, parent: StateHandle | None = None) -> None:
        self.execution = execution
        self._parent = parent
        self._forked_at = 0  # number of the parent's operations that this state begins with
        self._is_detached = False
        self.log = OperationLog(execution.about_to_wait)
        self.number = execution.attach(self.log)

    def __del__(self) -> None:
        # At exit the connection closes all its states at once.
        if self.number and not sys.is_finalizing():
            self._detach()
            self.execution.forget(self.number)

    @classmethod
    def open(cls, execution: Execution) -> StateHandle:
        """Open a new, empty state: the first of a program."""
        handle = cls(execution)
        execution.open(handle.number, handle.log)
        return handle

    @property
    def parent(self) -> StateHandle | None:
        """Return the state that this one is a fork of."""
        return self._parent

    def append(self, operations: Sequence[Operation], names: Mapping[int, str] | None = None) -> int:
        """Record and send operations; return the index of the first. Raises the state's error if it has failed."""
        with self.log.changed:
            return self._append(list(operations), names)

    def roll_back(self, mark: int) -> None:
        """Return to the content at the Mark with number `mark`, without waiting.

        An error of an operation since then is removed. Raises the state's error if it is another one.
        """
        with self.log.changed:
            location = program_location()
            if not self.log.can_recover(mark):
                self._raise_if_failed(location)
            self._record([Rollback(mark)], location, {})
            self.log.roll_back(mark)

    def fork(self, size: int) -> list[StateHandle]:
        """Return `size` states that begin with this one's operations so far."""
        with self.log.changed:
            self._raise_if_failed(program_location())
            children = [StateHandle(self.execution, parent=self) for _ in range(size)]
            operation = self._append([Fork(tuple(child.number for child in children))])
            for child in children:
                child._forked_at = operation
                self.log.add_branch(operation, child.log)
        return children

    def concatenate(self, children: Sequence[StateHandle]) -> None:
        """Append what each child appended since its fork. The caller must hold the children until it is done."""
        self.append([Concatenate(tuple(child.number for child in children))])

    def close(self, reason: str | RamiformError) -> None:
        """Abort running work and fail operations without an answer; the first state's handle ends the whole program."""
        error = ErrorInfo.of(RuntimeFailed(reason) if isinstance(reason, str) else reason)
        if self._parent is None:
            self.execution.close(error)
        self._detach()
        self.log.fail(error)

    def segments(self) -> list[tuple[OperationLog, int]]:
        """Return the logs that make up the state's text, oldest first, each with its number of operations in it."""
        segments = [(self.log, len(self.log.operations))]
        handle = self
        while handle._parent is not None:  # a loop, since forks of forks may be deep
            segments.append((handle._parent.log, handle._forked_at))
            handle = handle._parent
        return segments[::-1]

    def history(self) -> Iterator[tuple[Operation, Done]]:
        """Yield every operation so far with its answer, waiting for each. Raises the state's error if one fails."""
        for log, end in self.segments():
            for index in log.visible(0, end):
                done = log.wait_for(index)
                yield log.operations[index], done

    def text_so_far(self) -> str:
        """Return the answered text and the streamed part of the next answer. Never waits and never raises."""
        pieces = []
        for log, end in self.segments():
            with log.changed:
                visible = log.visible(0, end)
                pieces += [log.done[index].text for index in visible if index < len(log.done)]
                if len(log.done) < end:
                    return "".join([*pieces, log.partial * (len(log.done) in visible)])
        return "".join(pieces)

    def settle(self, *, raised: bool = True) -> RamiformError | None:
        """Wait until all operations of the state and its ancestors are answered; return the error, if any.

        `raised`: the program gets it.
        """
        if self._parent is None:
            return self.log.settle(len(self.log.operations), raised=raised)
        for log, end in self.segments():
            if (error := log.settle(end, raised=raised)) is not None:
                return error
        return None

    def _detach(self) -> None:
        if not self._is_detached:
            self._is_detached = True
            self.execution.detach(self.number)

    def _append(self, operations: list[Operation], names: Mapping[int, str] | None = None) -> int:
        location = program_location()
        self._raise_if_failed(location)
        if self.execution.check is not None:
            self._check(self.execution.check, operations, location)
        return self._record(operations, location, names or {})

    def _check(self, check: Check, operations: list[Operation], location: str) -> None:
        """Raise RequestError, with the program's line, for an operation that the backend cannot answer."""
        if not any(isinstance(operation, Gen | Select | Decide) for operation in operations):
            return
        from ..backends.channel import likely_transcript  # loaded where programs run in this process

        before = [log.operations[index] for log, end in self.segments() for index in log.visible(0, end)]
        try:
            for index, operation in enumerate(operations):
                if isinstance(operation, Gen | Select | Decide):
                    check(likely_transcript([*before, *operations[:index]]), operation)
        except RamiformError as error:
            raise with_location(ErrorInfo.of(error), location).to_exception() from None

    def _record(self, operations: list[Operation], location: str, names: Mapping[int, str]) -> int:
        first = len(self.log.operations)
        try:
            notes = self.execution.notes(self.log, location, names)
            self.execution.append(Append(self.number, first, operations, notes), self.log)
        except RamiformError as error:
            raise with_location(ErrorInfo.of(error), location).to_exception() from None
        self.log.record(operations, location, names)
        return first

    def _raise_if_failed(self, location: str) -> None:
        log = self.log
        if log.error is None:
            return
        all_answered = len(log.done) == len(log.operations)  # then this line is the first to meet the error
        exception = log.exception()
        if not all_answered:
            raise exception
        located = with_location(log.error, location).to_exception()
        located.is_repeated = exception.is_repeated
        located.__cause__ = exception.__cause__
        raise located
