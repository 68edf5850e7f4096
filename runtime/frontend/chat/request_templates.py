"""Render chat templates that requests bring, in processes that can be killed (../../tokenizer/template_process.py)."""

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
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ...protocol.errors import BusyError, RequestError
from ...tokenizer.template_process import MAX_FRAME, RenderAnswer, RenderRequest, write_frame
from ..text.offload import offload

MAX_PROCESSES = 2
MAX_TEMPLATE_CHARACTERS = 1 << 18
WALL_SECONDS = 30.0  # the process's own limit is of CPU time, which a busy machine grants slowly
_ENVIRONMENT = frozenset({"PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"})  # no keys
_MAX_RENDERINGS = 1000  # then a process is replaced: its memory may be fragmented


class RequestTemplates:
    """Renders templates of requests, in up to MAX_PROCESSES processes that start when they are needed."""

    def __init__(self) -> None:
        self._idle: list[_TemplateProcess] = []
        self._slots = asyncio.Semaphore(MAX_PROCESSES)
        weakref.finalize(self, _end_all, self._idle)

    async def render(self, source: str, names: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
        """Render with `arguments` of `ChatTemplate.render`; `names` are variables such as `bos_token`.

        Raises RequestError for a template that is too large, no Jinja, refuses the messages, or exceeds its limits.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise RequestError(
                f"chat_template has {len(source)} characters, the most are {MAX_TEMPLATE_CHARACTERS}",
                param="chat_template",
            )
        # A JsonText is a text there: nobody knows what the template takes.
        request = msgspec.msgpack.encode(RenderRequest(source, dict(names), dict(arguments)), enc_hook=str)
        async with self._slots:
            answer = await offload(lambda _: self._answer(request))
        if answer.error is not None:
            raise RequestError(answer.error, param=answer.param)
        return answer.text

    def _answer(self, request: bytes) -> RenderAnswer:
        """Render in an idle process, or a new one. Others may kill it, as a system without memory does: then in
        another one. Raises BusyError when there is none."""
        for _ in range(2):
            process = self._take()
            try:
                answer = process.answer(request)
            except BaseException as error:
                was_killed = isinstance(error, EOFError | BrokenPipeError) and process.was_killed()
                process.end()
                if not isinstance(error, OSError | EOFError):
                    raise
                if was_killed:
                    continue
                return RenderAnswer(
                    error="the chat template exceeds its limit of time or memory", param="chat_template"
                )
            if process.num_answers < _MAX_RENDERINGS:
                self._idle.append(process)
            else:
                process.end()
            return answer
        raise BusyError("the process that renders the chat template was killed; try again")

    def _take(self) -> _TemplateProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive():
                return process
            process.end()
        try:
            process = _TemplateProcess()
            threading.Thread(target=_reap, args=(process, self._idle), name="template process", daemon=True).start()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread
            raise BusyError(f"no process can be started to render the chat template: {error}") from error
        return process


class _TemplateProcess:
    """One child. Calls block."""

    def __init__(self) -> None:
        self.num_answers = 0
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "ramiform.runtime.tokenizer.template_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
            start_new_session=True,  # a terminal's Ctrl-C is the frontend's
        )

    def answer(self, request: bytes) -> RenderAnswer:
        """Send the request and wait for its answer. Raises OSError or EOFError when the child died or took too long."""
        assert self._child.stdin is not None
        self.num_answers += 1
        deadline = time.monotonic() + WALL_SECONDS
        write_frame(self._child.stdin, request)
        size = int.from_bytes(self._read(4, deadline), "big")
        if size > MAX_FRAME:
            raise EOFError
        return msgspec.msgpack.decode(self._read(size, deadline), type=RenderAnswer)

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


def _reap(process: _TemplateProcess, idle: list[_TemplateProcess]) -> None:
    """Wait for a child to end, so that one that was killed is neither a zombie nor holds its pipes."""
    process.wait()
    with suppress(ValueError):
        idle.remove(process)
        process.end()


def _end_all(processes: list[_TemplateProcess]) -> None:
    while processes:
        processes.pop().end()
