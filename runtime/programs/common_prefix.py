"""Common prefixes of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def common_prefix_length(first: Sequence[object], *others: Sequence[object]) -> int:
    """Return how many leading items all sequences share."""
    return sum(
        1 for _ in takewhile(lambda items: items.count(items[0]) == len(items), zip(first, *others, strict=False))
    )
