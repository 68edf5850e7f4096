"""How loops over arrays are compiled: for given signatures, when their module is imported, and kept on disk for the
next process.

numba keeps what it compiled, but looks for changes only in the file that a loop stands in. What is kept lies here under
a digest of all sources in that file's folder, so it is never older than a constant or another loop that went into it.
Loops use nothing of ours from outside their folder. Imports numba; knows none of the loops.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import config as numba_config

F = TypeVar("F", bound=Callable[..., Any])

config: Any = numba_config  # its names are made as it is imported
logger = logging.getLogger("ramiform.loops")
_config_lock = Lock()  # where numba keeps things is a setting of the whole process; it is ours for a moment only


def compiled(*signatures: str, **options: Any) -> Callable[[F], F]:
    """Now, for these signatures alone, or taken from the disk; without any, when it is first called. `options` are
    numba's; other threads may run meanwhile.

    The same signatures in every process are also what lets processes share a place without waiting for each other:
    whoever writes last replaces a whole file by its equal.
    """

    def compile_it(function: F) -> F:
        compile_now = partial(njit, list(signatures) or None, nogil=True, **options)
        with _config_lock:
            place = kept_at(Path(function.__code__.co_filename).parent)
            if place is None:
                return cast(F, compile_now()(function))
            before, config.CACHE_DIR = config.CACHE_DIR, str(place)
            try:
                return cast(F, compile_now(cache=True)(function))
            except OSError as error:  # no room left, say
                logger.warning("a compiled loop could not be kept: %s", error)
                return cast(F, compile_now()(function))
            finally:
                config.CACHE_DIR = before

    return compile_it


@cache
def kept_at(folder: Path) -> Path | None:
    """Where the loops of a folder are kept: below $NUMBA_CACHE_DIR if that is set, else beside the sources, else in the
    user's cache. None where none of these can be written to."""
    if config.CACHE_DIR:
        places = [config.CACHE_DIR]
    else:
        user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        places = [str(folder / "__pycache__")]
        if os.path.isabs(user_cache):  # who has no home keeps its "~"
            places.append(os.path.join(user_cache, "ramiform"))
    digest = _digest(folder)
    for place in places:
        kept = Path(place, f"loops-{digest}")
        try:
            kept.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=kept):
                return kept
        except OSError:
            continue
    logger.warning("compiled loops cannot be kept in %s; set NUMBA_CACHE_DIR to where they can", " nor ".join(places))
    return None


def _digest(folder: Path) -> str:
    """Of the folder's sources, and of how they are compiled."""
    digest = hashlib.sha256()
    for source in (*sorted(folder.glob("*.py")), Path(__file__)):
        data = source.read_bytes()
        digest.update(f"{source.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]
