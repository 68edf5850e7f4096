"""Running many programs at once: in threads, in one event loop, or recorded one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from ...runtime.protocol.errors import RequestError
from ..backends.backend import Channel
from ..states.state import ProgramState
from .failures import BatchError, Folded, fold
from .runner import ProgramCall, begin, begin_recorded, run_async, run_now

MAX_THREADS_AT_ONCE = 128  # "auto": threads mostly wait for the runtime, so many of them fit on few cores
MAX_AT_ONCE = 1024  # "auto" without threads, branches counted: the runtime's queue is bounded

NumThreads = int | Literal["auto"]
StartProgram = Callable[
    [int], tuple[ProgramState, Callable[[], None]]
]  # by index: a new state, and a function that runs it to its end
ProgramResults = Iterator[Callable[[], ProgramState]]  # in order; each waits for a program and raises its error


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
        return (run_now(channel, call) for call in calls)
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


def run_recorded(begin: StartProgram, size: int, options: BatchOptions) -> Iterator[Any]:
    """Run compiled programs in this thread: each is sent as one message, then waited for."""
    return _results(_recorded(begin, size, options.at_once), size, options)


def run_in_loop(channel: Channel, calls: Sequence[ProgramCall], options: BatchOptions) -> Iterator[Any]:
    """Run async programs in one event loop, in a thread of its own; otherwise as `run_in_threads`."""
    import asyncio  # not loaded for programs that are not async

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="ramiform-batch", daemon=True)
    thread.start()
    results = run_in_running_loop(lambda: channel, calls, options)

    async def next_result() -> Any:
        return await anext(results, results)  # itself: there is none left

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.shutdown_asyncgens()

    try:
        while (result := asyncio.run_coroutine_threadsafe(next_result(), loop).result()) is not results:
            yield result
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


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
    with (
        contextlib.closing(results),  # type: ignore[type-var]
        progress_on_stderr("programs", size, options.progress_bar) as advance,
    ):
        for index, wait_for_result in enumerate(results):
            try:
                result: ProgramState | BatchError = wait_for_result()
            except Exception as error:
                result = errors.take(index, error)
            advance()
            yield result
    errors.raise_first()


class _Errors:
    """The errors of a batch's programs: raised in their place, returned, or raised at the end."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._first: Exception | None = None

    def take(self, index: int, error: Exception) -> BatchError:
        """Return what stands in the place of the program's state. Raises the error if it is raised in its place."""
        fold(error)
        if self._options.in_order and not self._options.return_exceptions:
            raise error
        self._first = self._first or error
        return BatchError(index, error)

    def raise_first(self) -> None:
        if self._first is not None and not self._options.return_exceptions:
            raise self._first


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


def _recorded(begin: StartProgram, size: int, window: int) -> ProgramResults:
    running: dict[int, ProgramState] = {}
    waiting: deque[Callable[[], ProgramState]] = deque()

    def start(index: int) -> Callable[[], ProgramState]:
        try:
            state, finish = begin(index)
        except Exception as error:
            failed = Future[ProgramState]()
            failed.set_exception(error)
            return failed.result
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
