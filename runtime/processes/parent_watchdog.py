"""The pipe on a child's standard input: its configuration, and the news that its parent is gone.

The first line is the configuration as JSON. Later, a line "quit" requests a quiet end, and end-of-file without one
means that the parent died. Nothing polls, and a parent that is killed still closes its end.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, NoReturn

import msgspec

from ..protocol.config import RuntimeConfig
from ..protocol.transport import remove_socket_files

QUIT = b"quit\n"


def config_line(config: RuntimeConfig) -> bytes:
    """Encode the first line for a child."""
    return msgspec.json.encode(config) + b"\n"


def read_config(stdin: BinaryIO) -> RuntimeConfig:
    """Read the configuration from the first line."""
    return msgspec.json.decode(stdin.readline(), type=RuntimeConfig)


def child_command(module: str) -> list[str]:
    """Command line that runs a module as a child."""
    # -P keeps the working directory off sys.path, where a checkout's folders would shadow other packages.
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """Environment of a child, with OpenMP's waiting policy set for machines with few cores.

    Threads that spin long while they wait starve other processes. Threads that sleep at once must be woken for each of
    a step's hundreds of operators. So GNU OpenMP, which torch uses, spins for some tens of microseconds, about the time
    between operators (docs/inside/log.md). A policy set by the user is kept.
    """
    waiting = {} if "OMP_WAIT_POLICY" in os.environ else {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
    return waiting | {"KMP_BLOCKTIME": "0", "TOKENIZERS_PARALLELISM": "false"} | dict(os.environ)


def say(message: str) -> None:
    """Write a line to standard error. It may be a full disk, or a pipe whose reader has left: what comes next, often
    the end of the process, must come nevertheless."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def redirect_stdout() -> BinaryIO:
    """Return the standard output, unbuffered, for reports to the parent; send everything else printed to standard
    error."""
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return reports


def watch_parent(stdin: BinaryIO, on_end: Callable[[bool], None]) -> None:
    """Call `on_end(requested)` from a thread when the parent requests the end (True) or is gone (False)."""

    def wait() -> None:
        on_end(stdin.readline() == QUIT)

    threading.Thread(target=wait, name="parent watchdog", daemon=True).start()


def exit_with_parent(
    stdin: BinaryIO, *, who: str, parent: str, socket_dir: str, on_quit: Callable[[], None] | None = None
) -> None:
    """End this process when its parent is gone or requests it. If the parent is gone, log that and remove the sockets.

    `on_quit` is called from another thread before a quiet end, so that children can end quietly too.
    """

    def end(requested: bool) -> None:
        if requested and on_quit is not None:
            on_quit()
        if not requested:
            say(f"ramiform {who}: the {parent} is gone; leaving")
            shutil.rmtree(socket_dir, ignore_errors=True)
        exit_now(0 if requested else 1)

    watch_parent(stdin, end)


def exit_now(status: int) -> NoReturn:
    """End a process that watches its parent, and remove the files of its sockets. The interpreter's own exit would
    wait for the thread that reads the pipe."""
    remove_socket_files()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # as in `say`
            stream.flush()
    os._exit(status)
