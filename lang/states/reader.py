"""Reading a state: its variables, and its text as it grows, also while the program still runs in the background."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from ...runtime.protocol.errors import RamiformError, RequestError, did_you_mean
from ..operations.operation_log import OperationLog
from ..operations.state_handle import StateHandle
from ..types.value_streams import ValueStream
from .variables import CapturedVariable, Variable

if TYPE_CHECKING:
    from asyncio import Task


class TextSpan(NamedTuple):
    """Operations whose text is read: from `first` to the index that `end_of` returns; None while it is unknown.

    `skips_removed`: without those that a rollback has removed when the reader gets there.
    """

    log: OperationLog
    first: int
    end_of: Callable[[], int | None]
    skips_removed: bool = False


@dataclass(frozen=True, slots=True)
class WaitForChange:
    """Request to wait: nothing is new in `log` since its `version`."""

    log: OperationLog
    version: int


def text_pieces(spans: Iterable[TextSpan]) -> Iterator[str | WaitForChange]:
    """Yield the text of the spans in order, and a WaitForChange where more is to come.

    Raises the state's error after the text that came before it.
    """
    for log, index, end_of, skips_removed in spans:
        num_yielded = 0  # characters of operation `index`
        while True:
            with log.changed:
                end = end_of()
                if end is not None and index >= end:
                    break
                if skips_removed and log.is_removed(index):
                    index, num_yielded = index + 1, 0
                    continue
                if index in log.failed:
                    raise log.failed[index].to_exception()
                answered = index < len(log.done)
                text = log.done[index].text if answered else log.partial if index == len(log.done) else ""
                error, version = log.error, log.version
                # An error fails recorded operations. Beyond them, only the end tells whether more was to come.
                expected = index < len(log.operations)
            new = text[num_yielded:]
            num_yielded += len(new)
            if new:
                yield new
            if answered:
                index, num_yielded = index + 1, 0
            elif not new:
                if error is not None and expected:
                    raise log.exception()
                yield WaitForChange(log, version)


def blocking_pieces(steps: Iterator[Any]) -> Iterator[Any]:
    """Yield the text or values, blocking the thread at every WaitForChange."""
    for step in steps:
        if isinstance(step, WaitForChange):
            step.log.wait_for_change(step.version)
        else:
            yield step


async def async_pieces(steps: Iterator[Any]) -> AsyncIterator[Any]:
    """Yield the text or values, awaiting at every WaitForChange."""
    for step in steps:
        if isinstance(step, WaitForChange):
            await step.log.wait_for_change_async(step.version)
        else:
            yield step


# The background run whose body the current code is part of.
_current_run: ContextVar[BackgroundRun | None] = ContextVar("ramiform_body", default=None)


class BackgroundRun:
    """The body of a program that runs in a thread or an event loop, for `run(stream=True)`.

    `describe` and `abandon` are called with the error that ends the body, before and after readers get it. Readers of
    `log` wake when the body has ended.
    """

    def __init__(
        self, describe: Callable[[BaseException], None], abandon: Callable[[BaseException], None], log: OperationLog
    ) -> None:
        self.ended = False
        self.failure: BaseException | None = None
        self._on_failure: tuple[Callable[[BaseException], None], ...] = describe, abandon  # they refer to the state
        self._log = log
        self._task: Task[None] | None = None  # held here, since the event loop does not

    def stop(self, close: Callable[[], None]) -> None:
        """End the body, if it still runs: call `close`, and cancel its task. Takes locks."""
        if self.ended:
            return
        close()
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    @property
    def is_followed(self) -> bool:
        """Return whether the calling code should wait for more operations.

        The body itself, and code that it has started, must not wait for its own next operation.
        """
        return not self.ended and _current_run.get() is not self

    def in_thread(self, body: Callable[[], None]) -> None:
        """Start the body in a thread of its own."""

        def run() -> None:
            _current_run.set(self)
            try:
                body()
            except BaseException as error:
                self._end(error)
            else:
                self._end(None)

        threading.Thread(target=run, name="ramiform-program", daemon=True).start()

    def in_loop(self, body: Coroutine[Any, Any, None]) -> None:
        """Start the body as a task of the running event loop."""
        import asyncio

        async def run() -> None:
            _current_run.set(self)
            try:
                await body
            except BaseException as error:
                self._end(error)
                if not isinstance(error, Exception):
                    raise
            else:
                self._end(None)

        self._task = asyncio.get_running_loop().create_task(run())

    def _end(self, failure: BaseException | None) -> None:
        if failure is not None:
            describe, abandon = self._on_failure
            describe(failure)
            self.failure = failure  # set before `abandon` fails the state because of it
            abandon(failure)
        self._on_failure = ()
        with self._log.changed:
            self.ended = True
            self._log.touch()


@functools.cache
def dropped() -> SimpleQueue[Callable[[], None]]:
    """Return the queue of what ends streams that nobody can read any more.

    The garbage collector puts it there, since it may run while a lock is held; a thread calls it.
    """
    queue = SimpleQueue[Callable[[], None]]()

    def call() -> None:
        while True:
            with contextlib.suppress(Exception):
                queue.get()()

    threading.Thread(target=call, name="ramiform-dropped", daemon=True).start()
    return queue


class UndefinedVariable(KeyError):
    """No variable of that name has been generated, gathered or set."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        there_are = f"no variable {name!r}; there are: {', '.join(map(repr, known)) or 'none'}"
        super().__init__(there_are + did_you_mean(name, known))
        self.name = name


class StateReader:
    """The variables and text of a state; reading waits for answers and for a program in the background."""

    def __init__(self, handle: StateHandle, variables: dict[str, Variable]) -> None:
        self.variables = variables
        self.background: BackgroundRun | None = None
        self._handle = handle
        self._log: OperationLog = handle.log

    @property
    def is_followed(self) -> bool:
        """Return whether the program in the background may go on, as seen from outside of it."""
        return self.background is not None and self.background.is_followed

    @property
    def has_ended(self) -> bool:
        """Return whether there was a program in the background, and it has ended."""
        return self.background is not None and self.background.ended

    def define(self, name: str, variable: Variable) -> None:
        """Set a variable; the latest definition of a name is the one that is read."""
        with self._log.changed:
            self.variables[name] = variable
            self._log.touch()

    def restore(self, variables: dict[str, Variable]) -> None:
        """Return to the variables of a snapshot."""
        with self._log.changed:
            self.variables = dict(variables)
            self._log.touch()

    def snapshot(self) -> dict[str, Variable]:
        """Return a copy of the variables by name."""
        with self._log.changed:
            return dict(self.variables)

    def variable(self, name: str) -> Variable:
        """Wait until the variable is defined. Raises KeyError, or the program's error, if it will not be."""
        while isinstance(found := self._find(name), WaitForChange):
            found.log.wait_for_change(found.version)
        return found

    def get(self, name: str) -> Any:
        """Wait for the variable's value and return it."""
        variable = self.variable(name)
        try:
            return variable.get()
        except RamiformError:
            self._raise_failure()  # the error may be a consequence of it
            raise

    async def get_async(self, name: str) -> Any:
        """Wait for the variable's value in an event loop and return it."""
        while isinstance(found := self._find(name), WaitForChange):
            await found.log.wait_for_change_async(found.version)
        for log, end in found.needs():
            await log.wait_answered_async(end)
        return self.get(name)

    async def wait_for_all(self) -> None:
        """Wait until all operations are answered or have failed, and every variable can be read without waiting."""
        for log, end in self._handle.segments():
            await log.wait_answered_async(end)
        for variable in self.snapshot().values():
            for log, end in variable.needs():
                await log.wait_answered_async(end)

    async def wait_for_end_async(self) -> None:
        """Wait, in an event loop, for the end of a program in the background. Raises the error that ended it."""
        while True:
            with self._log.changed:
                version = self._log.version
                if not self.is_followed:
                    break
            await self._log.wait_for_change_async(version)
        self._raise_failure()

    def wait_for_end(self) -> None:
        """Wait for the end of a program in the background. Raises the error that ended it."""
        with self._log.changed:
            while self.is_followed:
                self._log.about_to_wait(True)
                self._log.changed.wait()
        self._raise_failure()

    def follow(self, var: str | None) -> Iterator[str | WaitForChange]:
        """Yield the text of a variable, or of the whole state, as it comes.

        The state's text ends with the program in the background, else with the operations recorded now.
        """
        try:
            yield from self._follow(var)
        except RamiformError:
            self._raise_failure()
            raise
        if var is None:
            self._raise_failure()

    def follow_values(self, name: str, *, as_texts: bool = False) -> Iterator[Any]:
        """Yield a variable's values as they come, and a WaitForChange where more is to come; see `value_iter`.

        `as_texts`: the texts of a capture.
        """
        while isinstance(found := self._find(name), WaitForChange):
            yield found
        source = found.source()
        stream = ValueStream()
        if source is not None:
            log, operation, result = source
            stream = result.stream(as_text=True) if as_texts else result.stream()
            for step in text_pieces([TextSpan(log, operation, _fixed(operation + 1))]):
                if isinstance(step, WaitForChange):
                    yield step
                    continue
                try:
                    yield from stream.feed(step)
                except ValueError:
                    found.get()  # raises the error of the whole, where that is known already
                    raise
        for log, end in found.needs():
            yield from _until_answered(log, end)
        yield from stream.end(found.get())

    def meta_after(self, name: str, num_chars: float) -> Any:
        """Return the variable's meta info, None while it is generated or has more text than `num_chars` characters."""
        variable = self.variable(name)
        spans = variable.spans()
        if any(end > len(log.done) for log, _, end in spans):
            return None
        if sum(len(log.done[index].text) for log, first, end in spans for index in range(first, end)) > num_chars:
            return None
        return variable.meta() or {}

    def _follow(self, var: str | None) -> Iterator[str | WaitForChange]:
        if var is None:
            yield from text_pieces(self._all_spans())
            return
        while isinstance(found := self._find(var), WaitForChange):
            yield found
        spans = found.spans()
        if spans:
            yield from text_pieces(TextSpan(log, first, _fixed(end)) for log, first, end in spans)
            return
        if isinstance(found, CapturedVariable) and found.num_samples == 1:
            yield from self.follow_values(var, as_texts=True)
            return
        for log, end in found.needs():
            yield from _until_answered(log, end)
        value = found.get()
        if not isinstance(value, str):
            raise RequestError(f"the variable {var!r} is not one piece of text: {value!r}", param="var")
        yield value

    def _find(self, name: str) -> Variable | WaitForChange:
        with self._log.changed:
            if (variable := self.variables.get(name)) is not None:
                return variable
            if self.is_followed:
                return WaitForChange(self._log, self._log.version)
            self._raise_failure()
            if self._log.error is not None:
                raise self._log.exception()
            raise UndefinedVariable(name, tuple(self.variables))

    def _all_spans(self) -> list[TextSpan]:
        *older, (own, recorded) = self._handle.segments()
        followed = self.is_followed

        def end_of_followed() -> int | None:
            return None if self.is_followed else len(own.operations)

        visible = [TextSpan(log, index, _fixed(index + 1)) for log, end in older for index in log.visible(0, end)]
        return [*visible, TextSpan(own, 0, end_of_followed if followed else _fixed(recorded), skips_removed=True)]

    def _raise_failure(self) -> None:
        if self.background is not None and self.background.failure is not None:
            raise self.background.failure


def _until_answered(log: OperationLog, end: int) -> Iterator[WaitForChange]:
    """Yield a WaitForChange until the first `end` operations are answered or have failed."""
    while True:
        with log.changed:
            if len(log.done) >= end or log.error is not None:
                return
            version = log.version
        yield WaitForChange(log, version)


def _fixed(end: int) -> Callable[[], int | None]:
    return lambda: end
