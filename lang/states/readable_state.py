"""Reading a state: its variables, its text, its stream and its trace."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Self

from ...runtime.programs.records.events import ABANDONED
from ...runtime.protocol import session
from ...runtime.protocol.errors import RamiformError, RequestError
from ..operations.meta_info import Segment, segment_of
from ..operations.state_handle import StateHandle
from .reader import BackgroundRun, StateReader, async_pieces, blocking_pieces, dropped
from .variables import GatheredVariable, SelectedVariable, Variable

if TYPE_CHECKING:
    from ..tracing.trace import Trace
    from .events import ProgramEvent


class ReadableState:
    """Base of ProgramState: what can be read of a state, and the end of its program."""

    _handle: StateHandle
    _is_open = False  # whether it has begun in the runtime

    def __init__(self) -> None:
        self.ret_value: Any = None  # the return value of the program's function
        self._error_seen = False

    def _take(self, handle: StateHandle, variables: dict[str, Variable]) -> None:
        """Begin with the state of the runtime."""
        self._log = handle.log
        self._reader = StateReader(handle, variables)
        self._handle = handle
        self._is_open = True
        if handle.execution.kept_states is not None:
            handle.execution.kept_states.append(self)

    def __repr__(self) -> str:
        """Show the text so far. Never waits and never raises, since notebooks and debuggers call it at any time."""
        return f"ProgramState({self._handle.text_so_far()})"

    def _repr_html_(self) -> str:
        """Show the text so far in a notebook, as `__repr__` does."""
        from ..tracing.notebook import state_html

        return state_html(self._handle, self.variables)

    # Variables

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __contains__(self, name: str) -> bool:
        return name in self._reader.variables

    def get_var(self, name: str) -> Any:
        """Wait for the variable's value. Raises KeyError for an unknown name."""
        return self._reader.get(name)

    async def get(self, name: str) -> Any:
        """Wait for the variable's value in an event loop. In an async program `s[name]` reads it from then on."""
        return await self._reader.get_async(name)

    def variables(self) -> dict[str, Any]:
        """Return the variables whose values are there, by name. Never waits; failed ones are left out."""
        values = {}
        for name, variable in self._reader.snapshot().items():
            if all(len(log.done) >= end for log, end in variable.needs()):
                with suppress(Exception):  # reading it raises
                    values[name] = variable.get()
        return values

    def _ipython_key_completions_(self) -> list[str]:
        """Complete `s["..."]` in a notebook."""
        return list(self._reader.snapshot())

    def get_meta_info(self, name: str) -> Any:
        """Return the meta info: a dict; a list of dicts for n > 1 or a joined variable; None for an assigned one."""
        return self._reader.variable(name).meta()

    def probabilities(self, name: str) -> dict[Any, float]:
        """Return the probability of each choice of a `select`, by what its variable would be; wait for it.

        They are the softmax of the scores at the select's temperature: those of its draw, at temperature 0 those at 1.
        Raises RequestError for another variable, and where the backend or the choices method tells no scores.
        """
        variable = self._reader.variable(name)
        if not isinstance(variable, SelectedVariable):
            raise RequestError(f"{name!r} is not the variable of a select", param="name")
        return variable.probabilities()

    # The whole text

    def text(self) -> str:
        """Wait for all operations so far; return the whole text, generated text included."""
        self._reader.wait_for_end()
        return "".join(done.text for _, done in self._handle.history())

    def segments(self) -> list[Segment]:
        """Wait for all operations so far; return the text in one segment for each operation that added text."""
        self._reader.wait_for_end()
        return [segment_of(done) for _, done in self._handle.history() if done.text]

    def messages(self) -> list[dict[str, str]]:
        """Wait for all operations so far; return the closed chat messages as dicts of role and content."""
        self._reader.wait_for_end()
        messages = []
        role_now, content = None, ""
        for operation, done in self._handle.history():
            match operation:
                case session.RoleBegin(role=name):
                    role_now, content = name, ""
                case session.RoleEnd() if role_now is not None:
                    messages.append({"role": role_now, "content": content})
                    role_now = None
                case _:
                    content += done.text
        return messages

    def sync(self) -> None:
        """Wait for all operations so far. Raises the first one's error that failed."""
        self._reader.wait_for_end()
        if (error := self._handle.settle()) is not None:
            raise error

    async def wait(self) -> None:
        """Wait for all operations so far in an event loop; reading them does not wait afterwards."""
        await self._reader.wait_for_end_async()
        await self._reader.wait_for_all()
        self.sync()

    def error(self) -> Exception | None:
        """Wait like `sync`, but return the error instead of raising it; `run` then does not raise it either."""
        self._error_seen = True
        try:
            self.sync()
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """Abort running work, branches included; values that are not there yet raise RuntimeFailed when read."""
        self._handle.close("the program was closed")

    @property
    def trace(self) -> Trace:
        """Return the trace of a run with `trace=True`; waits for the end of a program in the background."""
        recording = self._handle.execution.recording
        if recording is None:
            raise RequestError("this program was not traced: run it with trace=True", param="trace")
        from ..tracing.trace import trace_of

        self._reader.wait_for_end()
        return trace_of(recording)

    # Streaming

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yield new text as it comes, of the variable or of the whole state.

        Pieces are as they are generated if the program was run with `stream=True`, else one for each operation. Raises
        an operation's error after the text before it.
        """
        yield from blocking_pieces(self._reader.follow(var_name))  # holds the state, see `_readers_own`

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """Yield new text as it comes, in an event loop.

        With `return_meta_data`, yield pairs of text and meta info: `{"finish_reason": None}`, and with the last piece
        of the variable's text, which may be empty, the result of `get_meta_info`.
        """
        if not return_meta_data:
            async for piece in async_pieces(self._reader.follow(var_name)):
                yield piece
            return
        if var_name is None:
            raise RequestError("return_meta_data needs var_name", param="return_meta_data")
        meta, num_chars = None, 0
        async for piece in async_pieces(self._reader.follow(var_name)):
            num_chars += len(piece)
            meta = self._reader.meta_after(var_name, num_chars)
            yield piece, {"finish_reason": None} if meta is None else meta
        if meta is None:
            yield "", self._reader.meta_after(var_name, math.inf)

    def value_iter(self, var_name: str) -> Iterator[Any]:
        """Yield a variable's values as its text comes, as `run(stream=True)` gets it.

        A `schema` of a list, set or tuple of one type: each item, validated, once it is whole. Another type: an object
        of it with what is written so far, without validation, and at the end the value itself. Members that are not
        whole are None, or missing in a dict; strings are there as far as they go. A capture: each of its values once
        no rest of the text can change it. Text: the text so far. Anything else: its value. Raises as `s[var_name]`.
        """
        return blocking_pieces(self._values(var_name))

    async def value_async_iter(self, var_name: str) -> AsyncIterator[Any]:
        """Yield a variable's values in an event loop, as `value_iter` does."""
        async for value in async_pieces(self._values(var_name)):
            yield value

    def events(self) -> Iterator[ProgramEvent]:
        """Yield what happens in a run, from the state's beginning on, and at last an event of the type "end".

        With `run(stream=True)` events come while the program runs, with pieces as they are generated; branches are told
        too. Errors are events, and not raised.
        """
        from .events import blocking_events

        yield from blocking_events(self._reader, self._handle)  # holds the state, as `text_iter` does

    async def async_events(self) -> AsyncIterator[ProgramEvent]:
        """Yield the events in an event loop, as `events` does."""
        from .events import async_events

        async with aclosing(async_events(self._reader, self._handle)) as events:
            async for event in events:
                yield event

    async def server_sent_events(self) -> AsyncIterator[bytes]:
        """Yield the events as a stream of server-sent events, for the body of an HTTP answer.

        The program is closed where the stream is closed before its end, as when the client has gone.
        """
        from .events import async_events

        event = None
        try:
            async with aclosing(async_events(self._reader, self._handle)) as events:
                async for event in events:
                    yield f"event: {event.type}\ndata: {event.json()}\n\n".encode()
        finally:
            if event is None or event.type != "end":
                self.close()

    def _values(self, name: str) -> Iterator[Any]:
        try:
            yield from self._reader.follow_values(name)
        except RamiformError:
            self._reader._raise_failure()
            raise

    # Used by the other modules of the language

    def _in_background(self, describe: Callable[[BaseException], None]) -> BackgroundRun:
        """Return the run for the program's body in the background; readers elsewhere wait for its end."""
        self._reader.background = BackgroundRun(describe, self._abandon, self._log)
        return self._reader.background

    def _readers_own(self) -> Self:
        """Return this state, of a program in the background, as an object that its function does not hold.

        Once it is garbage-collected nobody can read the stream, and the program ends.
        """
        made = object.__new__(type(self))
        made.__dict__ = self.__dict__
        assert self._reader.background is not None
        stop, handle = self._reader.background.stop, self._handle
        close = functools.partial(handle.close, "nobody holds the program's stream any more")
        weakref.finalize(made, dropped().put, functools.partial(stop, close)).atexit = False
        return made

    def _abandon(self, error: BaseException) -> None:
        """Abort all work of the program, branches included, because it raised."""
        self._handle.execution.note_failure(error)
        self._handle.close(RequestError(f"{ABANDONED}{error!r}", code="program_failed"))

    async def _finish_async(self) -> None:
        """Finish the program in an event loop, as `_finish` does."""
        execution = self._handle.execution
        if execution.finish_later(self):
            return
        for one in execution.take_unfinished():
            await one._finish_async()
        await self._reader.wait_for_all()
        self._finish()

    def _finish(self) -> None:
        """Wait for everything after the program's end; raise an error that the program neither caught nor asked for."""
        execution = self._handle.execution
        if execution.finish_later(self):
            return
        for one in execution.take_unfinished():
            one._finish()
        error = self._handle.settle(raised=False)
        if self._error_seen:
            return
        if error is not None and not error.is_repeated:
            raise error
        variables = list(self._reader.snapshot().values())
        while variables:  # a loop, since joins of joins may be deep
            variable = variables.pop(0)
            if isinstance(variable, GatheredVariable):
                variables[:0] = variable.values  # each branch may have an error of its own
                continue
            try:
                variable.get()
            except RamiformError as failed:
                if not failed.is_repeated:
                    raise
