"""Eviction strategies: each is a sort key over leaves, and the leaf with the smallest key is evicted first."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from ..reuse_forecast import ReuseForecast, WaitGroup
from ..tree import TreeNode

Key = tuple[float, ...]


def _one_group(node: TreeNode) -> Hashable:
    return None


def _by_key(group: Hashable, key: Key) -> Key:
    return key


@dataclass(frozen=True)
class EvictionStrategy:
    """A strategy's sort key.

    A node's key falls only when a soft pin is dropped, and is never below its children's keys: parents are evicted
    later.

    Keys order the leaves of a group. `order` compares leaves of different groups; it may change with time, but the
    leaves of one group always keep the order of their keys. So only the first leaf of each group has to be compared.
    """

    key: Callable[[TreeNode], Key]
    respects_soft_pins: bool = False
    group: Callable[[TreeNode], Hashable] = _one_group
    order: Callable[[Hashable, Key], Key] = _by_key


def _lru(node: TreeNode) -> Key:
    return (node.last_used,)


def _lfu(node: TreeNode) -> Key:
    return (node.num_hits, node.last_used)


def _priority(node: TreeNode) -> Key:
    return (node.priority, node.last_used)


def _program(forecast: ReuseForecast) -> EvictionStrategy:
    """Return the strategy that evicts first what programs have left over, then what has no soft pin, by age.

    Soft-pinned leaves follow, the one first whose owner is least likely to return soon: by the kind of its wait, by how
    long it has waited, and by its own earlier waits. Of equal ones, that of the largest rank goes first. What a client
    has asked to keep goes last, until its time is over: that whose time is over first.
    """

    def group(node: TreeNode) -> Hashable:
        if not node.soft_pins:
            return None
        if _retained_until(forecast, node) > forecast.now:
            return RETAINED
        wait = _last_wait(forecast, node)
        return None if wait is None else wait[1]

    def key(node: TreeNode) -> Key:
        if node.soft_pins:
            rank = -min(node.soft_pins.values())
            if (until := _retained_until(forecast, node)) > forecast.now:
                return (2, until, rank, node.last_used)
            if (wait := _last_wait(forecast, node)) is not None:
                return (2, wait[0], rank, node.last_used)
        return (1 if node.program_id is None else 0, node.last_used)

    return EvictionStrategy(key, True, group, partial(_by_rate, forecast))


RETAINED = "retained"  # the group of leaves that clients have asked to keep


def _retained_until(forecast: ReuseForecast, node: TreeNode) -> float:
    """Return the time until which a client has asked to keep the node; 0 if none has."""
    return max((forecast.retained_until(owner) or 0.0 for owner in node.soft_pins or ()), default=0.0)


def _last_wait(forecast: ReuseForecast, node: TreeNode) -> tuple[float, WaitGroup] | None:
    """Return the beginning and the group of the wait that began last, of those of the node's owners."""
    owners = [owner for owner in node.soft_pins or () if forecast.retained_until(owner) is None]
    waits = [forecast.wait(owner) for owner in owners]
    return max(((wait.since, wait.group) for wait in waits), default=None)


def _by_rate(forecast: ReuseForecast, group: Hashable, key: Key) -> Key:
    if group == RETAINED:
        return (3, *key[1:])
    if not isinstance(group, WaitGroup):
        return key
    return (2, forecast.rate(group, key[1]), *key[1:])


def _constant(key: Callable[[TreeNode], Key]) -> Callable[[ReuseForecast], EvictionStrategy]:
    return lambda forecast: EvictionStrategy(key)


STRATEGIES: dict[str, Callable[[ReuseForecast], EvictionStrategy]] = {  # by the names that `--eviction` takes
    "lru": _constant(_lru),
    "lfu": _constant(_lfu),
    "priority": _constant(_priority),
    "program": _program,
}
