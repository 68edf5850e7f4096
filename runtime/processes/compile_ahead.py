"""The compiled loops, before anybody waits for them: when a runtime starts, or when its image is built, by

    python -m ramiform.runtime.processes.compile_ahead

The first start after an install compiles them for seconds; later ones find them on disk (`ramiform.loops`).
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

LOOP_MODULES = (  # that have loops of known signatures: importing them compiles those
    "kernels.cpu.attention",
    "kernels.cpu.layers",
    "kernels.cpu.matmul",
    "kernels.cpu.sampling",
    "constrained.automaton.walk_packed",
    "constrained.regex.dfa_kernel",
    "constrained.regex.subset_kernel",
)


def compile_loops() -> None:
    """Returns when every loop is ready to be called."""
    with _announced():
        for name in LOOP_MODULES:
            import_module(f"...{name}", __package__)


@contextmanager
def _announced() -> Iterator[None]:
    """Says so, on a terminal or in the log, if something is compiled and not only read."""
    start = time.monotonic()
    with ExitStack() as shown:

        def on_first() -> None:
            message = "compiling loops for this processor, once: up to half a minute"
            if sys.stderr.isatty():
                shown.enter_context(Console(stderr=True).status(message))
            else:
                logger.info(message)

        listener = _FirstCompilation(on_first)
        with event.install_listener("numba:compile", listener):
            yield
    if listener.heard:
        logger.info("compiled loops in %.1f s", time.monotonic() - start)


class _FirstCompilation(event.Listener):  # type: ignore[misc]  # numba has no types
    """Calls `told` when numba begins to compile."""

    def __init__(self, told: Any) -> None:
        self._told = told
        self.heard = False

    def on_start(self, event: event.Event) -> None:
        if not self.heard:
            self.heard = True
            self._told()

    def on_end(self, event: event.Event) -> None:
        """Nothing: more may follow."""


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    compile_loops()
