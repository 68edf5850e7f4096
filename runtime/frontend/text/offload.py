"""Runs long work in worker threads, so that it does not block the event loop; it ends soon after its caller does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from typing import TypeVar

from pydantic import BaseModel

_LARGE = 1 << 16  # characters; each value counts for _PER_VALUE of them besides its own
_PER_VALUE = 16
_PER_TURN = 16
T = TypeVar("T")


class WorkCancelledError(Exception):
    """The caller of the work was cancelled."""


class CancellationToken:
    """Tells work in a thread that its caller was cancelled."""

    def __init__(self) -> None:
        self._is_cancelled = False  # no lock: one thread sets it, the other looks now and then

    def cancel(self) -> None:
        self._is_cancelled = True

    def check(self) -> None:
        """Raise WorkCancelledError once the token is cancelled. Call it between the steps of long work."""
        if self._is_cancelled:
            raise WorkCancelledError


async def offload(work: Callable[[CancellationToken], T]) -> T:
    """Run `work` in a thread and return its result.

    When the caller is cancelled, so is the token, and the caller goes on only after the work has ended: until then its
    request still counts as running.
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
        running.exception()  # read, so that asyncio does not log it as never retrieved
        raise


async def offload_if_large(work: Callable[[CancellationToken], T], *about: object) -> T:
    """Run `work` and return its result; in a thread if the values in `about` are large."""
    return await offload(work) if is_large(*about) else work(CancellationToken())


async def cooperative_iter(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over items, yielding to the event loop after every few of them."""
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
