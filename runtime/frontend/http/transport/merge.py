"""Several asynchronous iterators, or results, as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    error: Exception | None


async def merge(sources: Sequence[AsyncIterable[T]]) -> AsyncGenerator[T]:
    """The values of all sources as they come. The first error ends all of them and is raised.

    Each source is at most a value ahead, so that a slow reader does not make them pile up.
    """
    queue: asyncio.Queue[T | _End] = asyncio.Queue(maxsize=len(sources))

    async def pump(source: AsyncIterable[T]) -> None:
        try:
            async for value in source:
                await queue.put(value)
        except Exception as error:
            await queue.put(_End(error))
        else:
            await queue.put(_End(None))

    tasks = [asyncio.create_task(pump(source)) for source in sources]
    num_running = len(tasks)
    try:
        while num_running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                num_running -= 1
    finally:
        for task in tasks:
            task.cancel()


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, in their order. The first error ends all of them and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in tasks if task.done() and task.exception() is not None), None)
        return [task.result() for task in ([failed] if failed is not None else tasks)]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
