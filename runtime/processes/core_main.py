"""Entry point of the core process: prepares the imports of `runtime.core.main`, which take most of a start."""

from __future__ import annotations

import gc

from . import parent_watchdog
from .deferred_imports import defer_parts_of_torch


def main() -> int:
    gc.disable()  # until the model is loaded: collections would walk what importing makes, and free nothing of it
    defer_parts_of_torch()
    from ..core.main import main as run_core

    return run_core()


if __name__ == "__main__":
    parent_watchdog.exit_now(main())
