"""Processes by their ids: children, and whether they live. Free ports, and a program without end."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
from pathlib import Path

import ramiform

SOON = 60.0  # seconds; far more than it takes


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def all_children(pid: int) -> list[int]:
    """Children of any thread of the process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    """True if the process runs; False if it ended, even if it was not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pid: int, timeout: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def free_port() -> int:
    """A free port below the range from which the system assigns ports, so that no other process gets it."""
    for port in itertools.chain(range(20_000 + os.getpid() % 9_000, 30_000), range(20_000, 30_000)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@ramiform.function
def endless(s: ramiform.ProgramState) -> None:
    """Generate in one branch after the other until something ends the program."""
    s += "Tell me everything." + ramiform.gen("began", max_tokens=1)
    while True:  # however fast the runtime is
        [branch] = s.fork(1)
        branch += ramiform.gen("x", max_tokens=1900, ignore_eos=True, temperature=1.0)
        branch["x"]
