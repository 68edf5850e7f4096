"""Compiles loops over arrays with numba: for given signatures, at import, and cached on disk for the next process.

numba's cache detects changes only in the file of the loop itself. So the cache directory is named by a digest of all
sources in that file's folder, and an entry is never older than a constant or another loop that it uses. A loop must not
use anything of this package from outside its folder.

The environment variable RAMIFORM_CPU restricts the instructions that compiled loops use, for tests and for processors
whose wide instructions are slow. `kernels.cpu.instructions` chooses the loops' form by it.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

from llvmlite import binding, ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

config: Any = numba_config  # its attributes are set at import, so type checkers do not know them
logger = logging.getLogger("ramiform.loops")
# What RAMIFORM_CPU may be, and the processor that LLVM then compiles for; None: this one. `avx512-emulated` computes in
# the form of avx512-dot without its instructions, so that any processor can test that form.
CPU_LEVELS = {
    "generic": "generic",
    "avx2": "x86-64-v3",
    "avx512": "x86-64-v4",
    "avx512-dot": None,
    "avx512-emulated": None,
}
CPU_LEVEL = os.environ.get("RAMIFORM_CPU", "avx512-dot")
if CPU_LEVEL not in CPU_LEVELS:
    raise ValueError(f"RAMIFORM_CPU is {CPU_LEVEL!r}, and can be {', '.join(CPU_LEVELS)}")
_config_lock = Lock()  # the cache directory is a setting of the whole process, changed during a compilation only


def _restrict_processor() -> None:
    """Make LLVM compile for the processor that CPU_LEVEL names, if this one has all of its instructions."""
    name = CPU_LEVELS[CPU_LEVEL]
    features = binding.get_host_cpu_features()
    needed = {"generic": None, "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}
    if name is not None and (name == "generic" or features.get(needed[name])):
        config.CPU_NAME, config.CPU_FEATURES = name, ""


_restrict_processor()


def compiled(*signatures: str, **options: Any) -> Callable[[F], F]:
    """Compile the decorated function for exactly these signatures, or load it from disk; without any, on first call.

    `options` are numba's. The function releases the GIL. Every process compiles the same signatures, so processes can
    share a cache directory without locks: the last writer replaces a whole file by an equal one.
    """

    def decorate(function: F) -> F:
        return cast(F, _compile(partial(njit, list(signatures) or None, nogil=True, **options), function))

    return decorate


def _compile(compile_now: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Apply one of numba's decorators, with its cache."""
    with _config_lock:
        place = cache_directory(Path(function.__code__.co_filename).parent)
        if place is None:
            return compile_now()(function)
        before, config.CACHE_DIR = config.CACHE_DIR, str(place)
        try:
            return compile_now(cache=True)(function)
        except OSError as error:  # for example a full disk
            logger.warning("cannot cache a compiled loop: %s", error)
            return compile_now()(function)
        finally:
            config.CACHE_DIR = before


def compiled_once(signature: str, **options: Any) -> Callable[[F], F]:
    """Compile the decorated function, of numbers only, once for all loops that call it, or load it from disk.

    A `compiled` loop contains a copy of all it calls, which takes long for large functions. This one is called by its
    name among the process's symbols. Only compiled loops can call it.
    """

    def decorate(function: F) -> F:
        made = _compile(partial(cfunc, signature, **options), function)
        name = f"{function.__module__}.{function.__qualname__}"
        binding.add_symbol(name, made.address)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = [context.get_value_type(kind) for kind in signature.args]
            kind = ir.FunctionType(context.get_value_type(signature.return_type), kinds)
            called = cgutils.get_or_insert_function(builder.module, kind, name)
            result = builder.call(called, arguments)
            return context.get_dummy_value() if signature.return_type == types.void else result

        def call_by_name(context: Any, *_: Any) -> Any:
            return made._sig, generate

        own = inspect.signature(function)  # numba matches arguments with it
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call_by_name.__signature__ = own.replace(parameters=[context, *own.parameters.values()])  # type: ignore[attr-defined]
        call = intrinsic(call_by_name)
        call.compiled = made  # the machine code lives as long
        return cast(F, call)

    return decorate


@cache
def cache_directory(folder: Path) -> Path | None:
    """Return the cache directory of a folder's loops; None if no candidate is writable.

    The candidates are below $NUMBA_CACHE_DIR if that is set, else beside the sources, else in the user's cache.
    """
    if config.CACHE_DIR:
        places = [config.CACHE_DIR]
    else:
        user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        places = [str(folder / "__pycache__")]
        if os.path.isabs(user_cache):  # without a home directory the "~" remains
            places.append(os.path.join(user_cache, "ramiform"))
    digest = _digest(folder)
    for place in places:
        directory = Path(place, f"loops-{digest}")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                return directory
        except OSError:
            continue
    logger.warning(
        "compiled loops cannot be cached in %s; set NUMBA_CACHE_DIR to a writable directory", " nor ".join(places)
    )
    return None


def _digest(folder: Path) -> str:
    """Return a digest of the folder's sources, of this module and of the level of instructions."""
    digest = hashlib.sha256(CPU_LEVEL.encode())
    for source in (*sorted(folder.glob("*.py")), Path(__file__)):
        data = source.read_bytes()
        digest.update(f"{source.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]
