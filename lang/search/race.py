"""Branches that run at the same time: waits for those that end, in threads or an event loop, and stops the others."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ...runtime.protocol.errors import RamiformError, RequestError
from ..expressions.attempts import derived_seed
from ..expressions.expr import Expr, GenExpr, parts_of
from ..states.state import ProgramState

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

Step = (
    Expr | str | Callable[[ProgramState], Any]
)  # what each branch appends, or a function or program that continues it


class Race:
    """Branches that run at the same time; those that are not kept are stopped at the end of the `with` block.

    Its coroutines never suspend: they block the thread. Functions that continue a branch have a thread each.
    """

    def __init__(self) -> None:
        self.num_left = 0  # branches that are not done
        self._owned: dict[int, ProgramState] = {}
        self._kept: set[int] = set()
        self._running: list[ProgramState] = []
        self._errors: dict[int, BaseException] = {}  # by index in `_running`
        self._ended: SimpleQueue[int] = SimpleQueue()  # indices in `_running`

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop_all_but([branch for branch in self._owned.values() if id(branch) in self._kept])

    def fork(self, state: ProgramState, size: int, with_logprobs: bool) -> list[ProgramState]:
        """Return branches, which draw differently although `run` was given a seed."""
        branches = list(state.fork(size))
        if with_logprobs:
            for branch in branches:
                branch._defaults = {**branch._defaults, "return_logprob": True}
        self._owned |= {id(branch): branch for branch in branches}
        return branches

    def start(self, branches: list[ProgramState], step: Step) -> None:
        """Continue each branch by `step`, without waiting."""
        self._begin(branches)
        for index, branch in enumerate(branches):
            if isinstance(step, Expr | str):
                branch += _reseeded(step, index)
                self._watch(index)
            elif callable(step):
                self._start(index, partial(step, branch))
            else:
                raise RequestError(f"step must be an expression, string or function, got {step!r}", param="step")

    def watch(self, branches: list[ProgramState]) -> None:
        """Wait for what the branches have appended already."""
        self._owned |= {id(branch): branch for branch in branches}
        self._begin(branches)
        for index in range(len(branches)):
            self._watch(index)

    async def next_done(self) -> ProgramState | None:
        """Wait for the next branch that ends without an error. None: there is none left."""
        while self.num_left:
            index = await self._next()
            self.num_left -= 1
            branch = self._running[index]
            error = self._errors.get(index)
            if error is None:
                await self._make_readable(branch)  # before `settle`, which waits for the state before the fork too
                error = branch._handle.settle()
            if error is None:
                return branch
            if isinstance(error, RamiformError):
                self._errors[index] = error
            else:
                raise error
        return None

    def failing(self, branch: ProgramState) -> LeavesOut:
        """Return a context manager that counts the branch as failed if its block raises RamiformError."""
        return LeavesOut(self._errors, self._running.index(branch))

    def raise_if_all_failed(self) -> None:
        if len(self._errors) == len(self._running):
            raise self._errors[0]

    def keep(self, branch: ProgramState) -> ProgramState:
        """Do not stop this branch at the end."""
        self._kept.add(id(branch))
        return branch

    def stop_all_but(self, kept: Sequence[ProgramState]) -> None:
        """Abort the work of all other branches."""
        remaining = {id(branch): branch for branch in kept}
        for branch in self._owned.values():
            if id(branch) not in remaining:
                branch._handle.close("the branch was stopped: another one was chosen")
        self._owned = {key: branch for key, branch in self._owned.items() if key in remaining}

    # What differs in an event loop

    async def value(self, result: Any) -> Any:
        """Return a function's result. Raises RequestError for an awaitable, which needs an event loop."""
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise RequestError("an async function needs an event loop: use the search whose name begins with a")
        return result

    async def read(self, state: ProgramState, name: str) -> Any:
        return state[name]

    async def _next(self) -> int:
        self._running[0]._log.about_to_wait(True)
        return self._ended.get()

    async def _make_readable(self, branch: ProgramState) -> None:
        """Do nothing: reading may wait."""

    def _start(self, index: int, body: Callable[[], Any]) -> None:
        self._running[index]._log.about_to_wait(True)  # ends a plan here, since the thread would go on
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run, index, body), name="ramiform-branch", daemon=True).start()

    def _put(self, index: int) -> None:
        self._ended.put(index)

    # For both

    def _begin(self, branches: list[ProgramState]) -> None:
        self._running = branches
        self._errors = {}
        self.num_left = len(branches)

    def _run(self, index: int, body: Callable[[], Any]) -> None:
        try:
            self._running[index].ret_value = blocking(self.value(body()))
        except BaseException as error:
            self._errors[index] = error
            self._put(index)
        else:
            self._watch(index)

    def _watch(self, index: int) -> None:
        log = self._running[index]._log
        log.when(len(log.operations), partial(self._put, index))


class AsyncRace(Race):
    """A race in the running event loop. Async functions run in it, others have threads."""

    def __enter__(self) -> AsyncRace:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[int] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        return self

    def __exit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        super().__exit__(*error)

    async def value(self, result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    async def read(self, state: ProgramState, name: str) -> Any:
        return await state.get(name)

    async def _next(self) -> int:
        self._running[0]._log.about_to_wait(False)
        return await self._arrived.get()

    async def _make_readable(self, branch: ProgramState) -> None:
        await branch._reader.wait_for_all()

    def _start(self, index: int, body: Callable[[], Any]) -> None:
        self._running[index]._log.about_to_wait(False)
        self._tasks.append(self._loop.create_task(self._run_async(index, body)))

    async def _run_async(self, index: int, body: Callable[[], Any]) -> None:
        import asyncio

        try:
            result = await asyncio.to_thread(body)  # a function that is not async may block
            self._running[index].ret_value = await self.value(result)
        except BaseException as error:
            self._errors[index] = error
            self._put(index)
            if not isinstance(error, Exception):
                raise
        else:
            self._watch(index)

    def _put(self, index: int) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, index)
        except RuntimeError:  # the loop is closed: nobody waits
            return


@dataclass(frozen=True)
class LeavesOut:
    """Context manager that counts the branch as failed if its block raises RamiformError, which it suppresses.

    Not a generator with `contextmanager`, which sets the traceback of the user's exceptions: a frozen one refuses that.
    """

    errors: dict[int, BaseException]
    index: int

    def __enter__(self) -> None:
        """Nothing is acquired."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, RamiformError):
            return False
        self.errors[self.index] = error
        return True


def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise AssertionError("a blocking search was suspended")


def _reseeded(step: Expr | str, index: int) -> Expr | str:
    """Return the expression of one branch: gens that have a seed get one of their own."""
    parts = parts_of(step)
    if not any(isinstance(part, GenExpr) and part.sampling.get("seed") is not None for part in parts):
        return step
    whole: Expr | str = ""
    for part in parts:
        if isinstance(part, GenExpr) and part.sampling.get("seed") is not None:
            part = replace(part, sampling={**part.sampling, "seed": derived_seed(part.sampling["seed"], index)})
        whole = whole + part
    return whole
