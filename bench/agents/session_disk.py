"""A disk under the memory of replayed sessions: which blocks it has, and what goes first. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ramiform.radix.cache import PrefixCache


class DiskUser(Protocol):
    """A session, whose blocks are on the disk."""

    name: str

    @property
    def next_use(self) -> float: ...


@dataclass(eq=False)
class DiskSegment:
    """Blocks that were written one after the other, and the sessions that have used them."""

    blocks: list[int] = field(default_factory=list)
    last_used: float = 0.0
    owners: dict[str, DiskUser] = field(default_factory=dict)


class Disk:
    """Blocks on disk, in segments that go as a whole. A block's number names all that precedes it."""

    def __init__(self, num_blocks: int, value: Callable[[DiskSegment], float]) -> None:
        """The segment of the least `value` goes first."""
        self._num_blocks, self._value = num_blocks, value
        self._segments: list[DiskSegment] = []
        self._places: dict[int, DiskSegment] = {}

    def first_missing(self, blocks: Sequence[int], start: int) -> int:
        """Return the index of the first block from `start` on that is not there."""
        return next((at for at in range(start, len(blocks)) if blocks[at] not in self._places), len(blocks))

    def use(self, session: DiskUser, blocks: Sequence[int], now: float) -> None:
        """Note that a session has these blocks, and write those that are not there."""
        for block in blocks:
            segment = self._places.get(block)
            if segment is None:
                segment = self._segment_to_append()
                segment.blocks.append(block)
                self._places[block] = segment
            segment.last_used = now
            segment.owners[session.name] = session

    def _segment_to_append(self) -> DiskSegment:
        size = max(1, self._num_blocks // 32)
        if not self._segments or len(self._segments[-1].blocks) >= size:
            if len(self._segments) >= 32:
                oldest = min(self._segments, key=self._value)
                self._segments.remove(oldest)
                for block in oldest.blocks:
                    del self._places[block]
            self._segments.append(DiskSegment())
        return self._segments[-1]


def disk_values(cache: PrefixCache) -> dict[str, Callable[[DiskSegment], float]]:
    """Return what a segment is worth by each rule of eviction from the disk."""
    forecast = cache.forecast

    def expected(segment: DiskSegment) -> float:
        rates = 0.0
        for name, session in segment.owners.items():
            owner = f"/{name}", 0
            if forecast.is_waiting(owner):
                wait = forecast.wait(owner)
                rates += forecast.rate(wait.group, wait.since)
            elif session.next_use < float("inf"):
                rates += 1.0  # it runs; those that have ended are known
        return rates

    return {
        "lru": lambda segment: segment.last_used,
        "forecast": expected,
        "clairvoyant": lambda segment: -min(session.next_use for session in segment.owners.values()),
    }
