"""A channel that answers operations from a store, and sends those that the store lacks to a backend's channel."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Literal

from ...runtime.programs.interpreter import ProgramInterpreter
from ...runtime.programs.running_program import StateProgress
from ...runtime.protocol.session import Reply
from ..backends.backend import Channel
from ..backends.calls import call_later
from ..backends.inbox import InterpretingChannel
from .answers import AnswerStore, StoredRun
from .executor import StoreAccess, StoredExecutor
from .remote import Remotes

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener


class StoredPrograms(InterpretingChannel):
    """Interprets programs on a thread of its own, which ends when None comes from the inbox."""

    def __init__(self, store: AnswerStore, channel: Channel) -> None:
        super().__init__("ramiform-store", closed="the store's channel has ended")
        self.runs: dict[int, StoredRun] = {}  # by program
        self.paths: dict[int, str] = {}  # of first states that have one, by number
        self.executors: weakref.WeakValueDictionary[int, StoredExecutor] = weakref.WeakValueDictionary()  # by state
        self._remotes = Remotes(channel, self.inbox.put)
        self._access = StoreAccess(store, self._remotes, self.inbox.put, self.executors)
        self.interpreter = ProgramInterpreter(
            self.deliver, self._open_executor, call_later(self.inbox.put), states_ended=self._states_ended
        )
        self.start()

    def _open_executor(self, state: StateProgress) -> StoredExecutor:
        run = self.runs.setdefault(state.program.whole.number, StoredRun())
        return StoredExecutor(self._access, state, run, path=self.paths.pop(state.number, "0"))

    def _states_ended(self, program: int, states: list[int] | None) -> None:
        if states is None:
            self._remotes.end(program)
            self.runs.pop(program, None)


class StoredChannel:
    """A `Channel` of a store before another channel.

    Programs hold it, and its thread ends once it is collected. A generation that is not kept takes a round trip of its
    own, since what comes after it is looked up first.
    """

    def __init__(self, store: AnswerStore, channel: Channel) -> None:
        self._channel = channel
        self._programs = StoredPrograms(store, channel)
        self.check = getattr(channel, "check", None)  # what the backend cannot answer is not kept either
        self.attach, self.detach, self.send = self._programs.attach, self._programs.detach, self._programs.send
        self._end = weakref.finalize(self, self._programs.inbox.put, None)
        self._end.atexit = False

    def attach_run(self, listener: Listener, run: StoredRun) -> int:
        """Attach the first state of a program, which belongs to `run`."""
        number = self.attach(listener)
        self._programs.runs[number] = run
        return number

    def name_state(self, state: int, path: str) -> None:
        """Name a state that is not open yet, and no fork, by this path."""
        self._programs.paths[state] = path

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> Reply:
        return self._channel.call(method)

    def place_of(self, state: int) -> tuple[str, int] | None:
        """Return the path of a state that waits for the client, and the index of the operation that waits."""
        executor = self._programs.executors.get(state)
        return None if executor is None else (executor.path, executor.index)

    def close(self) -> None:
        """End every program that runs on it. Calling it again does nothing."""
        self._end.detach()
        self._programs.close()
