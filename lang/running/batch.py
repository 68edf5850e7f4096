"""Running many programs at once: in threads, in one event loop, or recorded one after the other."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar

from ...runtime.protocol.errors import RequestError
from ..backends.backend import Channel
from ..states.state import ProgramState
from .failures import BatchError, Folded, fold
from .runner import Begun, ProgramCall, begin, begin_recorded, run_async, run_now

MAX_THREADS_AT_ONCE = 128  # "auto": threads mostly wait for the runtime, so many of them fit on few cores
MAX_AT_ONCE = 1024  # "auto" without threads, branches counted: the runtime's queue is bounded

P = ParamSpec("P")
T = TypeVar("T")

NumThreads = int | Literal["auto"]
StartProgram = Callable[
    [int], tuple[ProgramState, Callable[[], None]]
]  # by index: a new state, and a function that runs it to its end
ProgramResults = Iterator[
    tuple[int, Callable[[], ProgramState]]
]  # of each program its index, and what waits for it and raises its error
MAX_SORTED = 4096  # compiled programs that are recorded before the first of them runs


@dataclass(frozen=True)
class BatchOptions:
    """Options of a batch: how its programs run and what becomes of their errors, as `Program.run_batch` says.

    `in_order`: errors are raised in their place, not at the end. `in_threads`: each program takes a thread. `width` is
    the number of requests that one may make at once. Raises RequestError for a wrong `num_threads`.
    """

    num_threads: NumThreads
    progress_bar: bool
    return_exceptions: bool
    in_order: bool
    in_threads: bool
    width: int

    def __post_init__(self) -> None:
        given = self.num_threads
        if given != "auto" and (not isinstance(given, int) or given < 1):
            raise RequestError(f"num_threads must be positive or 'auto', got {given!r}", param="num_threads")

    @property
    def at_once(self) -> int:
        """Return how many programs run at once."""
        if self.num_threads == "auto":
            return MAX_THREADS_AT_ONCE if self.in_threads else max(1, MAX_AT_ONCE // self.width)
        return self.num_threads


def run_batch(channel: Channel, calls: Sequence[ProgramCall], options: BatchOptions) -> Iterator[Any]:
    """Run calls of one program; yield their states in order, or what stands in their place."""
    if not calls:
        return iter(())
    call, size = calls[0], len(calls)
    if call.caller is not None and call.caller._handle.execution.only_records:
        return (run_now(call) for call in calls)
    if call.is_async:
        return run_in_loop(channel, calls, options)
    if call.may_be_sent_whole:
        return run_recorded(lambda index: begin_recorded(channel, calls[index]), size, options)
    return run_in_threads(lambda index: begin(channel, calls[index]), size, options)


async def listed(results: AsyncIterator[Any]) -> list[Any]:
    """Return the list of the results; exceptions have the user's frames only."""
    with Folded():
        return [result async for result in results]


def run_in_threads(begin: StartProgram, size: int, options: BatchOptions) -> Iterator[Any]:
    """Run programs in threads; yield their states in order. An error or Ctrl-C closes the programs that still run."""
    return _results(_threaded(begin, size, min(size, options.at_once) or 1), size, options)


def run_recorded(begin: Callable[[int], Begun], size: int, options: BatchOptions) -> Iterator[Any]:
    """Run compiled programs in this thread: each is sent as one message, then waited for. Those that begin with the
    same text are sent one after the other, so that it is computed once however small the pool."""
    window = options.at_once
    num_sorted = -(-window // 2) if options.in_order else max(window, MAX_SORTED)
    return _results(_recorded(begin, size, window, num_sorted, in_order=options.in_order), size, options)


def run_in_loop(channel: Channel, calls: Sequence[ProgramCall], options: BatchOptions) -> Iterator[Any]:
    """Run async programs in one event loop, in a thread of its own; otherwise as `run_in_threads`."""
    return in_loop_thread(run_in_running_loop(lambda: channel, calls, options))


def in_loop_thread(results: AsyncIterator[T]) -> Iterator[T]:
    """Yield the results of an iterator whose event loop runs in a thread of its own, also between them. Closing it
    cancels the loop's tasks."""
    import asyncio  # not loaded for programs that are not async

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="ramiform-batch", daemon=True)
    thread.start()

    async def next_result() -> T | AsyncIterator[T]:
        return await anext(results, results)  # itself: there is none left

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.shutdown_asyncgens()

    try:
        while (result := asyncio.run_coroutine_threadsafe(next_result(), loop).result()) is not results:
            yield result  # type: ignore[misc]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def iterating(function: Callable[P, AsyncIterator[T]]) -> Callable[P, Iterator[T]]:
    """Return the twin of a function for code outside event loops, as `blocking` does; its iterator is not async."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return in_loop_thread(function(*args, **kwargs))

    run.__name__ = run.__qualname__ = function.__name__.removeprefix("a")
    return run


async def run_in_running_loop(
    connect: Callable[[], Channel], calls: Sequence[ProgramCall], options: BatchOptions
) -> AsyncIterator[Any]:
    """Run programs in the running event loop; yield as `run_in_threads`. Cancelling or closing it ends them all."""
    import asyncio

    slots = asyncio.Semaphore(options.at_once)
    channel = await asyncio.to_thread(connect)

    async def run_in_slot(call: ProgramCall) -> ProgramState:
        async with slots:
            return await run_async(channel, call)

    errors = _Errors(options)
    tasks = [asyncio.create_task(run_in_slot(call)) for call in calls]
    try:
        with progress_on_stderr("programs", len(calls), options.progress_bar) as advance:
            for index, task in enumerate(tasks):
                try:
                    result: ProgramState | BatchError = await task
                except Exception as error:
                    result = errors.take(index, error)
                advance()
                yield result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors.raise_first()


def _results(results: ProgramResults, size: int, options: BatchOptions) -> Iterator[Any]:
    errors = _Errors(options)
    found: dict[int, ProgramState | BatchError] = {}
    with (
        contextlib.closing(results),  # type: ignore[type-var]
        progress_on_stderr("programs", size, options.progress_bar) as advance,
    ):
        for index, wait_for_result in results:
            try:
                found[index] = wait_for_result()
            except Exception as error:
                found[index] = errors.take(index, error)
            advance()
            if options.in_order:
                yield found.pop(index)
    errors.raise_first()
    yield from (found[index] for index in sorted(found))


class _Errors:
    """The errors of a batch's programs: raised in their place, returned, or raised at the end."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._raised: dict[int, Exception] = {}

    def take(self, index: int, error: Exception) -> BatchError:
        """Return what stands in the place of the program's state. Raises the error if it is raised in its place."""
        fold(error)
        if self._options.in_order and not self._options.return_exceptions:
            raise error
        self._raised[index] = error
        return BatchError(index, error)

    def raise_first(self) -> None:
        if self._raised and not self._options.return_exceptions:
            raise self._raised[min(self._raised)]


def _threaded(begin: StartProgram, size: int, num_threads: int) -> ProgramResults:
    running: dict[int, ProgramState] = {}
    lock = threading.Lock()
    ended_early = False

    def run(index: int) -> ProgramState:
        state, run_to_end = begin(index)
        with lock:
            running[index] = state
            if ended_early:
                state.close()
        try:
            run_to_end()
        finally:
            with lock:
                del running[index]
        return state

    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="ramiform-batch")
    try:
        futures: list[Future[ProgramState]] = [executor.submit(run, index) for index in range(size)]
        for index, future in enumerate(futures):
            yield index, future.result
    finally:
        with lock:
            ended_early = True
            for state in running.values():
                state.close()
        executor.shutdown(cancel_futures=True)


def _recorded(
    begin: Callable[[int], Begun], size: int, window: int, num_sorted: int, *, in_order: bool
) -> ProgramResults:
    """Record `num_sorted` calls at a time, and send them as a walk of the trie of their texts, `window` at once.
    Without `in_order` they are waited for as they were sent."""
    running: dict[int, ProgramState] = {}
    waiting: deque[tuple[int, Callable[[], ProgramState]]] = deque()

    def prepare(index: int) -> tuple[int, str, Callable[[], None], Callable[[], None]]:
        try:
            begun = begin(index)
        except Exception as error:
            return index, "", _nothing, functools.partial(_raise, error)
        running[index] = begun.state
        return index, begun.opening, begun.send, begun.finish

    def end(index: int, finish: Callable[[], None]) -> ProgramState:
        finish()
        return running.pop(index)

    try:
        for first in range(0, size, num_sorted):
            group = [prepare(index) for index in range(first, min(first + num_sorted, size))]
            group.sort(key=lambda each: each[1])
            if in_order:
                while len(waiting) + len(group) > window:
                    yield waiting.popleft()
            sent = list[tuple[int, Callable[[], ProgramState]]]()
            for index, _, send, finish in group:
                while not in_order and len(waiting) >= window:
                    yield waiting.popleft()
                try:
                    send()
                except Exception as error:
                    finish = functools.partial(_raise, error)
                item = index, functools.partial(end, index, finish)
                (sent if in_order else waiting).append(item)
            waiting.extend(sorted(sent, key=lambda each: each[0]))
        while waiting:
            yield waiting.popleft()
    finally:
        for state in running.values():
            state.close()


def _nothing() -> None:
    """Nothing is to be sent."""


def _raise(error: Exception) -> None:
    raise error


@contextlib.contextmanager
def progress_on_stderr(label: str, size: int, shown: bool, *, num_done: int = 0) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr if `shown`; yield the function that advances it by one."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=size, completed=num_done)
        yield lambda: progress.advance(task)
