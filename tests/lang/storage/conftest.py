"""A backend that counts what is sent to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

import ramiform
from ramiform.lang.backends.backend import Backend, Channel
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.client import Listener


class CountingBackend:
    """Passes everything on to a backend and lists the operations that it is sent."""

    def __init__(self, backend: Backend) -> None:
        self._channel = backend.connection()
        self.operations: list[session.Operation] = []

    def connection(self) -> Channel:
        return self

    def count(self, *kinds: type[Any]) -> int:
        return sum(isinstance(operation, kinds) for operation in self.operations)

    @property
    def num_generations(self) -> int:
        return self.count(session.Gen, session.Select, session.Decide)

    def attach(self, listener: Listener) -> int:
        return self._channel.attach(listener)

    def detach(self, state: int) -> None:
        self._channel.detach(state)

    def send(self, message: session.ToFrontend) -> None:
        for part in message.messages if isinstance(message, session.Play) else [message]:
            if isinstance(part, session.Append):
                self.operations += part.operations
        self._channel.send(message)

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> session.Reply:
        return self._channel.call(method)


@pytest.fixture
def counting() -> Callable[[Backend], CountingBackend]:
    return CountingBackend


@pytest.fixture
def counted(backend: ramiform.Runtime) -> CountingBackend:
    """The real runtime with the model that ships."""
    return CountingBackend(backend)
