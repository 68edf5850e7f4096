"""A program's body beside whoever reads it, for `run(stream=True)`. Knows when it ended and with what; no variables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .operation_log import OperationLog

if TYPE_CHECKING:
    from asyncio import Task

_inside: ContextVar[BackgroundRun | None] = ContextVar("ramiform_body", default=None)  # whose body this code is part of


class BackgroundRun:
    """A body that has been started, and `abandon` for what it raises. `log` changes when it is over, so that readers
    wake. Start it by `in_thread` or `in_loop`."""

    def __init__(self, abandon: Callable[[BaseException], None], log: OperationLog) -> None:
        self.ended = False
        self.failure: BaseException | None = None
        self._abandon: Callable[[BaseException], None] | None = abandon  # holds the state
        self._log = log
        self._task: Task[None] | None = None  # held: a loop does not

    @property
    def is_followed(self) -> bool:
        """Whether more may come, seen from here. To the body itself, and what it has started, all that will come is
        there."""
        return not self.ended and _inside.get() is not self

    def in_thread(self, body: Callable[[], None]) -> None:
        def run() -> None:
            _inside.set(self)
            try:
                body()
            except BaseException as error:
                self._end(error)
            else:
                self._end(None)

        threading.Thread(target=run, name="ramiform-program", daemon=True).start()

    def in_loop(self, body: Coroutine[Any, Any, None]) -> None:
        import asyncio

        async def run() -> None:
            _inside.set(self)
            try:
                await body
            except BaseException as error:
                self._end(error)
                if not isinstance(error, Exception):
                    raise
            else:
                self._end(None)

        self._task = asyncio.get_running_loop().create_task(run())

    def _end(self, failure: BaseException | None) -> None:
        self.failure = failure  # before anything else fails because of it
        if failure is not None and self._abandon is not None:
            self._abandon(failure)
        self._abandon = None
        with self._log.changed:
            self.ended = True
            self._log.touch()
