"""A consumer of cache events that sees nothing else, and what it must then know."""

from __future__ import annotations

from collections.abc import Iterable

from ramiform.radix.cache import PrefixCache
from ramiform.radix.events import CacheEvent, Cleared, Removed, Stored
from ramiform.radix.packed_tokens import unpack
from ramiform.radix.tree import TreeRoot

from .invariants import path_from_root

Cached = set[tuple[str, str, tuple[int, ...]]]  # tier, namespace, a prefix of whole pages


class Mirror:
    """Cached prefixes, reconstructed from the events alone."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.prefixes: dict[int, tuple[str, tuple[int, ...]]] = {}  # by hash, every page ever reported
        self.held: dict[str, set[int]] = {"device": set(), "host": set()}

    def apply(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            match event:
                case Stored():
                    self.store(event)
                case Removed():
                    assert set(event.hashes) <= self.held[event.tier]
                    self.held[event.tier].difference_update(event.hashes)
                case Cleared():
                    self.held = {"device": set(), "host": set()}

    def store(self, event: Stored) -> None:
        prefix: tuple[int, ...] = ()
        if event.parent is not None:
            assert any(event.parent in hashes for hashes in self.held.values()), "a page's parent is missing"
            prefix = self.prefixes[event.parent][1]
        assert len(event.tokens) == len(event.hashes) * self.page_size
        for at, name in enumerate(event.hashes):
            prefix += tuple(event.tokens[at * self.page_size : (at + 1) * self.page_size])
            assert self.prefixes.setdefault(name, (event.namespace, prefix)) == (event.namespace, prefix)
        assert not self.held[event.tier] & set(event.hashes)
        self.held[event.tier].update(event.hashes)

    @property
    def cached(self) -> Cached:
        return {(tier, *self.prefixes[name]) for tier, hashes in self.held.items() for name in hashes}


def cached(cache: PrefixCache) -> Cached:
    """The prefixes that a mirror of the cache should hold."""
    found = set()
    for node in cache.tree.nodes():
        way = path_from_root(node)
        root = way[0].parent
        assert isinstance(root, TreeRoot)
        tokens = unpack(b"".join(part.run for part in way))
        before = len(tokens) - node.num_tokens
        for end in range(before + cache.page_size, len(tokens) + 1, cache.page_size):
            found.add(("host" if node.on_host else "device", root.namespace, tuple(tokens[:end])))
    return found
