"""Acceptance rates of draft tokens, for one request or all, as exponentially decaying counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Acceptance:
    """Decaying counts over verified trees: accepted levels, trees that ended in a rejection, and acceptances the draft
    predicted."""

    hits: float = 0.0
    misses: float = 0.0
    expected: float = 0.0

    def observe(self, expected: float, depth: int, num_right: int, *, memory: float) -> None:
        """Record a tree of depth `depth` of which `num_right` levels were accepted; the draft predicted `expected`."""
        self.hits = memory * self.hits + num_right
        self.misses = memory * self.misses + (num_right < depth)
        self.expected = memory * self.expected + expected

    def chance(self, prior: float, weight: float = 1.5) -> float:
        """Probability that the next level is accepted too."""
        return min(0.98, (self.hits + weight * prior) / (self.hits + self.misses + weight))

    def ratio(self, prior: float, weight: float = 3.0) -> float:
        """Ratio of accepted to predicted draft tokens."""
        return (self.hits + weight * prior) / (self.expected + weight)

    @property
    def evidence(self) -> float:
        """Decayed number of levels observed."""
        return self.hits + self.misses


def expected_accepted(chance: float, depth: int) -> float:
    """Expected number of accepted draft tokens of a chain of `depth`."""
    return sum(chance**level for level in range(1, depth + 1))
