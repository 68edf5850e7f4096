"""Merge asynchronous iterators into one, and await coroutines together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _SourceEnd:
    """Queue item after a source's last value."""

    error: Exception | None


async def merge(sources: Sequence[AsyncIterable[T]]) -> AsyncGenerator[T]:
    """Yield the values of all sources as they arrive. The first error cancels all sources and is raised.

    Each source is at most one value ahead, so a slow reader bounds the buffer.
    """
    queue: asyncio.Queue[T | _SourceEnd] = asyncio.Queue(maxsize=len(sources))

    async def pump(source: AsyncIterable[T]) -> None:
        try:
            async for value in source:
                await queue.put(value)
        except Exception as error:
            await queue.put(_SourceEnd(error))
        else:
            await queue.put(_SourceEnd(None))

    tasks = [asyncio.create_task(pump(source)) for source in sources]
    num_running = len(tasks)
    try:
        while num_running:
            item = await queue.get()
            if not isinstance(item, _SourceEnd):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                num_running -= 1
    finally:
        for task in tasks:
            task.cancel()


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results, in order. The first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in tasks if task.done() and task.exception() is not None), None)
        return [task.result() for task in ([failed] if failed is not None else tasks)]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
