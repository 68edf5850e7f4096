"""The events of a run, in order: what a page or another process needs to show a program while it runs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo
from ..operations.operation_log import OperationLog
from ..operations.state_handle import StateHandle
from ..types.adapter import json_text
from .reader import StateReader

EventType = Literal[
    "line",
    "branch",
    "message",
    "message_end",
    "text",
    "variable",
    "piece",
    "value",
    "tool_call",
    "tool_result",
    "rollback",
    "end",
]


class ProgramEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An event of a run. Fields that its type does not have are None.

    `branch` is the number of the state: 0 the program's own, others in the order of their forks, with `parent`.

    line: the program goes on at `line`. branch: a branch begins, or a program of that `name` that is called.
    message: a chat message of `role` begins; message_end: it ends. text: the program's own `text`. variable: `name`
    begins to be generated. piece: more generated `text`, of the variable `name` if it has one. value: `name` has its
    `value`, or an `error`. tool_call: the function `name` is called with `arguments`; tool_result: its result as the
    model reads it, `text`, and `error`. rollback: what the state has appended since `line` is removed. end: the run has
    ended, with an `error` if it failed.
    """

    type: EventType
    branch: int = 0
    name: str | None = None
    text: str | None = None
    value: Any = None
    line: str | None = None
    role: str | None = None
    parent: int | None = None
    arguments: dict[str, Any] | None = None
    error: str | None = None

    def json(self) -> str:
        """Return the event as JSON: its type and the fields that it has."""
        if self.type != "value" or self.error is not None:
            return msgspec.json.encode(self).decode()
        try:
            value = json_text(self.value)
        except TypeError:  # such as an object of the program's own
            value = json.dumps(str(self.value))
        bare = msgspec.json.encode(msgspec.structs.replace(self, value=None)).decode()
        return f'{bare[:-1]},"value":{value}}}'


@dataclass(eq=False)
class _Branch:
    """Remembers how far the events of a state have been told."""

    number: int
    log: OperationLog
    operation: int = 0  # the next, or the one that is told now
    num_chars: int = 0  # of its text
    num_ties: int = 0  # of its calls of programs
    begun: bool = False
    line: str = ""
    failed: bool = False
    watch: Callable[[], None] | None = None


@dataclass
class RunEvents:
    """Reads the events of the run that a state belongs to, from the state's beginning on.

    `steps` yields events, and None where more are to come once `wake` has been called, from any thread.
    """

    reader: StateReader
    handle: StateHandle
    wake: Callable[[], None]
    _branches: list[_Branch] = field(default_factory=list)
    _changed: list[_Branch] = field(default_factory=list)  # since they were told last

    def steps(self) -> Iterator[ProgramEvent | None]:
        *_, (log, end) = self.handle.segments()
        try:
            own = self._add(0, log)
            while True:
                is_followed = self.reader.is_followed
                yield from self._news()
                if not is_followed and (self.reader.has_ended or own.operation >= end or own.failed):
                    break
                if not self._changed and self.reader.is_followed == is_followed:
                    yield None
            yield from self._news()
            yield self._end(log)
        finally:
            for branch in self._branches:
                if branch.watch is not None:
                    with contextlib.suppress(ValueError):
                        branch.log.unwatch(branch.watch)

    def _add(self, number: int, log: OperationLog) -> _Branch:
        branch = _Branch(number, log)

        def note() -> None:  # called with `log.changed` held: it must neither block nor raise
            if branch not in self._changed:
                self._changed.append(branch)
                self.wake()

        branch.watch = note
        self._branches.append(branch)
        self._changed.append(branch)
        log.watch(note)
        return branch

    def _news(self) -> Iterator[ProgramEvent]:
        while self._changed:
            branch = self._changed.pop(0)
            yield from self._tell(branch)

    def _tell(self, branch: _Branch) -> Iterator[ProgramEvent]:
        log = branch.log
        while True:
            with log.changed:
                op = branch.operation
                ties = [] if branch.begun else [tie for tie in log.ties[branch.num_ties :] if tie.before <= op]
                branch.num_ties += len(ties)
                is_known = op < len(log.operations)
            for tie in ties:
                if tie.called is not None:
                    yield from self._new_branches(branch, tie.states, tie.called)
            if not is_known:
                return
            with log.changed:
                operation, line = log.operations[op], log.locations[op]
                done = log.done[op] if op < len(log.done) else None
                text = done.text if done is not None else log.partial if op == len(log.done) else ""
                error = log.failed.get(op) or (log.error if op == len(log.done) else None)
            if not branch.begun:
                branch.begun = True
                yield from self._begun(branch, operation, line)
            new = text[branch.num_chars :]
            if new:
                branch.num_chars += len(new)
                yield from _text_events(branch, operation, new)
            if done is None and error is None:
                return
            if not branch.failed:
                yield from _ended(branch, done, error)
            if done is None:
                branch.failed = True
                return
            branch.failed = False
            branch.operation, branch.num_chars, branch.begun = op + 1, 0, False

    def _begun(self, branch: _Branch, operation: session.Operation, line: str) -> Iterator[ProgramEvent]:
        if line != branch.line:
            branch.line = line
            yield ProgramEvent(type="line", branch=branch.number, line=line)
        match operation:
            case session.RoleBegin(role=role):
                yield ProgramEvent(type="message", branch=branch.number, role=role)
            case session.RoleEnd():
                yield ProgramEvent(type="message_end", branch=branch.number)
            case session.Gen() | session.Select() if (name := branch.log.names.get(branch.operation)) is not None:
                yield ProgramEvent(type="variable", branch=branch.number, name=name)
            case session.Fork(children=children):
                yield from self._new_branches(branch, children, None)
            case session.Rollback(mark=mark):
                yield ProgramEvent(type="rollback", branch=branch.number, line=branch.log.locations[mark])
            case session.Ask() if branch.operation in branch.log.outcomes:
                name, arguments = _call_of(branch)
                if name is not None:
                    yield ProgramEvent(type="tool_call", branch=branch.number, name=name, arguments=arguments)

    def _new_branches(self, parent: _Branch, states: Sequence[int], name: str | None) -> Iterator[ProgramEvent]:
        for state in states:
            if (log := self.handle.execution.log_of(state)) is not None:
                made = self._add(len(self._branches), log)
                yield ProgramEvent(type="branch", branch=made.number, parent=parent.number, name=name)

    def _end(self, log: OperationLog) -> ProgramEvent:
        failure = self.reader.background.failure if self.reader.background is not None else None
        if failure is not None:
            return ProgramEvent(type="end", error=str(failure) or type(failure).__name__)
        return ProgramEvent(type="end", error=None if log.error is None else log.error.message)


def _call_of(branch: _Branch) -> tuple[str | None, dict[str, Any] | None]:
    """Return name and arguments of the call that an Ask waits for: as it is made, else as it was written."""
    log, op = branch.log, branch.operation
    if (outcome := log.outcomes[op]).name is not None:
        return outcome.name, outcome.arguments
    try:
        call = json.loads(log.done[op - 1].text)
        return str(call["name"]), call["arguments"]
    except (ValueError, KeyError, TypeError):
        return None, None  # the text is no call


def _text_events(branch: _Branch, operation: session.Operation, text: str) -> Iterator[ProgramEvent]:
    match operation:
        case session.Gen() | session.Select() | session.Generated():
            name = branch.log.names.get(branch.operation)
            yield ProgramEvent(type="piece", branch=branch.number, name=name, text=text)
        case session.Text():
            yield ProgramEvent(type="text", branch=branch.number, text=text)


def _ended(branch: _Branch, done: session.Done | None, error: ErrorInfo | None) -> Iterator[ProgramEvent]:
    """Yield the events of an operation that is answered or has failed."""
    log, op = branch.log, branch.operation
    if (outcome := log.outcomes.get(op)) is not None and done is not None:
        yield ProgramEvent(
            type="tool_result", branch=branch.number, name=outcome.name, text=outcome.text, error=outcome.error
        )
    for name, value_of in log.values.get(op, ()):
        if error is not None or done is None:
            message = None if error is None else error.message
            yield ProgramEvent(type="value", branch=branch.number, name=name, error=message)
            continue
        try:
            yield ProgramEvent(type="value", branch=branch.number, name=name, value=value_of(done))
        except (ValueError, KeyError) as invalid:
            yield ProgramEvent(type="value", branch=branch.number, name=name, error=str(invalid))


def blocking_events(reader: StateReader, handle: StateHandle) -> Iterator[ProgramEvent]:
    """Yield the events of a run, blocking the thread where more are to come."""
    changed = threading.Event()
    for event in RunEvents(reader, handle, changed.set).steps():
        if event is not None:
            yield event
        else:
            handle.log.about_to_wait(True)
            changed.wait()
            changed.clear()


async def async_events(reader: StateReader, handle: StateHandle) -> AsyncGenerator[ProgramEvent]:
    """Yield the events of a run in an event loop."""
    import asyncio

    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(changed.set)

    steps = RunEvents(reader, handle, wake).steps()
    try:
        for event in steps:
            if event is not None:
                yield event
            else:
                handle.log.about_to_wait(False)
                await changed.wait()
                changed.clear()
    finally:
        steps.close()  # type: ignore[attr-defined]
