"""Which leaf goes first: each strategy is a key, the smallest goes. Knows what is noted on a node, nothing of heaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .tree import TreeNode

StrategyName = Literal["lru", "lfu", "priority", "program"]


@dataclass(frozen=True)
class EvictionStrategy:
    """`key` never falls but by a dropped claim, and a node's is never below its children's: parents go later."""

    key: Callable[[TreeNode], tuple[int, ...]]
    heeds_claims: bool = False


def _lru(node: TreeNode) -> tuple[int, ...]:
    return (node.last_used,)


def _lfu(node: TreeNode) -> tuple[int, ...]:
    return (node.num_hits, node.last_used)


def _priority(node: TreeNode) -> tuple[int, ...]:
    return (node.priority, node.last_used)


def _program(node: TreeNode) -> tuple[int, ...]:
    """First what only one family used and nobody claims: the state that it belonged to has ended. Last what is
    claimed, and of that first what the least senior claimant needs. In between, everything else by age."""
    if node.claims:
        return (2, -min(node.claims.values()), node.last_used)
    return (1 if node.family is None else 0, 0, node.last_used)


STRATEGIES: dict[StrategyName, EvictionStrategy] = {
    "lru": EvictionStrategy(_lru),
    "lfu": EvictionStrategy(_lfu),
    "priority": EvictionStrategy(_priority),
    "program": EvictionStrategy(_program, heeds_claims=True),
}
