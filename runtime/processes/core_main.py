"""Entry point of the core process: prepares the imports of `runtime.core.main`, which take most of a start."""

from __future__ import annotations

import ctypes
import gc
import sys

from ..core.compile_child import start_products
from . import parent_watchdog
from .deferred_imports import defer_parts_of_torch

_M_ARENA_MAX = -8  # of glibc's mallopt


def _share_heap() -> None:
    """Let all threads allocate from one heap of glibc.

    Each heap keeps what its largest grammar has needed, and grammars are compiled in many threads, by turns.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def main() -> int:
    config = parent_watchdog.read_config(sys.stdin.buffer)
    products = start_products(config.core)  # first: it compiles while this process imports and loads
    _share_heap()
    gc.disable()  # until the model is loaded: collections would walk what importing makes, and free nothing of it
    defer_parts_of_torch()
    from ..core.main import main as run_core

    return run_core(config, products)


if __name__ == "__main__":
    parent_watchdog.exit_now(main())
