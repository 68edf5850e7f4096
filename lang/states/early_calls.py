"""Starts calls of pure tools before an agent's turn ends: on arguments that are complete, or on predicted ones."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ..expressions.callbacks import MAX_FUNCTIONS
from ..operations.operation_log import OperationLog
from ..tools.call_format import CallFormat
from ..tools.declaration import DeclaredTool, key_of
from ..tools.tool_set import PreparedCall, ToolOutcome, ToolSet, begin_call

T = TypeVar("T")

_BRACKET, _IN_STRING = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')


class CallReader:
    """Finds the calls in a text that grows, each once its arguments are complete. Takes time linear in the text."""

    def __init__(self, form: CallFormat) -> None:
        self._trigger = form.trigger
        self._is_marked = bool(form.before.strip())
        self._text = ""  # since the end of the last call, or since the begin of this one
        self._at = 0  # up to where it is scanned
        self._in_call = False
        self._in_string = False
        self._depth = 0

    def feed(self, text: str) -> Iterator[str]:
        """Take more of the text; yield the JSON text of each call whose arguments are complete now."""
        self._text += text
        while True:
            if not self._in_call and not self._begin():
                return
            while (match := (_IN_STRING if self._in_string else _BRACKET).search(self._text, self._at)) is not None:
                mark = match[0]
                if mark == "\\":
                    if match.end() == len(self._text):
                        self._at = match.start()
                        return  # what it escapes is still to come
                    self._at = match.end() + 1
                    continue
                self._at = match.end()
                if mark == '"':
                    self._in_string = not self._in_string
                    continue
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 1 and mark == "}":
                    yield self._text[: self._at] + "}"
                elif self._depth <= 0:
                    self._skip(self._at)
                    break
            else:
                self._at = len(self._text)
                return

    def _begin(self) -> bool:
        """Go to the begin of the next call; return whether there is one."""
        while (start := self._text.find(self._trigger, self._at)) >= 0:
            body = start + len(self._trigger) * self._is_marked
            rest = self._text[body:].lstrip()
            if not rest:
                self._at = start
                return False
            self._skip(len(self._text) - len(rest))
            if rest[0] == "{":
                self._in_call = True
                return True
        self._at = max(self._at, len(self._text) - len(self._trigger) + 1)
        return False

    def _skip(self, end: int) -> None:
        self._text = self._text[end:]
        self._at = self._depth = 0
        self._in_call = self._in_string = False


class EarlyCall:
    """A call that runs in a thread, or if its function is async in the agent's loop or in one of its own."""

    def __init__(
        self,
        tool: DeclaredTool[..., Any],
        arguments: str,
        *,
        predicted: bool,
        start: Callable[[EarlyCall], Future[ToolOutcome]],
    ) -> None:
        self.key = tool.name, key_of(arguments)
        self.is_predicted = predicted
        self.is_written = not predicted  # the turn's text has the call
        self._tool, self._arguments = tool, arguments
        self._is_cancelled = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._began = time.perf_counter()
        self._future = start(self)

    def run(self) -> ToolOutcome:
        """Make the call, blocking."""
        outcome, pending = self._begin()
        if pending is not None:
            asyncio.run(self._interruptible(pending))
        return outcome

    async def run_async(self, pool: ThreadPoolExecutor) -> ToolOutcome:
        """Make the call in the agent's loop; a function that is not async runs in a thread, since it may block."""
        return await self._interruptible(self._run_async(pool))

    def cancel(self) -> Future[ToolOutcome] | None:
        """Give the call up. Returns what ends once it has cleaned up.

        None: it has not begun, or it is a function in a thread, which runs to its end, and nobody gets its result.
        """
        self._is_cancelled = True
        if self._running is None:
            self._future.cancel()
            return None
        loop, task = self._running
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(task.cancel)
        return self._future

    async def finish(self, call: PreparedCall, outcome: ToolOutcome, turn_ended: float) -> None:
        """Wait for the end, and make the result that of `call`. A predicted call that failed is made again instead."""
        early = await asyncio.wrap_future(self._future)
        if self.is_predicted and early.error is not None:
            pending = begin_call(call, outcome)
            if pending is not None:
                await pending
            return
        vars(outcome).update(vars(early) | {"recognised": outcome.recognised})
        outcome.saved = min(early.seconds, max(0.0, turn_ended - self._began))

    def _begin(self) -> tuple[ToolOutcome, Any]:
        call = PreparedCall(self._tool, self._tool.read(self._arguments), self.key[1])
        outcome = ToolOutcome()
        return outcome, begin_call(call, outcome)

    async def _run_async(self, pool: ThreadPoolExecutor) -> ToolOutcome:
        if inspect.iscoroutinefunction(self._tool.function):
            outcome, pending = self._begin()
        else:
            context = contextvars.copy_context()
            outcome, pending = await asyncio.get_running_loop().run_in_executor(pool, context.run, self._begin)
        if pending is not None:
            await pending
        return outcome

    async def _interruptible(self, pending: Awaitable[T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        if self._is_cancelled:
            task.cancel()  # where it waits first, so that what has begun can clean up
        return await pending


class EarlyCalls:
    """The calls of an agent that begin before their turn ends. `loop`: that of an async program.

    Only pure tools are called early. What the turn then does not call is cancelled, and its result is not used.
    """

    def __init__(self, tools: ToolSet, form: CallFormat, loop: asyncio.AbstractEventLoop | None) -> None:
        self._tools = tools
        self._form = form
        self._loop = loop
        self._context = contextvars.copy_context()
        self._pool = ThreadPoolExecutor(
            MAX_FUNCTIONS, thread_name_prefix="ramiform-early-tool"
        )  # threads come as needed
        self._unused: list[EarlyCall] = []
        self._stop_watching: Callable[[], object] = bool

    def begin_predicted(self, name: str, arguments: dict[str, Any]) -> None:
        """Start a call that the turn will perhaps make."""
        self._start(name, json.dumps(arguments), predicted=True)

    def watch(self, log: OperationLog, operation: int) -> None:
        """Start the calls in the text of a Gen, which is this turn, as it is streamed."""
        reader = CallReader(self._form)
        num_read = 0

        def note() -> None:  # called with `log.changed` held: it must neither block nor raise
            nonlocal num_read
            if len(log.done) == operation:
                new, num_read = log.partial[num_read:], len(log.partial)
                for text in reader.feed(new):
                    self._start_written(text)

        with log.changed:
            log.watch(note)
            self._stop_watching = lambda: log.unwatch(note)
            note()

    def take(self, call: PreparedCall) -> EarlyCall | None:
        """Return the early call that is this one, once."""
        for early in self._unused:
            if early.key == (call.tool.name, call.key):
                self._unused.remove(early)
                return early
        return None

    def end_turn(self) -> list[Future[ToolOutcome]]:
        """Cancel the calls that nobody took. Returns those that have to clean up. Calling it again does nothing."""
        self._stop_watching()
        self._stop_watching = bool
        unused, self._unused = self._unused, []
        cancelled = [early.cancel() for early in unused]
        return [future for future in cancelled if future is not None]

    def close(self) -> None:
        """End the agent's threads. Functions that still run there end on their own."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_written(self, text: str) -> None:
        try:
            value = json.loads(text)
            if set(value) != {"name", self._form.arguments} or not isinstance(value["name"], str):
                return
            arguments = json.dumps(value[self._form.arguments])
        except (ValueError, RecursionError):
            return  # no call, as the turn's end will tell
        key = value["name"], key_of(arguments)
        for early in self._unused:
            if early.key == key and not early.is_written:
                early.is_written = True
                return
        self._start(value["name"], arguments, predicted=False)

    def _start(self, name: str, arguments: str, *, predicted: bool) -> None:
        tool = self._tools.tools.get(name)
        if tool is not None and tool.pure:
            with contextlib.suppress(RuntimeError):  # the loop or the interpreter has ended
                self._unused.append(EarlyCall(tool, arguments, predicted=predicted, start=self._submit))

    def _submit(self, early: EarlyCall) -> Future[ToolOutcome]:
        context = self._context.copy()
        if self._loop is None:
            return self._pool.submit(context.run, early.run)
        return context.run(asyncio.run_coroutine_threadsafe, early.run_async(self._pool), self._loop)
