"""Long work in worker threads, beside the event loop: it stops soon after its caller is cancelled.

Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from typing import TypeVar

from pydantic import BaseModel

_LARGE = 1 << 16  # characters; each value counts for _PER_VALUE of them besides its own
_PER_VALUE = 16
_PER_TURN = 16
T = TypeVar("T")


class WorkCancelledError(Exception):
    """Nobody waits for the work any more."""


class CancellationToken:
    """Tells work that nobody waits for it any more."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raise WorkCancelledError once it is cancelled. Call it between the steps of long work."""
        if self._event.is_set():
            raise WorkCancelledError


async def offload(work: Callable[[CancellationToken], T]) -> T:
    """The result of `work`, which runs in a thread.

    When the caller is cancelled, the work is told, and the caller goes on only after the work has ended: until then
    the request that asked for it still counts as running.
    """
    cancellation = CancellationToken()
    running = asyncio.get_running_loop().run_in_executor(None, work, cancellation)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancellation.cancel()
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                continue
        running.exception()  # read, so that nobody is told of an error that no one waits for
        raise


async def offload_if_large(work: Callable[[CancellationToken], T], *about: object) -> T:
    """The result of `work`, which runs in a thread when the values that it is about are large."""
    return await offload(work) if is_large(*about) else work(CancellationToken())


async def cooperative_iter(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; after every few of them other tasks of the event loop have their turn."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % _PER_TURN == 0:
            await asyncio.sleep(0)


def is_large(*values: object) -> bool:
    """Return True if work on every part of the values would keep the event loop from its other tasks."""
    rest = [*values]
    left = _LARGE
    while rest and left > 0:
        value = rest.pop()
        left -= _PER_VALUE
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict):
            rest += islice(value.values(), left // _PER_VALUE + 1)
        elif isinstance(value, list):
            rest += islice(value, left // _PER_VALUE + 1)
        elif isinstance(value, BaseModel):
            rest += value.__dict__.values()
    return left <= 0
