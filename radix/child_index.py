"""Children of a tree node: exact look-up by first page, and the child with the longest common prefix.

Keys are packed tokens. One key is a prefix of another exactly when its bytes are, and in sorted order the key that
shares most with a given one is its neighbour.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from .packed_tokens import common_prefix_length

_MAX_CHUNK_KEYS = 512  # bounds the memory moved by an insertion or removal among very many siblings
_last_key = itemgetter(-1)


class IndexedChild(Protocol):
    """Attributes of a child that the index uses."""

    key: bytes
    on_host: bool


ChildT = TypeVar("ChildT", bound=IndexedChild)


class ParentNode(Generic[ChildT]):
    """Base of nodes and roots: their children, indexed by the packed tokens of the child's first page."""

    __slots__ = ("_chunks", "children", "num_device_children")

    def __init__(self) -> None:
        self.children: dict[bytes, ChildT] = {}
        self.num_device_children = 0  # children whose pages are on the device
        self._chunks: list[list[bytes]] = []  # the children's keys in order; no chunk is empty

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
        """Put `other` in the place of `child`, which has the same key and tier."""
        assert child.key == other.key
        assert child.on_host == other.on_host
        self.children[child.key] = other

    def nearest(self, key: bytes) -> tuple[ChildT | None, int]:
        """Return the child that shares most of the key's first tokens, and the number of tokens shared."""
        best: bytes | None = None
        most = 0
        for neighbour in (self.last_key_before(key), self.first_key_from(key)):
            if neighbour is not None and (shared := common_prefix_length(key, neighbour)) > most:
                best, most = neighbour, shared
        return (None, 0) if best is None else (self.children[best], most)

    def child_covering(self, key: bytes) -> ChildT | None:
        """Return a child whose key starts with `key` (or equals it), or None."""
        following = self.first_key_from(key)
        return self.children[following] if following is not None and following.startswith(key) else None

    def first_key_from(self, key: bytes) -> bytes | None:
        """Return the smallest child key that is not less than `key`, or None."""
        at = self._chunk_of(key)
        if at == len(self._chunks):
            return None
        chunk = self._chunks[at]
        return chunk[bisect_left(chunk, key)]

    def last_key_before(self, key: bytes) -> bytes | None:
        """Return the largest child key that is less than `key`, or None."""
        at = self._chunk_of(key)
        inside = bisect_left(self._chunks[at], key) if at < len(self._chunks) else 0
        if inside:
            return self._chunks[at][inside - 1]
        return self._chunks[at - 1][-1] if at else None

    def first_key_after(self, key: bytes) -> bytes | None:
        """Return the smallest child key that is greater than `key`, or None."""
        return self.first_key_from(key + b"\0")

    def keys(self) -> list[bytes]:
        """Return all keys, in order."""
        return [key for chunk in self._chunks for key in chunk]

    def _chunk_of(self, key: bytes) -> int:
        """Index of the first chunk that ends with `key` or beyond it; the number of chunks if there is none."""
        chunks = self._chunks
        if len(chunks) == 1:
            return int(chunks[0][-1] < key)
        return bisect_left(chunks, key, key=_last_key)
