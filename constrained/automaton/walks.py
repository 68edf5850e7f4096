"""Walks over the vocabulary as values: where one begins, what it adds to, its arrays; many in one call over threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..budget import cached_property
from . import layout
from .tables import Tables
from .token_trie import TokenTrie, address_of, addresses
from .vocabulary import Bits, Vocabulary

MIN_SHARE = 32  # walks of a thread: most take a few microseconds, and waking one takes fifty
_MAX_THREADS = 8


class Configuration(NamedTuple):
    """State of an output: control state, top and first free cell of its stack, counter of the current value."""

    state: int
    top: int
    free: int
    counted: int


configuration: Callable[[tuple[int, ...]], Configuration] = partial(tuple.__new__, Configuration)  # half of its time


class OutputMemory(NamedTuple):
    """Memory of an output: the cells of its stack, their address, and the bytes so far."""

    cells: NDArray[np.int32]
    address: int
    history: bytearray


class TokenMask:
    """The tokens that are allowed in a configuration, as bits that are not changed any more, and their address.

    `may_repeat`: some may write the name of a member again. The mask depends on the topmost `reach` frames.
    """

    __slots__ = ("address", "bits", "is_cached", "may_repeat", "reach")

    def __init__(self, bits: NDArray[np.int32], address: int, may_repeat: bool, reach: int, is_cached: bool) -> None:
        self.bits, self.address = bits, address
        self.may_repeat, self.reach, self.is_cached = may_repeat, reach, is_cached


class KnownMask(NamedTuple):
    """The mask of an output's configuration, and its bits without names that would come again."""

    at: Configuration
    bits: NDArray[np.int32]
    mask: TokenMask


known_mask: Callable[[tuple[object, ...]], KnownMask] = partial(tuple.__new__, KnownMask)  # half of its time


class MaskWalk:
    """A mask in the making, and its walk: it begins with the bits `base`, and adds those of the trie's allowed tokens.

    If that is the mask of another state (`like`), the tokens whose first byte has an edge in the first state are
    decided again.
    `tokens_of` says which tokens it considers, as `layout` lists.
    """

    __slots__ = ("address", "at", "base", "bits", "key", "like", "memory", "scratch", "tokens_of", "trie")

    def __init__(
        self,
        key: tuple[int, ...],
        at: Configuration,
        memory: OutputMemory,
        scratch: Scratch,
        trie: TokenTrie,
        base: Bits | TokenMask | None = None,
        tokens_of: int = layout.EVERY_TOKEN,
    ) -> None:
        self.key, self.at, self.memory, self.scratch = key, at, memory, scratch
        self.trie = trie
        self.like = base if isinstance(base, TokenMask) else None
        self.base = (base.bits, base.address) if isinstance(base, TokenMask) else base
        self.tokens_of = tokens_of if self.like is None else layout.ONLY_EDGES
        self.bits, self.address = scratch.vocabulary.new_bits()

    def arguments(self, depth: int = -1) -> tuple[int, ...]:
        """Return the arguments of `walk_packed.walk` that begin the walk, or resume it at row `depth`.

        Call it right before: tables are reallocated when they grow.
        """
        (state, top, free, counted), (cells, cells_address, history) = self.at, self.memory
        return (
            state,
            top,
            free,
            counted,
            len(history),
            depth,
            self.tokens_of,
            cells_address,
            len(cells),
            self.trie.packed_address,
            0 if self.base is None else self.base[1],
            self.address,
            len(self.bits),
            self.scratch.arrays.address(),
        )


def walk_together(walks: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Run walks, given the arguments of `walk_packed.walk`, in one compiled call in each of several threads.

    Returns the status and depth of each.
    """
    from . import walk_packed  # not at the top: it imports numba

    if not walks:
        return []
    rows = np.array(walks, np.int64)
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


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS - 1, thread_name_prefix="walks")


class Scratch:
    """Arrays in which a walk or step takes place."""

    def __init__(self, longest: int, tables: Tables, vocabulary: Vocabulary) -> None:
        self.work = np.zeros((longest + 2, layout.NUM_WORK_COLUMNS), np.int32)
        self.codes = np.zeros(256, np.int32)  # actions of the edges of a walk's first state by byte, -1 for none
        self.context = np.zeros(layout.CONTEXT_SIZE, np.int64)
        self.vocabulary = vocabulary
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
        self._address = address_of(self._addresses)

    @cached_property
    def advance(self) -> Any:
        """The compiled step of a token, without numba's choice of a signature, which takes a third of its time."""
        return _entry("advance")

    @cached_property
    def walk(self) -> Any:
        """The compiled walk, as `advance`."""
        return _entry("walk")

    def address(self) -> int:
        """Return the address of the addresses. Call it right before a step or walk: tables that grow move."""
        if self._version != self._tables.version:
            self._version = self._tables.version
            self._held = self._tables.arrays()
            self._addresses[: 2 * len(self._held)] = addresses(*self._held)
        return self._address


@cache
def _entry(name: str) -> Any:
    """Return a loop of `walk_packed` that takes only numbers, as a plain function."""
    from . import walk_packed  # not at the top: it imports numba

    loop: Any = getattr(walk_packed, name)
    (compiled,) = loop.load().overloads.values()
    return compiled.entry_point
