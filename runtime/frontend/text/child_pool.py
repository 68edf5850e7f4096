"""Asks processes that can be killed: work on data of strangers runs there, under limits of the kernel.

Knows frames of bytes, and nothing of what they say.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress

from ...protocol.errors import BusyError
from ...tokenizer.child_frames import MAX_FRAME, write_frame
from .offload import offload

_ENVIRONMENT = frozenset({"PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"})  # no keys


class LimitExceededError(Exception):
    """The child that was asked has died, or took too long."""


class ChildPool:
    """Up to `most` children, which start when they are needed. One that exceeds its limits dies, and another starts."""

    def __init__(
        self, module: str, *arguments: str, most: int, purpose: str, wall_seconds: float, max_answers: int
    ) -> None:
        """Children run `module` with `arguments`, and answer `max_answers` times: their memory may be fragmented.

        `wall_seconds` bounds an answer, since a child's own limit is of CPU time, which a busy machine grants slowly.
        `purpose` is for errors.
        """
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._purpose = purpose
        self._wall_seconds = wall_seconds
        self._max_answers = max_answers
        self._idle: list[_Child] = []
        self._slots = asyncio.Semaphore(most)
        weakref.finalize(self, _end_all, self._idle)

    def start(self) -> None:
        """Start a child, so that the first answer does not wait for it."""
        with suppress(BusyError):
            self._idle.append(self._new())

    async def ask(self, request: bytes) -> bytes:
        """Return a child's answer. Others may kill it, as a system without memory does: then another one's.

        Raises LimitExceededError, and BusyError when no child can be had.
        """
        async with self._slots:
            return await offload(lambda _: self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        for _ in range(2):
            child = self._take()
            try:
                answer = child.answer(request, self._wall_seconds)
            except BaseException as error:
                was_killed = isinstance(error, EOFError | BrokenPipeError) and child.was_killed()
                child.end()
                if not isinstance(error, OSError | EOFError):
                    raise
                if was_killed:
                    continue
                raise LimitExceededError from None
            if child.num_answers < self._max_answers:
                self._idle.append(child)
            else:
                child.end()
            return answer
        raise BusyError(f"the process that {self._purpose} was killed; try again")

    def _take(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive():
                return child
            child.end()
        return self._new()

    def _new(self) -> _Child:
        try:
            child = _Child(self._command)
            threading.Thread(target=_reap, args=(child, self._idle), name="child", daemon=True).start()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread
            raise BusyError(f"no process can be started that {self._purpose}: {error}") from error
        return child


class _Child:
    """One process. Calls block."""

    def __init__(self, command: Sequence[str]) -> None:
        self.num_answers = 0
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
            start_new_session=True,  # a terminal's Ctrl-C is the frontend's
        )

    def answer(self, request: bytes, wall_seconds: float) -> bytes:
        """Send the request and wait for its answer. Raises OSError or EOFError when the child died or took too long."""
        assert self._child.stdin is not None
        self.num_answers += 1
        deadline = time.monotonic() + wall_seconds
        write_frame(self._child.stdin, request)
        size = int.from_bytes(self._read(4, deadline), "big")
        if size > MAX_FRAME:
            raise EOFError
        return self._read(size, deadline)

    def wait(self) -> None:
        self._child.wait()

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._child.stdout is not None
        data = bytearray()
        readable = select.poll()  # `select.select` knows descriptors below 1024 only
        readable.register(self._child.stdout, select.POLLIN)
        while len(data) < size:
            if not readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(self._child.stdout.fileno(), size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def was_killed(self) -> bool:
        """Return True if the child, whose pipes have broken, was killed. Its own limits end it in other ways."""
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(1.0) == -signal.SIGKILL
        return False

    def end(self) -> None:
        """Kill the child."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue  # data that the dead child did not take


def _reap(child: _Child, idle: list[_Child]) -> None:
    """Wait for a child to end, so that one that was killed is neither a zombie nor holds its pipes."""
    child.wait()
    with suppress(ValueError):
        idle.remove(child)
        child.end()


def _end_all(children: list[_Child]) -> None:
    while children:
        children.pop().end()
