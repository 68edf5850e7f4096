"""Compiles all numba loops ahead of their first use: when a runtime starts, or when its image is built, by

    python -m ramiform.runtime.compile_ahead

The first start after an install takes seconds; later ones load them from disk (`ramiform.loops`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from numba.core import event
from rich.console import Console

logger = logging.getLogger("ramiform.core")

LOOP_MODULES = (  # importing these compiles their loops of known signatures
    "kernels.cpu.attention",
    "kernels.cpu.layers",
    "kernels.cpu.matmul",
    "kernels.cpu.sampling",
    "constrained.automaton.walk_packed",
    "constrained.regex.dfa_kernel",
    "constrained.regex.subset_kernel",
    "runtime.speculation.suffix.loops",
)


def compile_loops() -> None:
    """Import every module with compiled loops. Returns when every loop can be called."""
    with _announced():
        for name in LOOP_MODULES:
            import_module(f"..{name}", __package__)


@contextmanager
def _announced() -> Iterator[None]:
    """Announce a compilation, on a terminal or in the log, if anything is compiled and not only loaded."""
    start = time.monotonic()
    with ExitStack() as stack:

        def announce() -> None:
            message = "compiling loops for this processor, once: up to half a minute"
            if sys.stderr.isatty():
                stack.enter_context(Console(stderr=True).status(message))
            else:
                logger.info(message)

        listener = _FirstCompilation(announce)
        with event.install_listener("numba:compile", listener):
            yield
    if listener.compiling:
        logger.info("compiled loops in %.1f s", time.monotonic() - start)


class _FirstCompilation(event.Listener):  # type: ignore[misc]  # numba has no types
    """Calls `on_compile` when numba first compiles."""

    def __init__(self, on_compile: Any) -> None:
        self._on_compile = on_compile
        self.compiling = False

    def on_start(self, event: event.Event) -> None:
        if not self.compiling:
            self.compiling = True
            self._on_compile()

    def on_end(self, event: event.Event) -> None:
        """Ignored: more compilations may follow."""


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    compile_loops()
