"""Cache events for routers and viewers: pages stored and removed, named by hashes.

A whole page is named by a 64-bit hash of its tokens and of the previous page's hash. So a name stands for the page's
whole prefix, namespace included, and is the same in every process. Unfinished pages have no events.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from .child_index import ParentNode
from .packed_tokens import TOKEN_BYTES, unpack
from .tree import TreeNode, TreeRoot

TierName = Literal["device", "host"]


@dataclass(frozen=True)
class Stored:
    """Pages came to a tier: a hash for each, and their tokens. `parent` is the hash of the page
    before the first one. `adapter` names the LoRA adapter that computed them."""

    namespace: str
    parent: int | None  # None: the first page begins the prefix
    hashes: list[int]
    tokens: list[int]
    tier: TierName
    adapter: str | None = None


@dataclass(frozen=True)
class Removed:
    """Pages left a tier. They may still be on the other tier."""

    hashes: list[int]
    tier: TierName


@dataclass(frozen=True)
class Cleared:
    """The cache is empty: every namespace, every tier."""


CacheEvent = Stored | Removed | Cleared

# In the namespace of an adapter's prefixes, between what the client gave and the adapter's name, which a NUL ends.
ADAPTER_MARK = "\0lora\0"


def page_hash(parent: int | None, tokens: bytes | bytearray, namespace: str) -> int:
    """Hash one page. `tokens` are the page's packed tokens, `parent` is the hash of the page before it."""
    before = namespace.encode() if parent is None else parent.to_bytes(8, "little")
    # The key distinguishes the two kinds of predecessors.
    kind = b"root" if parent is None else b"page"
    digest = blake2b(blake2b(before, digest_size=16, key=kind).digest() + tokens, digest_size=8)
    return int.from_bytes(digest.digest(), "little")


class EventLog:
    """Collects events until they are taken. Stores the hashes of a node's pages on the node."""

    def __init__(self, page_size: int) -> None:
        self._page_bytes = page_size * TOKEN_BYTES
        self._events: list[CacheEvent] = []

    def take(self) -> list[CacheEvent]:
        events, self._events = self._events, []
        return events

    def record_stored(self, node: TreeNode) -> None:
        """Record the node's whole pages that have not been recorded yet."""
        first = len(node.hashes)
        num_whole = len(node.run) // self._page_bytes
        if first == num_whole:
            return
        namespace = _namespace_of(node)
        parent = _parent_hash(node) if first == 0 else node.hashes[-1]
        above = parent
        for at in range(first * self._page_bytes, num_whole * self._page_bytes, self._page_bytes):
            above = page_hash(above, node.run[at : at + self._page_bytes], namespace)
            node.hashes.append(above)
        self._store(node, namespace, parent, first)

    def record_removed(self, node: TreeNode, num_pages: int) -> None:
        """Record the removal of the node's last `num_pages` pages. Call before they are removed."""
        at = len(node.pages) - num_pages
        hashes = node.hashes[at:]
        del node.hashes[at:]
        if hashes:
            self._events.append(Removed(hashes, _tier_name(node.on_host)))

    def record_moved(self, node: TreeNode) -> None:
        """Record that the node has changed its tier."""
        if node.hashes:
            self._store(node, _namespace_of(node), _parent_hash(node), 0)
            self._events.append(Removed(list(node.hashes), _tier_name(not node.on_host)))

    def record_cleared(self) -> None:
        """Replace all pending events by one that says that everything is gone."""
        self._events = [Cleared()]

    def _store(self, node: TreeNode, namespace: str, parent: int | None, first: int) -> None:
        tokens = unpack(node.run[first * self._page_bytes : len(node.hashes) * self._page_bytes])
        _, _, adapter = namespace.partition(ADAPTER_MARK)
        self._events.append(
            Stored(
                namespace,
                parent,
                node.hashes[first:],
                tokens,
                _tier_name(node.on_host),
                adapter.partition("\0")[0] or None,
            )
        )


def _tier_name(on_host: bool) -> TierName:
    return "host" if on_host else "device"


def _parent_hash(node: TreeNode) -> int | None:
    return node.parent.hashes[-1] if isinstance(node.parent, TreeNode) else None


def _namespace_of(node: TreeNode) -> str:
    branch: ParentNode[TreeNode] = node
    while isinstance(branch, TreeNode):
        branch = branch.parent
    assert isinstance(branch, TreeRoot)
    return branch.namespace
