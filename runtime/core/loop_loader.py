"""Compiles and loads the compiled loops while the core already answers without them (docs/inside/decisions/0013).

Plain torch computes for the kernels, Python interprets the grammars' loops, and there are no suffix drafts. Loops that
this machine has never compiled are compiled by child processes once the core is ready, those of drafts last. The core
loads them from disk in a thread, and switches to the kernels between two steps.

Quantised weights have no other way to be multiplied. A child compiles the few loops of block formats from the core's
start on (`compile_child.start_products`), a thread of this process those of other weights.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

from ... import loops
from ..compile_ahead import (
    COMPILING_MESSAGE,
    PACKAGES,
    LoopGroup,
    is_cacheable,
    is_compiled,
)
from ..engine import ForwardEngine
from .compile_child import compile_command, start_child
from .service import Reply, Service

logger = logging.getLogger("ramiform.core")

# Modules that hold the loops of a decoder, and those of grammars. Others are loaded where they are used.
_MODULES: dict[LoopGroup, tuple[str, ...]] = {
    "kernels": (
        "ramiform.kernels.cpu.ops",
        "ramiform.runtime.models.compiled_layers",
        "ramiform.kernels.cpu.recurrence",
    ),
    "grammars": tuple(
        f"ramiform.constrained.{name}"
        for name in ("automaton.walk_packed", "automaton.literal_kernel", "regex.dfa_kernel", "regex.subset_kernel")
    ),
    "drafts": ("ramiform.runtime.scheduler.drafts.suffix",),
}
LOOPS_POLL_MS = 50  # polling interval of an idle core while the kernels' loops are being loaded
_NICENESS = 19  # of the processes that compile: answers come first
_FEW_CORES = 2  # with so many one group is compiled after the other: two children would leave no core to answers


class LoopLoader:
    """Compiles and loads loops in threads, from `load` on; `start` makes this process compute without them."""

    def __init__(
        self,
        command: Callable[[LoopGroup], list[str]] = compile_command,
        products: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """`products` is a child that compiles products of quantised weights already."""
        self._command, self._products = command, products
        self._may_load = threading.Event()
        self._products_loaded = threading.Event()  # set while there are none to wait for
        self._products_loaded.set()
        self._loading = threading.Lock()  # one group after the other: two threads that import take turns, and both wait
        self._loaded: dict[LoopGroup, threading.Event] = {group: threading.Event() for group in PACKAGES}
        self._grammars_due = threading.Event()  # set once the kernels are there, or a grammar waits
        if _num_cores() > _FEW_CORES:
            self._grammars_due.set()
        self._announcing = threading.Lock()
        self._compiling: set[LoopGroup] = set()
        self._start_time = 0.0
        self.on_grammars: Callable[[], object] = lambda: None
        self.pending = False  # the kernels are on their way, and `take` has not returned True

    def start(self, *, kernels: bool = True) -> None:
        """Compute without loops from now on, until those that `load` begins to compile or import are there.

        `kernels` False leaves the kernels' loops alone: the model is not computed on a CPU.
        """
        loops.postpone(PACKAGES["grammars"], interpret=True)
        loops.postpone(PACKAGES["drafts"])
        self.pending = kernels
        if kernels:
            loops.postpone(PACKAGES["kernels"])
        else:
            self._loaded["kernels"].set()
            self._grammars_due.set()
        for group in self._loaded:
            if group == "kernels" and not kernels:
                continue
            threading.Thread(target=self._prepare, args=(group,), name=f"loops of {group}", daemon=True).start()

    def start_products(self, formats: Iterable[str]) -> None:
        """Begin to compile or load the loops that multiply quantised weights: those of block formats, or without any
        those of other weights.

        They are not postponed: who calls one waits for it, and compiles it if `wait_for_products` has not been called.
        """
        self._products_loaded.clear()
        threading.Thread(
            target=self._load_products, args=(sorted(formats),), name="loops of products", daemon=True
        ).start()

    def wait_for_products(self) -> None:
        """Wait until the loops that `start_products` began with are loaded, or cannot be."""
        self._products_loaded.wait()

    def load(self) -> None:
        """Compile what is not on disk, then import it. Call it when the core is ready, which either would delay."""
        self._may_load.set()

    def take(self) -> bool:
        """Return True once, when the kernels can be used; from then on `loops.ready` says so."""
        if not (self.pending and self._loaded["kernels"].is_set()):
            return False
        self.pending = False
        loops.allow(PACKAGES["kernels"])
        return True

    def wait_for_grammars(self) -> None:
        """Wait until the grammars' loops are loaded, or cannot be."""
        self._grammars_due.set()
        self._loaded["grammars"].wait()

    def _load_products(self, formats: Sequence[str]) -> None:
        # Here, because these import numba:
        from ...kernels.cpu.products import block_panels

        try:
            if self._products is not None and (status := self._products.wait()):
                logger.warning("compiling products ended with status %d; they are compiled here", status)
            if formats:
                block_panels.load_block_products(formats)
            else:
                from ...kernels.cpu.products.matmul import load_products

                load_products()
        except Exception:  # the first product compiles them, and raises it
            logger.exception("the compiled loops of products cannot be loaded ahead")
        finally:
            self._products_loaded.set()

    def _prepare(self, group: LoopGroup) -> None:
        try:
            if group == "drafts":  # what computes answers comes first
                self._loaded["kernels"].wait()
            self._may_load.wait()
            if group == "grammars" and not is_compiled(group):
                self._grammars_due.wait()
            self._compile(group)
            with self._loading:
                for name in _MODULES[group]:
                    import_module(name)
                loops.compile_registered(PACKAGES[group])
            if group != "kernels":
                # In any thread: a grammar may go on after any call by the other kind, on the same arrays.
                loops.allow(PACKAGES[group])
            if group == "grammars":
                self.on_grammars()
        except Exception:
            # This process goes on without them.
            logger.exception("the compiled loops of %s cannot be loaded; answers stay slow", group)
            if group == "kernels":
                self.pending = False
        finally:
            self._loaded[group].set()
            if group == "kernels":
                self._grammars_due.set()

    def _compile(self, group: LoopGroup) -> None:
        """Run a process that compiles a group into the cache, unless the cache has it or there is none."""
        if is_compiled(group) or not is_cacheable(group):
            return
        self._announce(group, starts=True)
        with start_child(self._command(group)) as process:
            _give_way(process.pid)
            status = process.wait()
        if status:
            logger.warning("compiling the loops of %s ended with status %d; they are compiled here", group, status)
        self._announce(group, starts=False)

    def _announce(self, group: LoopGroup, *, starts: bool) -> None:
        """Say once that loops are compiled, and once that all are: a line on a terminal, else in the log."""
        with self._announcing:
            before = bool(self._compiling)
            (self._compiling.add if starts else self._compiling.discard)(group)
            if before == bool(self._compiling):
                return
        if starts:
            self._start_time = time.monotonic()
        seconds = time.monotonic() - self._start_time
        message = (
            f"{COMPILING_MESSAGE}; answers are slower until then" if starts else f"compiled loops in {seconds:.0f} s"
        )
        if sys.stderr.isatty():
            print(f"ramiform: {message}", file=sys.stderr, flush=True)
        else:
            logger.warning(message)


def _num_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _give_way(pid: int) -> None:
    """Let a process in a session of its own have what processors the others leave.

    Linux may divide the processors among sessions first (sched(7), autogroups): within its own a process has no rival,
    whatever its priority. So the session gets the priority too.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICENESS))


class KernelSwitch(Service):
    """Lets an engine compute with the kernels' loops, from the step on before which they are loaded."""

    def __init__(self, loader: LoopLoader, engine: ForwardEngine) -> None:
        self._loader, self._engine = loader, engine

    @property
    def wait_ms(self) -> int | None:
        return LOOPS_POLL_MS if self._loader.pending else None

    def advance(self) -> Iterable[Reply]:
        if self._loader.take():
            self._engine.use_loops()
        return ()
