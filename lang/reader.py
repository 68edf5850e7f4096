"""A state as its readers see it: variables that may still come, text that may still grow. Appends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..runtime.protocol.errors import RamiformError, RequestError
from .background import BackgroundRun
from .operation_log import OperationLog
from .state_handle import StateHandle
from .stream import Span, WaitForChange, text_pieces, until_answered, until_changed
from .variables import Variable


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
