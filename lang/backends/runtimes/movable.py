"""A channel to a runtime that may hand its programs over to a replica: it keeps what they need to go on there.

A runtime that is drained sends a client whose states all wait to another address. There the channel opens the states
again with their operations: those that were answered as text and ids that are known, so that nothing is generated again
and no text is tokenised again, and those that wait as they are. The KV of the ids has been moved before.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from ....runtime.protocol import session
from ....runtime.protocol.errors import ErrorInfo, RamiformError, RequestError, RuntimeFailed
from .program_history import replayed

if TYPE_CHECKING:
    from ....runtime.protocol.client import Connection, Listener


@dataclass(eq=False)
class _MovableState:
    number: int
    program: _MovableProgram
    operations: list[session.Operation] = field(default_factory=list)  # answered ones as they are played again
    num_delivered: int = 0  # operations whose answers the program has
    supplies: dict[int, session.Supply] = field(default_factory=dict)  # by Ask
    is_closed: bool = False


@dataclass(eq=False)
class _MovableProgram:
    opened: session.Open
    began: float
    complete: bool = False
    num_tokens: int = 0  # that were generated
    states: dict[int, _MovableState] = field(default_factory=dict)
    parts: list[tuple[_MovableState, int, int] | session.Open] = field(
        default_factory=list
    )  # operations [first, end) of a state

    @property
    def is_over(self) -> bool:
        return all(state.is_closed for state in self.states.values())

    def messages(self) -> Iterator[session.Open | session.Append]:
        """Yield the messages that bring the program to where it is."""
        for part in self.parts:
            if isinstance(part, session.Open):
                yield msgspec.structs.replace(part, budget=self._budget_left(part.budget))
            else:
                state, first, end = part
                yield session.Append(state.number, first, [_known(state, op) for op in range(first, end)])

    def _budget_left(self, budget: session.Budget | None) -> session.Budget | None:
        if budget is None:
            return None
        seconds, tokens = budget.seconds, budget.tokens
        return session.Budget(
            seconds=None if seconds is None else max(1e-3, seconds - (time.monotonic() - self.began)),
            tokens=None if tokens is None else max(1, tokens - self.num_tokens),
        )


@dataclass(frozen=True, eq=False)
class _Relay:
    """The listener of a state's answers: notes them, and passes on those that the program does not have."""

    channel: MovableChannel
    state: int
    listener: Listener

    def receive(self, message: session.Delta | session.Attempted | session.Done | session.Failed) -> None:
        if self.channel.note(message):
            self.listener.receive(message)

    def fail(self, error: ErrorInfo) -> None:
        if error.code != "moved":
            self.channel.forget(self.state)
            self.listener.fail(error)
        else:
            self.channel.follow(error)


class MovableChannel:
    """A `Channel` that follows its programs to the runtime that they are moved to. `connect` connects to an address."""

    def __init__(self, connection: Connection, connect: Callable[[str], Connection]) -> None:
        self._connection = connection
        self._connect = connect
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._programs: dict[int, _MovableProgram] = {}
        self._states: dict[int, _MovableState] = {}
        self._relays: dict[int, _Relay] = {}
        self._detached: deque[int] = deque()
        self._moving: threading.Thread | None = None
        self._is_closed = False

    @property
    def address(self) -> str:
        """The address of the runtime that has the programs now."""
        return self._connection.address

    @property
    def wants_notes(self) -> bool:
        return self._connection.wants_notes

    def attach(self, listener: Listener) -> int:
        number = next(self._numbers)
        relay = self._relays[number] = _Relay(self, number, listener)
        self._connection.attach_as(number, relay)
        return number

    def detach(self, state: int) -> None:
        self._relays.pop(state, None)
        self._detached.append(state)  # takes no lock: garbage collection may call this
        self._connection.detach(state)

    def send(self, message: session.ToFrontend) -> None:
        with self._lock:
            self._close_detached()
            self._record(message)
            try:
                self._connection.send(message)
            except RequestError:
                raise
            except RamiformError:
                if self._connection.moved is None or self._is_closed:
                    raise
                self.follow(self._connection.moved)  # the message is sent with the others

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> session.Reply:
        try:
            return self._connection.call(method)
        except RamiformError:
            if (moved := self._connection.moved) is None:
                raise
            self.follow(moved)
            if (thread := self._moving) is not None:
                thread.join()
            return self._connection.call(method)

    def close(self) -> None:
        """End every program. Calling it again does nothing."""
        with self._lock:
            self._is_closed = True
        self._connection.close()

    # Called by the relays, on a connection's thread

    def note(self, message: session.Delta | session.Attempted | session.Done | session.Failed) -> bool:
        """Note an answer. Returns False if the program has it already."""
        with self._lock:
            state = self._states.get(message.state)
            if state is None:
                return True
            if message.op < state.num_delivered:
                return False
            if isinstance(message, session.Done | session.Failed):
                state.num_delivered = message.op + 1
            if isinstance(message, session.Done):
                state.program.num_tokens += sum(one.completion_tokens for one in message.sequences or ())
                state.operations[message.op] = replayed(state.operations[message.op], message)
            return True

    def forget(self, number: int) -> None:
        """Forget a state that is lost."""
        self._relays.pop(number, None)
        self._detached.append(number)

    def follow(self, moved: ErrorInfo) -> None:
        """Begin to move to the address that a runtime has told, unless that has begun."""
        with self._lock:
            if self._moving is None and not self._is_closed:
                self._moving = threading.Thread(target=self._move, args=(moved,), name="ramiform-move", daemon=True)
                self._moving.start()

    def _move(self, moved: ErrorInfo) -> None:
        try:
            connection = self._connect(moved.param or "")
        except BaseException as error:
            failure = ErrorInfo.of(RuntimeFailed(f"the programs could not follow to {moved.param}: {error}"))
            with self._lock:
                self._moving = None
                self._is_closed = True
                relays = list(self._relays.values())
            for relay in relays:
                relay.listener.fail(failure)
            return
        with self._lock:
            before, self._connection = self._connection, connection
            self._moving = None
            self._close_detached()
            for number, relay in list(self._relays.items()):
                connection.attach_as(number, relay)
            try:
                for message in self._messages():
                    connection.send(message)
            except RamiformError:
                pass  # the relays know
        before.close()

    # What is needed to go on elsewhere; call with the lock

    def _messages(self) -> Iterator[session.ToFrontend]:
        """Yield the messages that bring all programs to where they are."""
        for program in self._programs.values():
            yield session.Play(list(program.messages()), program.complete)
            for state in program.states.values():
                for op, supply in state.supplies.items():
                    if op >= state.num_delivered and supply.error is not None:
                        yield supply
            if closed := tuple(state.number for state in program.states.values() if state.is_closed):
                yield session.Close(closed)

    def _record(self, message: session.ToFrontend) -> None:
        match message:
            case session.Play(messages=messages, complete=complete):
                for part in messages:
                    self._record(part)
                for part in messages:
                    if isinstance(part, session.Open):
                        self._programs[part.program].complete = complete
            case session.Open(state=number, program=name):
                program = self._programs.setdefault(name, _MovableProgram(message, time.monotonic()))
                program.parts.append(message)
                self._add(number, program)
            case session.Append():
                self._append(message)
            case session.Supply(state=number, op=op) if (state := self._states.get(number)) is not None:
                if op < len(state.operations) and isinstance(state.operations[op], session.Ask):
                    state.supplies.setdefault(op, message)
            case session.Close(states=states, programs=programs):
                self._close(
                    [*states, *(n for name in programs for n in getattr(self._programs.get(name), "states", ()))]
                )
            case _:
                pass

    def _append(self, message: session.Append) -> None:
        state = self._states.get(message.state)
        if state is None or message.first != len(state.operations):
            return  # the runtime says so
        state.program.complete = False
        state.operations += message.operations
        for operation in message.operations:
            if isinstance(operation, session.Fork):
                for child in operation.children:
                    self._add(child, state.program)
        state.program.parts.append((state, message.first, len(state.operations)))

    def _add(self, number: int, program: _MovableProgram) -> None:
        self._states[number] = program.states[number] = _MovableState(number, program)

    def _close_detached(self) -> None:
        numbers = []
        while self._detached:
            numbers.append(self._detached.popleft())
        self._close(numbers)

    def _close(self, numbers: list[int]) -> None:
        for number in numbers:
            if (state := self._states.pop(number, None)) is None:
                continue
            state.is_closed = True
            if state.program.is_over:
                self._programs.pop(state.program.opened.program, None)


def _known(state: _MovableState, op: int) -> session.Operation:
    """Return an operation as it is played again: what was supplied to an Ask in its place."""
    operation, supply = state.operations[op], state.supplies.get(op)
    if not isinstance(operation, session.Ask) or supply is None or supply.error is not None:
        return operation
    return session.Generated(text=supply.text, chosen=True) if operation.chosen else session.Text(supply.text)
