"""How often guesses prove right, of one request or of all: counts that fade."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Acceptance:
    """Of trees verified lately: how many levels proved right and how many trees ended in a wrong one; and how many
    guesses were right of how many that the draft expected to be."""

    hits: float = 0.0
    misses: float = 0.0
    expected: float = 0.0

    def observe(self, expected: float, depth: int, num_right: int, *, memory: float) -> None:
        """A tree `depth` deep, which expected so many of its guesses to be right, had `num_right`."""
        self.hits = memory * self.hits + num_right
        self.misses = memory * self.misses + (num_right < depth)
        self.expected = memory * self.expected + expected

    def chance(self, prior: float, weight: float = 1.5) -> float:
        """That the next level proves right too."""
        return min(0.98, (self.hits + weight * prior) / (self.hits + self.misses + weight))

    def ratio(self, prior: float, weight: float = 3.0) -> float:
        """Right guesses to expected ones."""
        return (self.hits + weight * prior) / (self.expected + weight)

    @property
    def evidence(self) -> float:
        return self.hits + self.misses


def expected_accepted(chance: float, depth: int) -> float:
    """Guesses that prove right, of a tree so deep."""
    return sum(chance**level for level in range(1, depth + 1))
