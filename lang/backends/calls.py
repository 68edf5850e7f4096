"""Calls of a model for the states of a channel: a thread each, up to a number of them, the others in a queue.

Knows models and threads; what becomes of an answer is the channel's to know.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError
from .model import Model, ModelCall
from .steps import State

logger = logging.getLogger("ramiform.backends")


@dataclass(frozen=True, eq=False)
class Answered:
    """From a call's thread: what the model answered, or why it did not."""

    state: State
    call: ModelCall
    op: int
    answer: Any


@dataclass(frozen=True, eq=False)
class Streamed:
    state: State
    call: ModelCall
    op: int
    text: str


class Calls:
    """`tell` is given each `Streamed`, in order, and then the `Answered`, from any thread. With `num_threads` 0 the
    model is called in the caller's. The methods are for one thread, which calls `ended` for each Answered."""

    def __init__(self, model: Model, num_threads: int, tell: Callable[[Answered | Streamed], None]) -> None:
        self._model = model
        self._num_threads = num_threads
        self._tell = tell
        self._waiting: deque[Callable[[], None]] = deque()
        self._num_running = 0

    def begin(self, state: State, op: int, step: session.Gen | session.Select | session.Decide) -> None:
        state.call = call = ModelCall()

        def run() -> None:
            try:
                answer = self._answer(state, op, step, call)
            except BaseException as error:
                if not isinstance(error, RamiformError):
                    logger.exception("a backend failed on an error that is not the endpoint's")
                answer = ErrorInfo.of(error)
            self._tell(Answered(state, call, op, answer))

        if not self._num_threads:
            self._num_running += 1
            run()
        elif self._num_running < self._num_threads:
            self._start(run)
        else:
            self._waiting.append(run)

    def ended(self) -> None:
        self._num_running -= 1
        if self._waiting:
            self._start(self._waiting.popleft())

    def _start(self, run: Callable[[], None]) -> None:
        self._num_running += 1
        threading.Thread(target=run, name="ramiform-call", daemon=True).start()

    def _answer(
        self, state: State, op: int, step: session.Gen | session.Select | session.Decide, call: ModelCall
    ) -> Any:
        assert state.transcript is not None
        match step:
            case session.Gen():

                def on_text(text: str) -> None:
                    if step.stream and step.n == 1:
                        self._tell(Streamed(state, call, op, text))

                return self._model.generate(state.transcript, step, on_text, call)
            case session.Select():
                return step, self._model.select(state.transcript, step, call)
            case session.Decide(questions=questions):
                return self._model.decide(state.transcript, questions, call)
