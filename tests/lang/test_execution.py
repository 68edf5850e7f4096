"""A deferred run keeps its messages until the first wait, in whichever thread that is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ramiform.lang.operations.execution import Execution
from ramiform.lang.operations.operation_log import OperationLog
from ramiform.runtime.protocol.errors import ErrorInfo, RuntimeFailed
from ramiform.runtime.protocol.session import Append, Open, Play, Text


class Channel:
    """Keeps what is sent, and knows who listens."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.listeners: dict[int, Any] = {}

    def attach(self, listener: Any) -> int:
        self.listeners[number := len(self.listeners) + 1] = listener
        return number

    def detach(self, state: int) -> None:
        del self.listeners[state]

    def send(self, message: Any) -> None:
        time.sleep(0)  # others go first, as when a socket is written to
        self.sent.append(message)

    def call(self, method: Any) -> Any:
        raise AssertionError("nobody asks")


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads interrupt one another as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_threads_that_speak_while_others_wait_are_heard_once_each() -> None:
    for _ in range(100):
        channel = Channel()
        execution = Execution(channel, deferred=True)
        logs = [OperationLog() for _ in range(6)]
        numbers = [execution.attach(log) for log in logs]
        execution.open(numbers[0], logs[0])
        together = threading.Barrier(len(logs))

        def speak(number: int, log: OperationLog, execution: Execution = execution, together: Any = together) -> None:
            execution.append(Append(number, 0, [Text("a")]), log)
            together.wait()
            execution.append(Append(number, 1, [Text("b")]), log)
            execution.flush()
            execution.append(Append(number, 2, [Text("c")]), log)

        threads = [threading.Thread(target=speak, args=pair) for pair in zip(numbers, logs, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept, *rest = channel.sent
        assert isinstance(kept, Play)
        assert not any(isinstance(message, Play) for message in rest)
        said = [*kept.messages, *rest]
        assert isinstance(said[0], Open)
        for number in numbers:
            assert [one.first for one in said[1:] if one.state == number] == [0, 1, 2]


def test_states_that_went_before_anything_was_sent_are_forgotten_with_the_run() -> None:
    channel = Channel()
    execution = Execution(channel, deferred=True)
    first, second = (execution.attach(OperationLog()) for _ in range(2))
    execution.detach(second)
    assert set(channel.listeners) == {first, second}, "what is kept may need it"
    execution.close(ErrorInfo.of(RuntimeFailed("over")))
    assert set(channel.listeners) == {first}
    assert not channel.sent
