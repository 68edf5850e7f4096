"""Many programs at once, a thread each while it runs. Knows states only to close them; nothing of what they do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, Literal

from ..runtime.protocol.errors import RequestError
from .state import ProgramState

MAX_THREADS = 128  # "auto": programs wait for the runtime, not for the processor

Start = Callable[[int], tuple[ProgramState, Callable[[], None]]]  # a new state, and the body that plays on it


def run_all(
    start: Start,
    size: int,
    num_threads: int | Literal["auto"],
    progress_bar: bool,
    return_exceptions: bool,
    in_order: bool,
) -> Iterator[Any]:
    """The states in order; see `Program.run_batch`. `in_order`: errors are raised in their place, not at the end.

    Whatever ends this early, an error or Ctrl-C, closes the programs that still run.
    """
    if num_threads != "auto" and (not isinstance(num_threads, int) or num_threads < 1):
        raise RequestError(f"num_threads must be positive or 'auto', got {num_threads!r}", param="num_threads")
    return _run(start, size, num_threads, progress_bar, return_exceptions, in_order)


def _run(
    start: Start,
    size: int,
    num_threads: int | Literal["auto"],
    progress_bar: bool,
    return_exceptions: bool,
    in_order: bool,
) -> Iterator[Any]:
    if size == 0:
        return
    threads = min(size, MAX_THREADS if num_threads == "auto" else num_threads)
    running: dict[int, ProgramState] = {}
    lock = Lock()
    ended_early = False

    def play(index: int) -> ProgramState:
        state, body = start(index)
        with lock:
            running[index] = state
            if ended_early:
                state.close()
        try:
            body()
        finally:
            with lock:
                del running[index]
        return state

    executor = ThreadPoolExecutor(threads, thread_name_prefix="ramify-batch")
    first_error: Exception | None = None
    try:
        futures: list[Future[ProgramState]] = [executor.submit(play, index) for index in range(size)]
        with _progress(futures, progress_bar):
            for future in futures:
                try:
                    result: ProgramState | Exception = future.result()
                except Exception as error:
                    result = error
                    first_error = first_error or error
                if isinstance(result, Exception) and in_order and not return_exceptions:
                    raise result
                yield result
        if first_error is not None and not return_exceptions:
            raise first_error
    finally:
        with lock:
            ended_early = True
            for state in running.values():
                state.close()
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _progress(futures: list[Future[ProgramState]], shown: bool) -> Iterator[None]:
    if not shown:
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("programs", total=len(futures))
        for future in futures:
            future.add_done_callback(lambda _: progress.advance(task))
        yield
