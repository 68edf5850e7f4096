"""A state as its readers see it: variables that may still come, text that may still grow. Appends nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..runtime.protocol.errors import RamiformError, RequestError
from .operation_log import OperationLog
from .state_handle import StateHandle
from .variables import Variable

if TYPE_CHECKING:
    from asyncio import Task

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


_inside: ContextVar[BackgroundRun | None] = ContextVar("ramiform_body", default=None)  # whose body this code is part of


class BackgroundRun:
    """A body that has been started, and `abandon` for what it raises. `log` changes when it is over, so that readers
    wake. Start it by `in_thread` or `in_loop`."""

    def __init__(self, abandon: Callable[[BaseException], None], log: OperationLog) -> None:
        self.ended = False
        self.failure: BaseException | None = None
        self._abandon: Callable[[BaseException], None] | None = abandon  # holds the state
        self._log = log
        self._task: Task[None] | None = None  # held: a loop does not

    @property
    def is_followed(self) -> bool:
        """Whether more may come, seen from here. To the body itself, and what it has started, all that will come is
        there."""
        return not self.ended and _inside.get() is not self

    def in_thread(self, body: Callable[[], None]) -> None:
        def run() -> None:
            _inside.set(self)
            try:
                body()
            except BaseException as error:
                self._end(error)
            else:
                self._end(None)

        threading.Thread(target=run, name="ramiform-program", daemon=True).start()

    def in_loop(self, body: Coroutine[Any, Any, None]) -> None:
        import asyncio

        async def run() -> None:
            _inside.set(self)
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
        self.failure = failure  # before anything else fails because of it
        if failure is not None and self._abandon is not None:
            self._abandon(failure)
        self._abandon = None
        with self._log.changed:
            self.ended = True
            self._log.touch()


class UndefinedVariable(KeyError):
    """Nothing of that name has been generated, gathered or set."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no variable {name!r}; there are: {', '.join(map(repr, known)) or 'none'}")
        self.name = name


class StateReader:
    """Waits for what may still come: what is not answered yet and, for a program in the background, not yet said."""

    def __init__(self, recorder: StateHandle, variables: dict[str, Variable]) -> None:
        self.variables = variables
        self.background: BackgroundRun | None = None
        self._recorder = recorder
        self._log: OperationLog = recorder.log

    def define(self, name: str, value: Variable) -> None:
        """The latest definition of a name is the one that is read."""
        with self._log.changed:
            self.variables[name] = value
            self._log.touch()

    def snapshot(self) -> dict[str, Variable]:
        with self._log.changed:
            return dict(self.variables)

    def value(self, name: str) -> Variable:
        """Wait until the variable is defined. Raises KeyError, or what ended the program, when it will not be."""
        while isinstance(found := self._find(name), WaitForChange):
            found.log.wait_for_change(found.version)
        return found

    def get(self, name: str) -> Any:
        """The variable's value, when it is there."""
        value = self.value(name)
        try:
            return value.get()
        except RamiformError:
            self._raise_failure()  # of which the error may be a consequence
            raise

    async def get_async(self, name: str) -> Any:
        """`get` for event loops."""
        while isinstance(found := self._find(name), WaitForChange):
            await until_changed(found.log, found.version)
        for log, end in found.needs():
            await until_answered(log, end)
        return self.get(name)

    async def wait_for_all(self) -> None:
        """Until all that was recorded is answered, or will not be, and every variable can be read without waiting."""
        for log, end in self._recorder.segments():
            await until_answered(log, end)
        for value in self.snapshot().values():
            for log, end in value.needs():
                await until_answered(log, end)

    async def wait_for_end_async(self) -> None:
        """`wait_for_end` for event loops."""
        while True:
            with self._log.changed:
                version = self._log.version
                if not self._is_followed():
                    break
            await until_changed(self._log, version)
        self._raise_failure()

    def wait_for_end(self) -> None:
        """Wait for the end of a program in the background. Raises what ended it."""
        with self._log.changed:
            while self._is_followed():
                self._log.about_to_wait(True)
                self._log.changed.wait()
        self._raise_failure()

    def follow(self, var: str | None) -> Iterator[str | WaitForChange]:
        """The text of a variable, or all of it: to the end of a program in the background, else as recorded now."""
        try:
            yield from self._follow(var)
        except RamiformError:
            self._raise_failure()
            raise
        if var is None:
            self._raise_failure()

    def meta_after(self, name: str, num_chars: float) -> Any:
        """None while the variable is being generated, or has more text than so many characters."""
        value = self.value(name)
        spans = value.spans()
        if any(end > len(log.done) for log, _, end in spans):
            return None
        if sum(len(log.done[index].text) for log, first, end in spans for index in range(first, end)) > num_chars:
            return None
        return value.meta() or {}

    def _follow(self, var: str | None) -> Iterator[str | WaitForChange]:
        if var is None:
            yield from text_pieces(self._whole())
            return
        while isinstance(found := self._find(var), WaitForChange):
            yield found
        spans = found.spans()
        if spans:
            yield from text_pieces((log, first, _fixed(end)) for log, first, end in spans)
            return
        value = found.get()
        if not isinstance(value, str):
            raise RequestError(f"the variable {var!r} is not one piece of text: {value!r}", param="var")
        yield value

    def _find(self, name: str) -> Variable | WaitForChange:
        with self._log.changed:
            if (value := self.variables.get(name)) is not None:
                return value
            if self._is_followed():
                return WaitForChange(self._log, self._log.version)
            self._raise_failure()
            if self._log.error is not None:
                raise self._log.error.to_exception()
            raise UndefinedVariable(name, tuple(self.variables))

    def _whole(self) -> list[Span]:
        *older, (own, recorded) = self._recorder.segments()
        followed = self._is_followed()

        def end_of_followed() -> int | None:
            return None if self._is_followed() else len(own.operations)

        return [(log, 0, _fixed(end)) for log, end in older] + [
            (own, 0, end_of_followed if followed else _fixed(recorded))
        ]

    def _is_followed(self) -> bool:
        return self.background is not None and self.background.is_followed

    def _raise_failure(self) -> None:
        if self.background is not None and self.background.failure is not None:
            raise self.background.failure


def _fixed(end: int) -> Callable[[], int | None]:
    return lambda: end
