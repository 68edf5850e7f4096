"""The nodes below a branch: exact look-up by first page, and the nearest one. Knows keys; knows no pins, no pages.

Keys are packed tokens, so a key is the beginning of another exactly when its bytes are, and in sorted order the key
that shares most with a given one is next to its place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from .packed_tokens import common_prefix_length

_MAX_CHUNK_KEYS = 512  # keys; what an insertion or a removal among very many siblings moves in memory
_last_key = itemgetter(-1)


class IndexedChild(Protocol):
    """What is asked of a node."""

    key: bytes
    on_host: bool


ChildT = TypeVar("ChildT", bound=IndexedChild)


class ParentNode(Generic[ChildT]):
    """What nodes hang from: a node, or the root of a namespace."""

    __slots__ = ("_chunks", "children", "num_device_children")

    def __init__(self) -> None:
        self.children: dict[bytes, ChildT] = {}
        self.num_device_children = 0  # children whose pages are on the device
        self._chunks: list[list[bytes]] = []  # the children's keys in order, none of the lists empty

    def attach(self, child: ChildT) -> None:
        key = child.key
        assert key not in self.children
        self.children[key] = child
        self.num_device_children += not child.on_host
        chunks = self._chunks
        if not chunks:
            chunks.append([key])
            return
        at = min(self._chunk_of(key), len(chunks) - 1)
        chunk = chunks[at]
        insort(chunk, key)
        if len(chunk) > _MAX_CHUNK_KEYS:
            half = len(chunk) // 2
            chunks[at : at + 1] = [chunk[:half], chunk[half:]]

    def detach(self, child: ChildT) -> None:
        del self.children[child.key]
        self.num_device_children -= not child.on_host
        at = self._chunk_of(child.key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, child.key)]
        if not chunk:
            del self._chunks[at]

    def replace(self, child: ChildT, other: ChildT) -> None:
        """Put `other` in the place of `child`; their keys and their tiers are the same."""
        assert child.key == other.key
        assert child.on_host == other.on_host
        self.children[child.key] = other

    def nearest(self, key: bytes) -> tuple[ChildT | None, int]:
        """The child that shares most of the key's first tokens, and how many."""
        best: bytes | None = None
        most = 0
        for neighbour in (self.before(key), self.from_(key)):
            if neighbour is not None and (shared := common_prefix_length(key, neighbour)) > most:
                best, most = neighbour, shared
        return (None, 0) if best is None else (self.children[best], most)

    def covering(self, key: bytes) -> ChildT | None:
        """A child whose key starts with `key`, itself included."""
        following = self.from_(key)
        return self.children[following] if following is not None and following.startswith(key) else None

    def from_(self, key: bytes) -> bytes | None:
        """The first child's key that is not less than `key`."""
        at = self._chunk_of(key)
        if at == len(self._chunks):
            return None
        chunk = self._chunks[at]
        return chunk[bisect_left(chunk, key)]

    def before(self, key: bytes) -> bytes | None:
        """The last child's key that is less than `key`."""
        at = self._chunk_of(key)
        inside = bisect_left(self._chunks[at], key) if at < len(self._chunks) else 0
        if inside:
            return self._chunks[at][inside - 1]
        return self._chunks[at - 1][-1] if at else None

    def after(self, key: bytes) -> bytes | None:
        """The first child's key that is greater than `key`."""
        return self.from_(key + b"\0")

    def keys(self) -> list[bytes]:
        """All of them, in order."""
        return [key for chunk in self._chunks for key in chunk]

    def _chunk_of(self, key: bytes) -> int:
        """The first chunk that ends with `key` or beyond it; their number if there is none."""
        chunks = self._chunks
        if len(chunks) == 1:
            return int(chunks[0][-1] < key)
        return bisect_left(chunks, key, key=_last_key)
