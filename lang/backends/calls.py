"""Runs calls of a model for a channel: a thread each, up to a number of them, the others in a queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ...runtime.programs.executor import OperationResult, PendingResult
from ...runtime.programs.running_program import CallLater
from ...runtime.protocol.errors import ErrorInfo, RamiformError
from .model import ModelCall

logger = logging.getLogger("ramiform.backends")

T = TypeVar("T")


def call_later(post: Callable[[Callable[[], None]], None]) -> CallLater:
    """Return a function that posts a callback after some seconds, unless its timer is cancelled before."""

    def start(seconds: float, callback: Callable[[], None]) -> threading.Timer:
        timer = threading.Timer(seconds, post, (callback,))
        timer.daemon = True
        timer.start()
        return timer

    return start


class ModelCalls:
    """Calls a model from threads. `post` hands a function to the channel's thread, from any thread. With `num_threads`
    0 the model is called in the caller's thread. `begin` is for the channel's thread."""

    def __init__(self, num_threads: int, post: Callable[[Callable[[], None]], None]) -> None:
        self.post = post
        self._num_threads = num_threads
        self._waiting: deque[Callable[[], None]] = deque()
        self._num_running = 0

    def begin(self, work: Callable[[ModelCall], T], finish: Callable[[T], OperationResult]) -> PendingResult:
        """Run `work` on a thread, then `finish` on the channel's with what it returned, unless it was cancelled."""
        call = ModelCall()
        pending = PendingResult(call.cancel)

        def run() -> None:
            try:
                answer = work(call)
            except BaseException as error:
                if not isinstance(error, RamiformError):
                    logger.exception("a backend failed on an internal error")
                failure = ErrorInfo.of(error)
                self.post(lambda: end(lambda: failure))
            else:
                self.post(lambda: end(lambda: finish(answer)))

        def end(result: Callable[[], OperationResult | ErrorInfo]) -> None:
            self._num_running -= 1
            if self._waiting:
                self._start(self._waiting.popleft())
            if pending.cancelled:
                return
            try:
                outcome = result()
            except RamiformError as error:
                outcome = ErrorInfo.of(error)
            pending.resolve(outcome)

        if not self._num_threads:
            self._num_running += 1
            run()
        elif self._num_running < self._num_threads:
            self._start(run)
        else:
            self._waiting.append(run)
        return pending

    def _start(self, run: Callable[[], None]) -> None:
        self._num_running += 1
        threading.Thread(target=run, name="ramiform-call", daemon=True).start()
