"""Pool of measuring processes: each holds the engines, runs one case with one engine at a time, and may crash.

An engine that takes longer than the limit, or takes its process down, loses that case and nothing else.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from ramiform.bench.grammar.cases import Case, Instance
from ramiform.bench.grammar.engines import KINDS
from ramiform.bench.grammar.measure import Measurer, Options, Result
from ramiform.bench.grammar.tokens import load_tokens
from ramiform.runtime.core.main import IDLE_COLLECTION_INTERVAL, start_collections

START_LIMIT = 300.0  # seconds to load a vocabulary into every engine and to compile kernels
WARM_UP = Case(
    "warm up",
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 9},
            "b": {"type": "array", "items": {"enum": [1, "x", None]}},
            "c": {"type": "integer", "minimum": 3},
            "d": {"type": "number"},
            "e": {"type": "string", "pattern": "^[a-z]+$"},
        },
        "required": ["b"],
    },
    [Instance({"a": "é \n", "b": [1, "x"], "c": 12, "d": 1.5, "e": "abc", "f": {"g": [True]}}, True)] * 2,
)


class Setup(msgspec.Struct, frozen=True):
    """Arguments of a measuring process."""

    tokenizer: str
    engines: list[str]
    options: Options
    limit: float  # seconds by the wall's clock for one case and engine
    memory: int  # GiB of address space for a process


class _Task(msgspec.Struct, frozen=True):
    case: Case
    engine: str


def measure(cases: Sequence[Case], setup: Setup, num_processes: int) -> Iterator[Result]:
    """Return the results, schema by schema with the engines in turn (who is first changes), in the order of
    completion."""
    tasks = deque(
        _Task(case, setup.engines[(number + shift) % len(setup.engines)])
        for number, case in enumerate(cases)
        for shift in range(len(setup.engines))
    )
    workers = [_Worker(setup) for _ in range(min(num_processes, len(tasks)))]
    try:
        while tasks or any(worker.task for worker in workers):
            for worker in workers:
                if worker.task is None and worker.is_ready and tasks:
                    worker.give(tasks.popleft())
            wait([worker.connection for worker in workers], timeout=0.5)
            for worker in workers:
                if (result := worker.poll()) is not None:
                    yield result
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A measuring process, seen from its parent: at most one task at a time."""

    connection: Connection
    _process: BaseProcess

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.task: _Task | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, msgspec.json.encode(self._setup)), daemon=True)
        self._process.start()
        far.close()
        self.is_ready = False
        self._deadline = time.monotonic() + START_LIMIT

    def give(self, task: _Task) -> None:
        self.task = task
        self._deadline = time.monotonic() + self._setup.limit
        self.connection.send_bytes(msgspec.json.encode(task))

    def poll(self) -> Result | None:
        """Return a result if there is one, also for a task whose process was lost."""
        try:
            if self.connection.poll():
                message = self.connection.recv_bytes()
                if not self.is_ready:
                    self.is_ready = True
                    return None
                self.task = None
                return msgspec.json.decode(message, type=Result)
        except (EOFError, ConnectionResetError):
            return self._lost("crashed", "the process died")
        if (self.task or not self.is_ready) and time.monotonic() > self._deadline:
            return self._lost("timeout", f"more than {self._setup.limit:g} s")
        return None

    def _lost(self, outcome: str, reason: str) -> Result:
        self.stop()
        if self.task is None:
            raise RuntimeError(f"a measuring process did not start: {reason}")
        result = Result(self.task.case.name, self.task.engine, reason=reason)
        result.outcome = "crashed" if outcome == "crashed" else "timeout"
        self.task = None
        self._start()
        return result

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, message: bytes) -> None:
    """Run tasks in the measuring process."""
    setup = msgspec.json.decode(message, type=Setup)
    _silence()
    resource.setrlimit(resource.RLIMIT_AS, (setup.memory << 30, setup.memory << 30))
    tokens = load_tokens(Path(setup.tokenizer))
    measurers = {}
    for name in setup.engines:
        measurers[name] = Measurer(KINDS[name].make(tokens), tokens, setup.options)
        for _ in range(2):
            measurers[name].run(name, WARM_UP)
    # As in a server: long-lived objects are frozen, and full collections wait until it is idle.
    gc.collect()
    start_collections()
    connection.send_bytes(b"ready")
    while True:
        try:
            task = msgspec.json.decode(connection.recv_bytes(), type=_Task)
        except EOFError:
            return
        connection.send_bytes(msgspec.json.encode(measurers[task.engine].run(task.engine, task.case)))
        if gc.get_count()[2] >= IDLE_COLLECTION_INTERVAL:
            gc.collect()


def _silence() -> None:
    """Discard what engines write to standard error; Python's own errors are still shown."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
