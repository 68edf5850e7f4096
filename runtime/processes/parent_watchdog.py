"""How a child process learns what to do, and that its parent is gone: the pipe on its standard input.

The first line is the child's configuration as JSON. After it, a line "quit" asks for a quiet end, and end-of-file
without one means that the parent died. Nothing polls, and a parent killed outright still closes its end.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, NoReturn

import msgspec

from ..protocol.config import RuntimeConfig

QUIT = b"quit\n"


def config_line(config: RuntimeConfig) -> bytes:
    return msgspec.json.encode(config) + b"\n"


def read_config(stdin: BinaryIO) -> RuntimeConfig:
    return msgspec.json.decode(stdin.readline(), type=RuntimeConfig)


def child_command(module: str) -> list[str]:
    # -P: the working directory stays off sys.path, where a checkout's folders would shadow other packages.
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """Threads that spin for long while they wait starve the other processes on a machine with few cores, and those that
    fall asleep at once are woken for each of a step's hundreds of operators. So GNU's OpenMP, which is torch's, spins
    for some tens of microseconds, as long as it is from one operator to the next (docs/log.md). Whoever says how
    threads shall wait is heeded."""
    waiting = {} if "OMP_WAIT_POLICY" in os.environ else {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
    return waiting | {"KMP_BLOCKTIME": "0", "TOKENIZERS_PARALLELISM": "false"} | dict(os.environ)


def redirect_stdout() -> BinaryIO:
    """This process's standard output, for its reports to its parent and nothing else: what anybody prints from now on,
    as libraries do, goes to standard error. Unbuffered."""
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return reports


def watch_parent(stdin: BinaryIO, on_end: Callable[[bool], None]) -> None:
    """Call `on_end(asked)` from a thread when the parent asks for the end (True) or is gone (False)."""

    def wait() -> None:
        on_end(stdin.readline() == QUIT)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def exit_with_parent(
    stdin: BinaryIO, *, who: str, parent: str, socket_dir: str, on_quit: Callable[[], None] | None = None
) -> None:
    """End this process at once when its parent is gone, saying so, and take the sockets along. `on_quit` is called
    before a quiet end, from another thread: for children to end as quietly."""

    def end(asked: bool) -> None:
        if asked and on_quit is not None:
            on_quit()
        if not asked:
            print(f"ramiform {who}: the {parent} is gone; leaving", file=sys.stderr)
            shutil.rmtree(socket_dir, ignore_errors=True)
        exit_now(0 if asked else 1)

    watch_parent(stdin, end)


def exit_now(status: int) -> NoReturn:
    """End a process that has a lifeline. The interpreter's own end would wait for the thread that reads it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
