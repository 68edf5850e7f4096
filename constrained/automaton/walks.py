"""Runs walks over the vocabulary: one, or those of many outputs in one compiled call over threads.

A computation that needs walks is a generator: it yields each walk, and gets its result. So whoever runs it decides
when, where and with which others a walk takes place.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import layout
from .tables import Tables
from .token_trie import addresses
from .vocabulary import Vocabulary

T = TypeVar("T")
# A computation that yields the arguments of `walk_packed.walk`, the last one as `PackedArrays`, and is sent its status
# and depth.
Walks = Generator[tuple[Any, ...], tuple[int, int], T]
MIN_SHARE = 32  # walks of a thread: most take a few microseconds, and waking one takes fifty
_MAX_THREADS = 8


def run(walks: Walks[T], first: Sequence[int] | None = None) -> T:
    """Run a computation, each walk when it is yielded. `first` is the result of the first one, if that was run."""
    run_one = _compiled_walk()
    try:
        walk = next(walks) if first is None else walks.send((first[0], first[1]))
        while True:
            walk = walks.send(run_one(*walk[:-1], walk[-1].current()))
    except StopIteration as stop:
        result: T = stop.value
        return result


@cache
def _compiled_walk() -> Any:
    from . import walk_packed  # not at the top: it imports numba

    loop: Any = walk_packed.walk
    return loop.load()


def walk_together(walks: Sequence[tuple[Any, ...]]) -> list[list[int]]:
    """Run walks, in one compiled call in each of several threads. Returns the status and depth of each."""
    from . import walk_packed

    if not walks:
        return []
    rows = np.array([_row(*walk) for walk in walks], np.int64)
    results = np.zeros((len(rows), 2), np.int64)
    num_threads = min(len(rows) // MIN_SHARE, _MAX_THREADS, os.cpu_count() or 1)
    if num_threads < 2:
        walk_packed.walk_all(rows, results)
        return results.tolist()
    bounds = [len(rows) * number // num_threads for number in range(num_threads + 1)]
    shares = [slice(first, last) for first, last in pairwise(bounds)]
    others = [_threads().submit(walk_packed.walk_all, rows[share], results[share]) for share in shares[1:]]
    walk_packed.walk_all(rows[shares[0]], results[shares[0]])
    for other in others:
        other.result()
    return results.tolist()


def _row(*walk: Any) -> tuple[int, ...]:
    """Return the arguments of a walk as numbers, arrays by their addresses and lengths."""
    *numbers, trie, out, arrays = walk
    packed = arrays.current()
    return *numbers, trie.ctypes.data, out.ctypes.data, len(out), packed.ctypes.data, len(packed)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS - 1, thread_name_prefix="walks")


class Scratch:
    """Arrays in which a walk or step takes place."""

    def __init__(self, longest: int, tables: Tables, vocabulary: Vocabulary) -> None:
        self.work = np.zeros((longest + 2, layout.NUM_WORK_COLUMNS), np.int32)
        self.codes = np.zeros(256, np.int32)  # actions of the edges of a walk's first state by byte, -1 for none
        self.context = np.zeros(layout.CONTEXT_SIZE, np.int64)
        self.arrays = PackedArrays(tables, self.work, self.context, self.codes, vocabulary)


class PackedArrays:
    """Addresses of a walker's arrays, which it keeps alive, and the compiled functions that take them."""

    def __init__(
        self,
        tables: Tables,
        work: NDArray[np.int32],
        context: NDArray[np.int64],
        codes: NDArray[np.int32],
        vocabulary: Vocabulary,
    ) -> None:
        self._tables, self._held = tables, tables.arrays()
        self._version = tables.version
        self._others = (work, context, codes, vocabulary)
        own = addresses(*self._held, work, context, codes)
        self._addresses = np.concatenate([own, vocabulary.packed_addresses])
        self._address = int(self._addresses.ctypes.data)

    @cached_property
    def advance(self) -> Any:
        """The compiled step of a token, without numba's choice of a signature, which takes a third of its time."""
        from . import walk_packed  # not at the top: it imports numba

        loop: Any = walk_packed.advance
        (compiled,) = loop.load().overloads.values()
        return compiled.entry_point

    def address(self) -> int:
        """Return the address of the addresses. Call it right before a step, as `current`."""
        if self._version != self._tables.version:
            self.current()
        return self._address

    def current(self) -> NDArray[np.int64]:
        """Return the addresses. Call it right before a walk: tables are reallocated when they grow."""
        tables = self._tables
        if self._version != tables.version:
            self._version = tables.version
            self._held = tables.arrays()
            self._addresses[: 2 * len(self._held)] = addresses(*self._held)
        return self._addresses
