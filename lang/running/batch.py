"""Running many programs at once: in threads, in one event loop, or recorded one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

from ...runtime.protocol.errors import RequestError
from ..backends.backend import Channel
from ..states.state import ProgramState
from .failures import BatchError, fold
from .runner import ProgramCall, run_async

MAX_THREADS = 128  # "auto": threads mostly wait for the runtime, so many of them fit on few cores
MAX_AT_ONCE = 1024  # "auto" without threads, branches counted: the runtime's queue is bounded

NumThreads = int | Literal["auto"]
StartProgram = Callable[
    [int], tuple[ProgramState, Callable[[], None]]
]  # by index: a new state, and a function that runs it to its end
ProgramResults = Iterator[Callable[[], ProgramState]]  # in order; each waits for a program and raises its error


def run_in_threads(
    begin: StartProgram, size: int, num_threads: NumThreads, progress_bar: bool, return_exceptions: bool, in_order: bool
) -> Iterator[Any]:
    """Run programs in threads; yield their states in order, as `Program.run_batch` says.

    `in_order`: errors are raised in their place, not at the end. An error or Ctrl-C closes the programs that still run.
    """
    threads = min(size, _limit(num_threads, MAX_THREADS)) or 1
    return _results(_threaded(begin, size, threads), size, progress_bar, return_exceptions, in_order)


def run_in_loop(
    run: Callable[[int], Coroutine[Any, Any, ProgramState]],
    size: int,
    num_threads: NumThreads,
    progress_bar: bool,
    return_exceptions: bool,
    in_order: bool,
) -> Iterator[Any]:
    """Run async programs in one event loop, in a thread of its own; otherwise as `run_in_threads`."""
    results = _looped(run, size, _limit(num_threads, MAX_AT_ONCE))
    return _results(results, size, progress_bar, return_exceptions, in_order)


def run_recorded(
    begin: StartProgram,
    width: int,
    size: int,
    num_threads: NumThreads,
    progress_bar: bool,
    return_exceptions: bool,
    in_order: bool,
) -> Iterator[Any]:
    """Run compiled programs in this thread: each is sent as one message, then waited for.

    `width` is the number of requests that each program may make at the same time.
    """
    window = _limit(num_threads, max(1, MAX_AT_ONCE // width))
    return _results(_recorded(begin, size, window), size, progress_bar, return_exceptions, in_order)


async def run_in_running_loop(
    connect: Callable[[], Channel],
    calls: Sequence[ProgramCall],
    at_once: int,
    progress_bar: bool,
    return_exceptions: bool,
    in_order: bool,
) -> AsyncIterator[Any]:
    """Run programs in the running event loop; yield as `run_in_threads`. Cancelling or closing it ends them all."""
    import asyncio

    slots = asyncio.Semaphore(at_once)
    channel = await asyncio.to_thread(connect)

    async def run_in_slot(call: ProgramCall) -> ProgramState:
        async with slots:
            return await run_async(channel, call)

    first_error: Exception | None = None
    tasks = [asyncio.create_task(run_in_slot(call)) for call in calls]
    try:
        with progress_on_stderr("programs", len(calls), progress_bar) as advance:
            for index, task in enumerate(tasks):
                try:
                    result: ProgramState | BatchError = await task
                except Exception as error:
                    fold(error)
                    if in_order and not return_exceptions:
                        raise
                    result = BatchError(index, error)
                    first_error = first_error or error
                advance()
                yield result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if first_error is not None and not return_exceptions:
        raise first_error


def most_at_once(num_threads: NumThreads, width: int, in_thread: bool) -> int:
    """Return how many programs of this width, or in threads, run at once in an event loop."""
    return _limit(num_threads, MAX_THREADS if in_thread else max(1, MAX_AT_ONCE // width))


def _results(
    results: ProgramResults, size: int, progress_bar: bool, return_exceptions: bool, in_order: bool
) -> Iterator[Any]:
    first_error: Exception | None = None
    with contextlib.closing(results), progress_on_stderr("programs", size, progress_bar) as advance:  # type: ignore[type-var]
        for index, wait_for_result in enumerate(results):
            try:
                result: ProgramState | BatchError = wait_for_result()
            except Exception as error:
                fold(error)
                if in_order and not return_exceptions:
                    raise
                result = BatchError(index, error)
                first_error = first_error or error
            advance()
            yield result
    if first_error is not None and not return_exceptions:
        raise first_error


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
        for future in futures:
            yield future.result
    finally:
        with lock:
            ended_early = True
            for state in running.values():
                state.close()
        executor.shutdown(cancel_futures=True)


def _looped(run: Callable[[int], Coroutine[Any, Any, ProgramState]], size: int, at_once: int) -> ProgramResults:
    import asyncio  # not loaded for programs that are not async

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="ramiform-batch", daemon=True)
    thread.start()
    slots = asyncio.Semaphore(at_once)

    async def run_in_slot(index: int) -> ProgramState:
        async with slots:
            return await run(index)

    futures: list[Future[ProgramState]] = []
    try:
        futures += [asyncio.run_coroutine_threadsafe(run_in_slot(index), loop) for index in range(size)]
        for future in futures:
            yield future.result
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_all() -> None:
    import asyncio

    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _recorded(begin: StartProgram, size: int, window: int) -> ProgramResults:
    running: dict[int, ProgramState] = {}
    waiting: deque[Callable[[], ProgramState]] = deque()

    def start(index: int) -> Callable[[], ProgramState]:
        try:
            state, finish = begin(index)
        except Exception as error:
            return lambda error=error: _raise(error)  # type: ignore[misc]
        running[index] = state

        def end() -> ProgramState:
            finish()
            return running.pop(index)

        return end

    try:
        for index in range(size):
            waiting.append(start(index))
            if len(waiting) >= window:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for state in running.values():
            state.close()


def _raise(error: Exception) -> ProgramState:
    raise error


def _limit(num_threads: NumThreads, auto: int) -> int:
    if num_threads == "auto":
        return auto
    if not isinstance(num_threads, int) or num_threads < 1:
        raise RequestError(f"num_threads must be positive or 'auto', got {num_threads!r}", param="num_threads")
    return num_threads


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
