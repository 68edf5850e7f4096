"""Compiles all numba loops into the cache on disk: in the background of a start, or when an image is built, by

    python -m ramiform.runtime.compile_ahead

Modules with loops are found by their decorator, and loops register themselves, so a new one needs no entry here. A
module whose loops have no known signatures, or are made by functions, defines `compile_ahead()`, which is called.

The products of a file's block formats are compiled by a child that starts before its parent imports torch: an answer
needs them (docs/inside/decisions/0013). They import no torch either.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from .. import loops

logger = logging.getLogger("ramiform.core")

LoopGroup = Literal["kernels", "grammars", "drafts"]
_ROOT = Path(loops.__file__).parent
_FOLDERS: dict[LoopGroup, tuple[str, ...]] = {
    "kernels": ("kernels/cpu",),
    "grammars": ("constrained/automaton", "constrained/regex"),
    "drafts": ("runtime/scheduler/drafts/suffix",),
}
PACKAGES: dict[LoopGroup, str] = {
    "kernels": "ramiform.kernels",
    "grammars": "ramiform.constrained",
    "drafts": "ramiform.runtime.scheduler.drafts.suffix",
}
_PRODUCTS_FOLDER = _ROOT / "kernels/cpu"
PRODUCTS = "products"  # as a child's first argument: of the block formats that follow
COMPILING_MESSAGE = "compiling loops for this processor, once: one to three minutes"


def loop_modules(group: LoopGroup) -> list[str]:
    """Return the names below `ramiform` of the modules that define compiled loops."""
    return [
        ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for folder in _FOLDERS[group]
        for path in sorted((_ROOT / folder).rglob("*.py"))
        if _defines_loops(path)
    ]


def _defines_loops(path: Path) -> bool:
    return re.search(r"^\s*@(loops\.)?compiled\w*\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def is_compiled(group: LoopGroup) -> bool:
    """Return True if the loops of a group load from disk."""
    return all(loops.is_complete(_ROOT / folder) for folder in _FOLDERS[group])


def is_cacheable(group: LoopGroup) -> bool:
    """Return True if there is a directory to keep the loops of a group in."""
    return all(loops.cache_directory(_ROOT / folder) is not None for folder in _FOLDERS[group])


def compile_group(group: LoopGroup) -> None:
    """Compile the loops of a group, or load them. Returns when every one can be called."""
    for name in loop_modules(group):
        module = import_module(f"..{name}", __package__)
        if (compile_more := getattr(module, "compile_ahead", None)) is not None:
            compile_more()
    loops.compile_registered(PACKAGES[group])
    for folder in _FOLDERS[group]:
        loops.mark_complete(_ROOT / folder)


def compile_loops(awaiting: str | None = None) -> None:
    """Compile all loops, or load them. Returns when every one can be called.

    `awaiting` names the setting with which a start waits for them.
    """
    reason = "" if awaiting is None else f"; with {awaiting} the first answer waits for them"
    with _announced(COMPILING_MESSAGE + reason):
        for group in get_args(LoopGroup):
            compile_group(group)


@contextmanager
def _announced(message: str) -> Iterator[None]:
    """Announce a compilation, on a terminal or in the log, if anything is compiled and not only loaded."""
    from numba.core import event

    class FirstCompilation(event.Listener):  # type: ignore[misc]  # numba has no types
        """Announces the first compilation."""

        compiling = False

        def on_start(self, event: Any) -> None:
            if not self.compiling:
                self.compiling = True
                announce()

        def on_end(self, event: Any) -> None:
            """Ignored: more compilations may follow."""

    start = time.monotonic()
    with ExitStack() as stack:

        def announce() -> None:
            if sys.stderr.isatty():
                from rich.console import Console

                stack.enter_context(Console(stderr=True).status(message))
            else:
                logger.warning(message)

        listener = FirstCompilation()
        with event.install_listener("numba:compile", listener):
            yield
    if listener.compiling:
        logger.info("compiled loops in %.1f s", time.monotonic() - start)


def uncompiled_products(formats: Iterable[str]) -> list[str]:
    """Return those names of block formats whose products are not known to load from disk, sorted."""
    return [name for name in sorted(formats) if not loops.is_complete(_PRODUCTS_FOLDER, name)]


def _compile_products(formats: Sequence[str]) -> None:
    from ..kernels.cpu.products.block_panels import load_block_products

    for name in formats:
        load_block_products([name])
        loops.mark_complete(_PRODUCTS_FOLDER, name)


def _end_with_parent() -> None:
    """End this process when its standard input closes: what it has compiled so far is on disk."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Compile all loops; or silently, as a child that ends with its parent, a group or the products of formats."""
    if not arguments:
        logging.basicConfig(level="INFO", format="%(message)s")
        compile_loops()
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    group, *formats = arguments
    if group == PRODUCTS:
        _compile_products(formats)
        return
    compile_group(next(name for name in get_args(LoopGroup) if name == group))


if __name__ == "__main__":
    main(sys.argv[1:])
