"""Backends whose programs run in this process: a model, and a channel with one thread that interprets programs.

Each call of the model has a thread of its own, up to a number of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ...runtime.programs.interpreter import ProgramInterpreter
from ...runtime.programs.running_program import StateProgress
from ...runtime.protocol.session import Gen, Operation, Play, Reply, RoleBegin, RoleEnd, Select, Text
from .calls import ModelCalls, call_later
from .executor import TranscriptExecutor, refuse_healing
from .inbox import InboxItem, InterpretingChannel
from .model import Method, Model
from .transcript import Transcript, TranscriptPart

Check = Callable[[Transcript, Operation], None]
_UNKNOWN = "..."  # stands for a text that is not there yet


def likely_transcript(operations: Iterable[Operation]) -> Transcript:
    """Return a transcript of the form that operations make, to check what is appended to it."""
    parts: list[TranscriptPart] = []
    open_role: str | None = None
    has_turns = False
    for operation in operations:
        match operation:
            case RoleBegin(role=role, tools=tools):
                # An agent's results answer calls, which are not known here.
                open_role = "user" if has_turns and role == "tool" else role
                offered = None if tools is None else tools.schemas
                parts.append(TranscriptPart("begin", "", role=open_role, tools=offered))
            case RoleEnd():
                open_role = None
                parts.append(TranscriptPart("end", ""))
            case Text(text=text):
                parts.append(TranscriptPart("text", text))
            case Gen(sampling=sampling):
                constraint = sampling.constraint
                has_turns |= constraint is not None and constraint.kind == "structural_tag"
                parts.append(TranscriptPart("generated", _UNKNOWN))
            case Select(append=True):
                parts.append(TranscriptPart("generated", _UNKNOWN))
    return Transcript(tuple(parts), open_role)


class LocalBackend(Model):
    """Base of backends that are their model. The channel is made on first use.

    `num_threads` calls of the model run at once. With 0 it is called one call at a time, in the order in which
    operations arrive.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._lock = threading.Lock()
        self._channel: LocalChannel | None = None

    def connection(self) -> LocalChannel:
        with self._lock:
            if self._channel is None:
                self._channel = LocalChannel(self, self._num_threads)
            return self._channel

    def close(self) -> None:
        """End every program that runs on it. Calling it again does nothing."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()


class LocalChannel(InterpretingChannel):
    """A `Channel` of a model. `num_threads` are those of `LocalBackend`."""

    def __init__(self, model: Model, num_threads: int) -> None:
        super().__init__("ramiform-backend")
        self._model = model
        self._calls = ModelCalls(num_threads, self.inbox.put)
        self.interpreter = ProgramInterpreter(self.deliver, self._open_executor, call_later(self.inbox.put))
        self.check: Check | None = self._check if model.checks_operations else None
        self.start()

    def _check(self, transcript: Transcript, operation: Operation) -> None:
        refuse_healing(operation)
        self._model.check(transcript, operation)

    def call(self, method: Method) -> Reply:
        return self._model.answer_call(method, next(self._numbers))

    def take(self, item: InboxItem) -> None:
        if isinstance(item, Play):  # played one by one, so that answers are asked for in the order of the parts
            for part in item.messages:
                self.take(part)
        else:
            super().take(item)

    def _open_executor(self, state: StateProgress) -> TranscriptExecutor:
        return TranscriptExecutor(self._model, self._calls, state, Transcript())
