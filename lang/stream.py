"""Following a state's text as it comes, from a thread or from an event loop. Sleeps while there is nothing new.

Knows logs and cursors; knows no variables. `pieces` says what comes next or what to wait for; the two drivers wait
each in their own way.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass

from .operation_log import OperationLog

# Whose operations, from which, to before which; the end may still be unknown: None as long as it is.
Span = tuple[OperationLog, int, Callable[[], int | None]]


@dataclass(frozen=True, slots=True)
class WaitForChange:
    """Nothing new in `log` since its `version`."""

    log: OperationLog
    version: int


def text_pieces(spans: Iterable[Span]) -> Iterator[str | WaitForChange]:
    """The text of the spans in order. Raises the state's error once what came before it has been given."""
    for log, index, end_of in spans:
        given = 0  # characters of operation `index` given already
        while True:
            with log.changed:
                end = end_of()
                if end is not None and index >= end:
                    break
                answered = index < len(log.done)
                text = log.done[index].text if answered else log.partial if index == len(log.done) else ""
                error, version = log.error, log.version
                # An error concerns what was recorded; of an open end, only the end tells whether more was to come.
                expected = index < len(log.operations)
            new = text[given:]
            given += len(new)
            if new:
                yield new
            if answered:
                index, given = index + 1, 0
            elif not new:
                if error is not None and expected:
                    raise error.to_exception()
                yield WaitForChange(log, version)


def drive(steps: Iterator[str | WaitForChange]) -> Iterator[str]:
    for step in steps:
        if isinstance(step, WaitForChange):
            step.log.wait_for_change(step.version)
        else:
            yield step


async def drive_async(steps: Iterator[str | WaitForChange]) -> AsyncIterator[str]:
    for step in steps:
        if isinstance(step, WaitForChange):
            await until_changed(step.log, step.version)
        else:
            yield step


async def until_answered(log: OperationLog, end: int) -> None:
    """Wait until the first `end` operations are answered or will not all be."""
    import asyncio

    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def arrive() -> None:
        if not arrived.done():
            arrived.set_result(None)

    def tell() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(arrive)

    with log.changed:
        if len(log.done) >= end or log.error is not None:
            return
        log.about_to_wait(False)
        log.when(end, tell)
    await arrived


async def until_changed(log: OperationLog, version: int) -> None:
    """Wait until something is newer than `version`."""
    import asyncio  # who is here has it loaded; the language alone does without

    loop = asyncio.get_running_loop()
    news = asyncio.Event()

    def on_change() -> None:
        with contextlib.suppress(RuntimeError):  # a loop that has closed since waits for nothing
            loop.call_soon_threadsafe(news.set)

    log.about_to_wait(False)
    log.watch(on_change)
    try:
        if log.version == version:
            await news.wait()
    finally:
        log.unwatch(on_change)
