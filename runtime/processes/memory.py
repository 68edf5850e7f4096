"""Return memory that is free within a process to the system."""

from __future__ import annotations

import ctypes
import sys

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def give_back_memory() -> None:
    """Return freed memory to the system: glibc keeps what lies between allocations that live on.

    A large grammar or text that is dropped leaves such gaps, so without this a process keeps the memory of the largest
    it has had. Takes milliseconds, without the interpreter's lock.
    """
    if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
