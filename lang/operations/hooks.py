"""Hooks: told of every call of a model, before and after it, with its prompt, tokens, times and the program's line.

Knows operations and answers; knows nothing of those who listen.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

from ...runtime.programs.records.events import TokenCounts
from ...runtime.programs.records.steps import answer_fields
from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RequestError
from .operation_log import OperationLog

logger = logging.getLogger("ramiform.programs")

ModelOperation = session.Gen | session.Select | session.Decide

_hooks: ContextVar[tuple[Hook, ...]] = ContextVar("ramiform_hooks", default=())


class HookedCall:
    """A call of a model: a gen, select or decide. What its answer tells is there once it has ended.

    `operation` has the parameters, `line` is `file:line` of the program, `began` in seconds since the epoch. `memo` is
    for the hooks, such as a span.
    """

    def __init__(
        self,
        segments: Sequence[tuple[OperationLog, int]],
        index: int,
        program: str | None,
        model_name: Callable[[], str | None],
    ) -> None:
        log = segments[-1][0]
        operation = log.operations[index]
        assert isinstance(operation, ModelOperation)
        self.operation: ModelOperation = operation
        self.program = program
        self.line = log.locations[index]
        self.variable = log.names.get(index)
        self.began = time.time()
        self.seconds: float | None = None
        self.memo: dict[Any, Any] = {}
        self._model_name = model_name
        self._segments = segments
        self._index = index
        self._started = time.perf_counter()

    @functools.cached_property
    def prompt(self) -> str:
        """Return the text before the call; before its end as far as it is there."""
        texts = []
        for log, end in self._segments:
            last = self._index if log is self._segments[-1][0] else end
            texts += [log.done[one].text for one in log.visible(0, last) if one < len(log.done)]
        return "".join(texts)

    @property
    def has_roles(self) -> bool:
        """Return whether the call is a part of a chat."""
        return any(isinstance(one, session.RoleBegin) for log, _ in self._segments for one in log.operations)

    @property
    def model(self) -> str | None:
        """Return the model's name, which the backend is asked once."""
        return self._model_name()

    @property
    def text(self) -> str | None:
        """Return the text that was appended; None without an answer."""
        return self._answer.get("text")

    @property
    def tokens(self) -> TokenCounts | None:
        """Return the counts of prompt, cached and generated tokens; None without an answer."""
        return self._answer.get("tokens")

    @property
    def finish(self) -> str | None:
        """Return why a generation ended: "stop", "length" or "abort"."""
        return self._answer.get("finish")

    @property
    def error(self) -> ErrorInfo | None:
        """Return the error that the call ended with."""
        log = self._segments[-1][0]
        if self._index in log.failed:
            return log.failed[self._index]
        return log.error if len(log.done) <= self._index else None

    @property
    def _answer(self) -> Mapping[str, Any]:
        log = self._segments[-1][0]
        if len(log.done) <= self._index or self._index in log.failed:
            return {}
        return answer_fields(log.done[self._index])

    def note_end(self, told: Sequence[Hook]) -> None:
        """Note the time of the end, and pass the call on to the thread of the hooks. Neither blocks nor raises."""
        self.seconds = time.perf_counter() - self._started
        _ended().put(functools.partial(_tell_end, self, told))


class Hook:
    """Base of hooks. `before` is called where the program asks, in its thread; the others on a thread of their own, in
    the order of the ends. What a hook raises is logged, and the program goes on."""

    def before(self, call: HookedCall) -> None:
        """The call has been appended."""

    def after(self, call: HookedCall) -> None:
        """The call has been answered."""

    def error(self, call: HookedCall) -> None:
        """The call has failed, or was given up with its program."""


@contextlib.contextmanager
def hooks(*given: Hook) -> Iterator[None]:
    """Tell hooks of every call of the programs that begin inside the block, beside those of outer blocks.

    The block belongs to its context (`contextvars`): tasks that begin inside have it, other threads do not. Its end
    waits until the hooks know of all calls that have ended. Raises RequestError for what is no hook.
    """
    for one in given:
        if not all(callable(getattr(one, name, None)) for name in ("before", "after", "error")):
            raise RequestError(f"a hook has methods before, after and error, as Hook; got {one!r}", param="hooks")
    token = _hooks.set((*_hooks.get(), *given))
    try:
        yield
    finally:
        _hooks.reset(token)
        told = threading.Event()
        _ended().put(told.set)
        told.wait()


def current_hooks() -> tuple[Hook, ...]:
    """Return the hooks of programs that begin here."""
    return _hooks.get()


def observe(call: HookedCall, index: int, log: OperationLog, told: Sequence[Hook]) -> None:
    """Tell hooks of a call, operation `index` of the log, that was recorded, and of its end.

    Called without the log's lock: hooks are code of the program's author.
    """
    for hook in told:
        _tell(hook.before, call)
    log.when(index + 1, functools.partial(call.note_end, told))


def _tell_end(call: HookedCall, told: Sequence[Hook]) -> None:
    failed = call.error is not None
    for hook in told:
        _tell(hook.error if failed else hook.after, call)


def _tell(method: Callable[[HookedCall], None], call: HookedCall) -> None:
    try:
        method(call)
    except Exception:
        logger.exception("a hook failed")


@functools.cache
def _ended() -> SimpleQueue[Callable[[], None]]:
    """Return the queue of what the thread of the hooks calls."""
    queue = SimpleQueue[Callable[[], None]]()

    def run() -> None:
        while True:
            queue.get()()

    threading.Thread(target=run, name="ramiform-hooks", daemon=True).start()
    return queue
