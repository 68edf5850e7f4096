"""Progress of loading a model: a bar on a terminal. Elsewhere only the log has the time it took."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

logger = logging.getLogger("ramiform.core")

OnProgress = Callable[[int, int], None]  # (bytes done, bytes in all)


@contextmanager
def show_load_progress(name: str) -> Iterator[OnProgress]:
    """Show a progress bar for the block, which calls the yielded function with bytes done and bytes in all."""
    start = time.monotonic()
    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
    logger.info("loaded %s in %.1f s", name, time.monotonic() - start)
