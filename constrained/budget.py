"""Limits on the work of compiling a constraint: a hostile one ends in an error, with the same verdict on any machine.

Work is counted in steps. A step is one transition of an automaton that is computed, or one member of a set of states
that is visited, in a compiled loop: some nanoseconds. What is done in Python counts `INTERPRETED` steps. Every
construction charges its steps as it goes, so that little is done between two charges.

A result that is cached is a piece. It has a budget of its own, and remembers what was charged for it, also through
other pieces. Each compilation is charged once for each piece that it uses, whether it was made now or before, so the
verdict does not depend on what the caches hold.

Whoever runs several of these works by turns, in threads, learns of the steps of each by `counted`. Work outside of any
construction reports steps to it by `count`, which no limit applies to.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property as locking_property
from functools import update_wrapper
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np

from .errors import GrammarError

MAX_STATES = 100_000  # of each intermediate automaton
_MAX_STEPS = 100_000_000  # of one construction, or of one cached piece
PATTERN_STEPS = 60_000_000  # of one pattern
GRAMMAR_STEPS = 200_000_000  # for all terminals of a grammar
COMPILATION_STEPS = 200_000_000  # of one constraint, with all pieces that it uses
MAX_CACHED_STEPS = 100_000_000  # of the results that one function keeps, some tens of MB
MAX_CACHED_BYTES = 64 << 20  # of the results that all functions keep
_OBJECT_BYTES = 400  # of a result and its entry, beside its arrays
INTERPRETED = 100  # steps of one operation in Python
EACH_PATTERN = 250 * INTERPRETED  # steps of reading a pattern, beside those of its automaton

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class _Work:
    """Steps that were charged for a piece, without those of the pieces that it uses."""

    key: Hashable
    steps: int = 0
    used: list[_Work] = field(default_factory=list)


class _Compilation(_Work):
    """Work of a whole constraint, in which each piece counts once."""

    def __init__(self) -> None:
        super().__init__(None)
        self.total = 0
        self.place: str | None = None  # pointer of the part of a schema that was worked on last
        self._refused_at: str | None = None
        self._known: set[Hashable] = set()

    def add(self, steps: int) -> None:
        """Charge steps. Raises GrammarError if they are used up."""
        if self.total <= COMPILATION_STEPS:
            self._refused_at = self.place
        self.total += steps
        if self.total > COMPILATION_STEPS:
            reason = f"the constraint is too complex: it needs more than {COMPILATION_STEPS:,} steps"
            raise GrammarError(reason, pointer=self._refused_at)

    def is_new(self, piece: _Work) -> bool:
        """Return True at the first use of a piece."""
        if piece.key in self._known:
            return False
        self._known.add(piece.key)
        return True

    def use(self, piece: _Work) -> None:
        """Charge for a piece that was made before, and for those that it uses."""
        todo = [piece]
        while todo:
            some = todo.pop()
            if self.is_new(some):
                self.add(some.steps)
                todo += some.used


class _Open(threading.local):
    """Constraint that this thread compiles, the pieces that are being made, the innermost last, and who counts."""

    def __init__(self) -> None:
        self.on_steps: Callable[[int], None] | None = None
        self.compilation: _Compilation | None = None
        self.pieces: list[_Work] = []


_open = _Open()


@contextmanager
def compilation() -> Iterator[None]:
    """Charge all work of this thread to one constraint. Raises GrammarError at the end, too, if it was too much."""
    outer, _open.compilation = _open.compilation, _Compilation()
    try:
        yield
        _open.compilation.add(0)  # an error may have been caught, and another way taken
    finally:
        _open.compilation = outer


@contextmanager
def counted(on_steps: Callable[[int], None] | None) -> Iterator[None]:
    """Call `on_steps` with the steps of this thread's work as they are done, or nothing where it is None.

    It may wait, and it may raise an exception to end the work.
    """
    outer, _open.on_steps = _open.on_steps, on_steps
    try:
        yield
    finally:
        _open.on_steps = outer


def count(steps: int) -> None:
    """Report steps to `counted` without charging them."""
    if _open.on_steps is not None:
        _open.on_steps(steps)


def charge(steps: int) -> None:
    """Report steps, and charge them to the constraint that this thread compiles, if any.

    Raises GrammarError if they are used up.
    """
    count(steps)
    if _open.pieces:
        _open.pieces[-1].steps += steps
    if _open.compilation is not None:
        _open.compilation.add(steps)


def work_at(pointer: str) -> None:
    """Name the part of a schema that is worked on, for the error if the steps of the constraint are used up."""
    if _open.compilation is not None:
        _open.compilation.place = pointer


class CompileBudget:
    """States and steps of one construction."""

    def __init__(self, max_states: int = MAX_STATES, max_steps: float = _MAX_STEPS) -> None:
        self._max_states = max_states
        self._max_steps = max_steps
        self._spent = 0

    def check(self, num_states: int, steps: int) -> None:
        """Charge steps. Raises GrammarError if an automaton has too many states, or the steps are used up."""
        if num_states > self._max_states:
            raise GrammarError(f"the constraint is too complex: it needs more than {self._max_states} states")
        self._spent += steps
        charge(steps)
        if self._spent > self._max_steps:
            raise GrammarError(f"the constraint is too complex: it needs more than {self._max_steps:,} steps")


class cached_property(locking_property[R]):  # noqa: N801
    """The standard library's, without the lock that all instances share in Python 3.11.

    Work that waits for its turn would hold it, and other work would wait for that in its own turn. Here two threads may
    compute a value twice.
    """

    if not TYPE_CHECKING:

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value


class _KeptBytes:
    """Results of all cached functions, the one used least recently first, within `MAX_CACHED_BYTES`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.num_bytes = 0
        self._kept: OrderedDict[tuple[CachedPiece[Any, Any], Hashable], int] = OrderedDict()

    def note_use(self, piece: CachedPiece[Any, Any], key: Hashable) -> None:
        self._kept.move_to_end((piece, key))

    def add(self, piece: CachedPiece[Any, Any], key: Hashable, num_bytes: int) -> None:
        """Note a new result, and drop old ones of any function beyond the bound. Call under the lock, as all others."""
        self._kept[piece, key] = num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > MAX_CACHED_BYTES and len(self._kept) > 1:
            other, old = next(iter(self._kept))
            other.drop(old)

    def remove(self, piece: CachedPiece[Any, Any], key: Hashable) -> None:
        self.num_bytes -= self._kept.pop((piece, key))


_kept_bytes = _KeptBytes()


class CachedPiece(Generic[P, R]):
    """A function whose results are cached with the work that they took.

    The results used least recently are dropped beyond `maxsize`, beyond `max_steps` for those that are kept, and beyond
    `MAX_CACHED_BYTES` for those of all functions.
    """

    def __init__(self, make: Callable[P, R], maxsize: int, max_steps: int) -> None:
        update_wrapper(self, make)
        self._make, self._maxsize, self._max_steps = make, maxsize, max_steps
        self._results: OrderedDict[Hashable, tuple[R, _Work]] = OrderedDict()
        self._steps = 0
        self.num_made = 0  # results that were not in the cache

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(kwargs.items())) if kwargs else args
        with _kept_bytes.lock:
            found = self._results.get(key)
            if found is not None:
                self._results.move_to_end(key)
                _kept_bytes.note_use(self, key)
        if found is None:
            found = self._made(*args, **kwargs)
            self._keep(key, found)
        result, work = found
        if _open.pieces:
            _open.pieces[-1].used.append(work)
        if _open.compilation is not None:
            _open.compilation.use(work)
        return result

    def cache_clear(self) -> None:
        """Forget all results."""
        with _kept_bytes.lock:
            for key in list(self._results):
                self.drop(key)

    def drop(self, key: Hashable) -> None:
        """Forget a result. Call under the lock of the kept bytes."""
        _, work = self._results.pop(key)
        self._steps -= work.steps
        _kept_bytes.remove(self, key)

    def _keep(self, key: Hashable, found: tuple[R, _Work]) -> None:
        num_bytes = _num_bytes(found[0])
        with _kept_bytes.lock:
            if key in self._results:
                return
            self._results[key] = found
            self._steps += found[1].steps
            _kept_bytes.add(self, key, num_bytes)
            while len(self._results) > 1 and (len(self._results) > self._maxsize or self._steps > self._max_steps):
                self.drop(next(iter(self._results)))

    def _made(self, *args: Any, **kwargs: Any) -> tuple[R, _Work]:
        self.num_made += 1
        work = _Work((self._make, args, tuple(kwargs.items())))
        compilation = _open.compilation
        if compilation is not None and not compilation.is_new(work):
            _open.compilation = None  # charged before, and dropped from the cache since
        _open.pieces.append(work)
        try:
            return self._make(*args, **kwargs), work
        finally:
            _open.pieces.pop()
            _open.compilation = compilation


def _num_bytes(result: object, depth: int = 3) -> int:
    """Estimate the bytes of a result: those of its arrays, of its fields and items too, and some hundreds."""
    if isinstance(result, np.ndarray):
        return _OBJECT_BYTES + result.nbytes
    parts = result if isinstance(result, tuple) else tuple(getattr(result, "__dict__", {}).values())
    inner = [part for part in parts if isinstance(part, np.ndarray | tuple) or hasattr(part, "__dict__")]
    return _OBJECT_BYTES + 8 * len(parts) + (sum(_num_bytes(part, depth - 1) for part in inner) if depth else 0)


def cached_piece(maxsize: int, max_steps: int = MAX_CACHED_STEPS) -> Callable[[Callable[P, R]], CachedPiece[P, R]]:
    """Cache the results of a function as pieces, the last `maxsize` of them."""
    return lambda make: CachedPiece(make, maxsize, max_steps)
