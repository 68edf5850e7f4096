"""Answers frames on standard streams, under limits of the kernel, in processes that work on data of strangers.

A frame is 4 bytes, the length, and a message. A process that exceeds a limit dies; the frontend starts another when it
needs one (../frontend/text/child_pool.py).
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import IO

MAX_FRAME = 1 << 30


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one message and flush."""
    stream.write(len(data).to_bytes(4, "big"))
    stream.write(data)
    stream.flush()


def answer_frames(answer: Callable[[bytes], bytes], *, cpu_seconds: float, memory_bytes: int) -> None:
    """Answer requests until standard input ends. An answer has `cpu_seconds`; all have `memory_bytes` beyond what the
    process has now, and can write no file."""
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_AS, _num_virtual_bytes() + memory_bytes)
    while head := stdin.read(4):
        request = stdin.read(int.from_bytes(head, "big"))
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + cpu_seconds))  # SIGXCPU ends the process
        write_frame(stdout, answer(request))


def _limit(kind: int, most: int) -> None:
    """Lower the soft limit, so that a later request can have a later one."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _num_virtual_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux
        return 1 << 30
