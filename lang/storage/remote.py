"""States of a backend, opened at the first operation that the store cannot answer, with the content before it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from ...runtime.programs.executor import OnDelta
from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError
from ..backends.backend import Channel

Post = Callable[[Callable[[], None]], None]  # calls a function on the thread of the programs
OnAnswer = Callable[[session.Done | ErrorInfo], None]


class RemoteListener:
    """Passes the answers of a state to the callbacks of its operations, on the thread of `post`."""

    def __init__(self, post: Post) -> None:
        self.waiting: dict[int, tuple[OnAnswer, OnDelta | None]] = {}
        self.error: ErrorInfo | None = None
        self._post = post

    # On any thread

    def receive(self, message: session.Delta | session.Attempted | session.Done | session.Failed) -> None:
        self._post(lambda: self._take(message))

    def fail(self, error: ErrorInfo) -> None:
        self._post(lambda: self.take_failure(error))

    # On the thread of the programs

    def take_failure(self, error: ErrorInfo) -> None:
        """Fail every operation that waits, and those to come."""
        self.error = self.error or error
        waiting, self.waiting = self.waiting, {}
        for on_answer, _ in waiting.values():
            on_answer(self.error)

    def _take(self, message: session.Delta | session.Attempted | session.Done | session.Failed) -> None:
        match message:
            case session.Delta():
                on_delta = self.waiting[message.op][1] if message.op in self.waiting else None
                if on_delta is not None:
                    on_delta(message.text, message.ids, message.logprobs)
            case session.Done():
                if message.op in self.waiting:
                    self.waiting.pop(message.op)[0](message)
            case session.Failed():
                self.take_failure(message.error)


class RemoteState:
    """A state of the backend, which forgets it once this object is collected."""

    def __init__(self, channel: Channel, post: Post) -> None:
        self._channel = channel
        self._post = post
        self._listener = RemoteListener(post)
        self._next_op = 0
        self.number = channel.attach(self._listener)
        self._forget = weakref.finalize(self, channel.detach, self.number)
        self._forget.atexit = False

    def open(self, program: int) -> None:
        """Open the state empty, as one of the program with that number."""
        self._send(session.Open(self.number, program))

    def append(
        self,
        operations: Sequence[session.Operation],
        on_answer: OnAnswer | None = None,
        on_delta: OnDelta | None = None,
    ) -> None:
        """Append operations; `on_answer` is called with the answer to the last one, or with the error before it."""
        if not operations:
            return
        first, self._next_op = self._next_op, self._next_op + len(operations)
        if on_answer is not None:
            if (error := self._listener.error) is not None:
                self._post(lambda: on_answer(error))
                return
            self._listener.waiting[self._next_op - 1] = on_answer, on_delta
        self._send(session.Append(self.number, first, list(operations)))

    def fork(self, size: int) -> list[RemoteState]:
        """Return states that begin with this one's content."""
        children = [RemoteState(self._channel, self._post) for _ in range(size)]
        self.append([session.Fork(tuple(child.number for child in children))])
        return children

    def close(self) -> None:
        """Abort the state's work."""
        self._forget()

    def _send(self, message: session.Open | session.Append) -> None:
        try:
            self._channel.send(message)
        except RamiformError as failure:
            self._listener.fail(ErrorInfo.of(failure))


class Remotes:
    """The states that programs have on a backend."""

    def __init__(self, channel: Channel, post: Post) -> None:
        self._channel = channel
        self._post = post
        self._programs: dict[int, int] = {}  # number of a program -> its number on the backend
        self._states: dict[int, weakref.WeakSet[RemoteState]] = {}  # by program

    def open(self, program: int) -> RemoteState:
        """Open an empty state of a program."""
        state = RemoteState(self._channel, self._post)
        state.open(self._programs.setdefault(program, state.number))
        self.add(program, [state])
        return state

    def add(self, program: int, states: Sequence[RemoteState]) -> None:
        """Count states, forks of others, as the program's."""
        self._states.setdefault(program, weakref.WeakSet()).update(states)

    def end(self, program: int) -> None:
        """Close every state of a program."""
        self._programs.pop(program, None)
        for state in list(self._states.pop(program, ())):
            state.close()


class ForkPoint:
    """The content that the branches of a fork share; a state of the backend has it once a branch asks the backend."""

    def __init__(self, parent: ForkPoint | None, operations: Sequence[session.Operation]) -> None:
        self._parent = parent
        self._operations = tuple(operations)
        self._state: RemoteState | None = None

    def state(self, remotes: Remotes, program: int) -> RemoteState:
        """Return the state with this content, to which nothing is appended."""
        missing = []
        point: ForkPoint | None = self
        while point is not None and point._state is None:  # a loop, since forks of forks may be deep
            missing.append(point)
            point = point._parent
        state = None if point is None else point._state
        for point in reversed(missing):
            if state is None:
                state = remotes.open(program)
            else:
                [state] = state.fork(1)
                remotes.add(program, [state])
            state.append(point._operations)
            point._state = state
        assert state is not None
        return state
