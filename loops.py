"""Compiles loops over arrays with numba: for given signatures, when first called, and cached on disk.

numba's cache detects changes only in the file of the loop itself. So the cache directory is named by a digest of all
sources that the loop may use, and an entry is never older than a constant or another loop that it uses. A loop may use
its own folder, and where a folder above has a `compiled.py`, the settings of its loops, all of that folder. It must not
use anything else of this package.

A process that should not wait for a compilation postpones the loops of a package: it asks `ready` where it has another
way to compute the same, and interprets the loops where it has none. numba is imported with the first loop that is
loaded.

The environment variable RAMIFORM_CPU restricts the instructions that compiled loops use, for tests and for processors
whose wide instructions are slow. `kernels.cpu.instructions` chooses the loops' form by it.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial, update_wrapper
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("ramiform.loops")
# What RAMIFORM_CPU may be, and the processor that LLVM then compiles for; None: this one. `avx512-emulated` and
# `amx-emulated` compute in the form of avx512-dot and amx without their instructions, so that any processor can test
# these forms.
CPU_LEVELS = {
    "generic": "generic",
    "avx2": "x86-64-v3",
    "avx512": "x86-64-v4",
    "avx512-dot": None,
    "amx": None,
    "avx512-emulated": None,
    "amx-emulated": None,
}
CPU_LEVEL = os.environ.get("RAMIFORM_CPU", "amx")
if CPU_LEVEL not in CPU_LEVELS:
    raise ValueError(f"RAMIFORM_CPU is {CPU_LEVEL!r}, and can be {', '.join(CPU_LEVELS)}")
_postponed: set[str] = set()  # packages
_interpreted: frozenset[str] = frozenset()  # packages; replaced, not changed, because threads read it
# numba gives a function that is compiled for a caller the caller's options where it has none of its own.
_OWN_OPTIONS: dict[str, Any] = {"fastmath": False, "error_model": "python"}
_symbols: list[Symbol] = []
registered: list[Loop] = []  # all loops of the imported modules, callees before their callers


def ready(package: str) -> bool:
    """Return True if this process may use the compiled loops of a package now, and False while it computes without
    them."""
    return package not in _postponed


def postpone(package: str, *, interpret: bool = False) -> None:
    """Compute without the compiled loops of a package until `allow`. With `interpret`, Python runs those called."""
    global _interpreted
    _postponed.add(package)
    if interpret:
        _interpreted |= {package}


def allow(package: str) -> None:
    """Use the compiled loops of a package from now on."""
    global _interpreted
    _interpreted -= {package}
    _postponed.discard(package)


class Loop:
    """A compiled function. It is compiled, or loaded from disk, when it is first called or `load` is.

    Compiled functions call it as they call numba's. Other attributes are those of numba's dispatcher.
    """

    def __init__(self, function: Callable[..., Any], signatures: tuple[str, ...], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self._function, self._signatures, self._options = function, signatures, options
        self._compiled: Any = None
        registered.append(self)

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            if _interpreted and any(self._function.__module__.startswith(package) for package in _interpreted):
                return self._function(*args)
            self.load()
        return self._compiled(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> Any:
        """Load the function from disk or compile it; return numba's dispatcher."""
        if self._compiled is None:
            _import_numba()
            from numba.core.compiler_lock import global_compiler_lock

            _prepare_numba()
            with global_compiler_lock:
                if self._compiled is None:
                    self._compiled = self._load()
        return self._compiled

    def _load(self) -> Any:
        from numba import njit

        _load_symbols(self._function)
        options = _OWN_OPTIONS | self._options
        return _compile(partial(njit, list(self._signatures) or None, nogil=True, **options), self._function)


class Symbol:
    """A function of numbers that is compiled once, and that compiled loops call by its name among the process's
    symbols."""

    def __init__(self, function: Callable[..., Any], signature: str, options: dict[str, Any]) -> None:
        self._function, self._signature, self._options = function, signature, options
        self.folder = loops_folder(Path(function.__code__.co_filename))
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._loading = False
        self._compiled: Any = None  # its machine code lives as long
        _symbols.append(self)

    def load(self) -> None:
        """Load the function from disk or compile it, before the machine code of its callers is linked."""
        if self._loading:  # by a loop that it calls itself
            return
        from llvmlite import binding
        from numba import cfunc

        self._loading = True
        try:
            self._compiled = _compile(partial(cfunc, self._signature, **_OWN_OPTIONS | self._options), self._function)
        except BaseException:
            self._loading = False
            raise
        binding.add_symbol(self._name, self._compiled.address)

    def caller(self) -> Callable[..., Any]:
        """Return a function for compiled loops that calls this one."""
        from llvmlite import ir
        from numba import types
        from numba.core import cgutils, sigutils, typing
        from numba.extending import intrinsic

        untyped: Any = sigutils, typing, cgutils
        kinds, result = untyped[0].normalize_signature(self._signature)
        signature, find, name = untyped[1].signature(result, *kinds), untyped[2].get_or_insert_function, self._name

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            values = [context.get_value_type(kind) for kind in kinds]
            kind = ir.FunctionType(context.get_value_type(result), values)
            called = builder.call(find(builder.module, kind, name), arguments)
            return context.get_dummy_value() if result == types.void else called

        def call(_context: Any, *_arguments: Any) -> Any:
            return signature, generate

        parameters = inspect.signature(self._function).parameters.values()
        context = inspect.Parameter("_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        return cast(Callable[..., Any], intrinsic(call))


def _load_symbols(function: Callable[..., Any]) -> None:
    """Load the symbols that a loop may call, before its machine code is linked."""
    for symbol in _symbols:
        if symbol.folder == loops_folder(Path(function.__code__.co_filename)):
            symbol.load()


def _compile(compile_now: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Apply one of numba's decorators, with its cache."""
    from numba.core import config as numba_config

    config: Any = numba_config  # its attributes are set at import, so type checkers do not know them
    place = cache_directory(loops_folder(Path(function.__code__.co_filename)))
    if place is None:
        return compile_now()(function)
    # A setting of the whole process, changed under numba's own lock and during a compilation only.
    before, config.CACHE_DIR = config.CACHE_DIR, str(place)
    try:
        return compile_now(cache=True)(function)
    except OSError as error:  # for example a full disk
        logger.warning("cannot cache a compiled loop: %s", error)
        return compile_now()(function)
    finally:
        config.CACHE_DIR = before


@cache
def _import_numba() -> None:
    """Import numba. An import that finds no memory leaves nothing behind: with parts of it every later one would fail.

    Raises ImportError, OSError or MemoryError.
    """
    try:
        import numba.core.compiler_lock
        import numba.extending  # noqa: F401
    except (ImportError, OSError, MemoryError):
        for name in [name for name in sys.modules if name.split(".")[0] in ("numba", "llvmlite")]:
            del sys.modules[name]
        raise


@cache
def _prepare_numba() -> None:
    """Register the type of a Loop for compiled functions, that of its dispatcher; restrict LLVM to CPU_LEVEL."""
    _restrict_processor()
    from numba import types
    from numba.extending import typeof_impl

    @typeof_impl.register(Loop)
    def _(loop: Loop, _context: Any) -> Any:
        return types.Dispatcher(loop.load())


def _restrict_processor() -> None:
    """Make LLVM compile for the processor that CPU_LEVEL names, if this one has all of its instructions."""
    from llvmlite import binding
    from numba.core import config as numba_config

    config: Any = numba_config
    name = CPU_LEVELS[CPU_LEVEL]
    features = binding.get_host_cpu_features()
    needed = {"generic": None, "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}
    if name is not None and (name == "generic" or features.get(needed[name])):
        config.CPU_NAME, config.CPU_FEATURES = name, ""


def compiled(*signatures: str, **options: Any) -> Callable[[F], F]:
    """Compile the decorated function for exactly these signatures; without any, for the arguments of each first call.

    `options` are numba's. The function releases the GIL. Every process compiles the same signatures, so processes can
    share a cache directory without locks: the last writer replaces a whole file by an equal one.
    """

    def decorate(function: F) -> F:
        return cast(F, Loop(function, signatures, options))

    return decorate


def compiled_once(signature: str, **options: Any) -> Callable[[F], F]:
    """Compile the decorated function, of numbers only, once for all loops of its folder that call it.

    A `compiled` loop contains a copy of all it calls, which takes long for large functions. This one is called by its
    name among the process's symbols. Only compiled loops can call it.
    """

    def decorate(function: F) -> F:
        return cast(F, Symbol(function, signature, options).caller())

    return decorate


def compile_function(function: Callable[..., Any], signature: str, **options: Any) -> Any:
    """Compile a function of numbers now, or load it from disk; return numba's C callback, which has its address.

    It lasts as long as the callback. Functions that another one makes need names (`__qualname__`) of their own: the
    cache's files have them.
    """
    _import_numba()
    from numba import cfunc
    from numba.core.compiler_lock import global_compiler_lock

    _prepare_numba()
    with global_compiler_lock:
        _load_symbols(function)
        return _compile(partial(cfunc, signature, **_OWN_OPTIONS | options), function)


def compile_registered(package: str) -> None:
    """Compile or load every loop of known signatures in the imported modules of a package."""
    for loop in registered:
        if loop._signatures and loop._function.__module__.startswith(package):
            loop.load()


@cache
def loops_folder(source: Path) -> Path:
    """Return the folder whose sources the loops of a file may use."""
    folder = source.parent
    return next((above for above in (folder, folder.parent) if (above / "compiled.py").exists()), folder)


@cache
def cache_directory(folder: Path) -> Path | None:
    """Return the cache directory of a folder's loops; None if no candidate is writable.

    The candidates are below $NUMBA_CACHE_DIR if that is set, else beside the sources, else in the user's cache.
    """
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        places = [chosen]
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


def is_complete(folder: Path, what: str = "") -> bool:
    """Return True if all loops of a folder, or those named `what`, have been compiled for this processor, so that they
    load from disk."""
    place = cache_directory(folder)
    return place is not None and _completion_mark(place, what).exists()


def mark_complete(folder: Path, what: str = "") -> None:
    """Record that all loops of a folder, or those named `what`, have been compiled for this processor."""
    if (place := cache_directory(folder)) is not None:
        _completion_mark(place, what).touch()


def _completion_mark(place: Path, what: str) -> Path:
    """Return the path of a file named by everything beside the sources that compiled code depends on.

    numba checks the same for each loop, but importing it takes longer than a start may wait.
    """
    numba = find_spec("numba")
    assert numba is not None
    assert numba.origin is not None
    facts = [what, sys.version, platform.machine(), numba.origin, str(os.stat(numba.origin).st_mtime_ns)]
    facts += [
        f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(("NUMBA_", "RAMIFORM_CPU"))
    ]
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        facts += [line for line in first if line.startswith(("model", "flags", "Features", "CPU part"))]
    except OSError:
        facts.append(platform.processor())
    return place / f"complete-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def _digest(folder: Path) -> str:
    """Return a digest of the folder's sources, of this module and of the level of instructions."""
    digest = hashlib.sha256(CPU_LEVEL.encode())
    for source in (*sorted(folder.rglob("*.py")), Path(__file__)):
        data = source.read_bytes()
        digest.update(f"{source.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]
