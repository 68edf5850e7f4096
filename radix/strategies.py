"""Eviction strategies: each is a sort key over leaves, and the leaf with the smallest key is evicted first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .tree import TreeNode


@dataclass(frozen=True)
class EvictionStrategy:
    """A strategy's sort key.

    A node's key falls only when a soft pin is dropped, and is never below its children's keys: parents are evicted
    later.
    """

    key: Callable[[TreeNode], tuple[int, ...]]
    respects_soft_pins: bool = False


def _lru(node: TreeNode) -> tuple[int, ...]:
    return (node.last_used,)


def _lfu(node: TreeNode) -> tuple[int, ...]:
    return (node.num_hits, node.last_used)


def _priority(node: TreeNode) -> tuple[int, ...]:
    return (node.priority, node.last_used)


def _program(node: TreeNode) -> tuple[int, ...]:
    """First leaves that only one program used and that have no soft pin: the state that they belonged to has ended.
    Last soft-pinned ones, and of those first the ones whose most senior owner has the largest rank. In between, by age.
    """
    if node.soft_pins:
        return (2, -min(node.soft_pins.values()), node.last_used)
    return (1 if node.program_id is None else 0, 0, node.last_used)


STRATEGIES: dict[str, EvictionStrategy] = {  # by the names that `--eviction` takes
    "lru": EvictionStrategy(_lru),
    "lfu": EvictionStrategy(_lfu),
    "priority": EvictionStrategy(_priority),
    "program": EvictionStrategy(_program, respects_soft_pins=True),
}
