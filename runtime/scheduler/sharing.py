"""In-flight sharing: a request waits for a prefix that another one computes right now instead of computing it twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .request import Request


@dataclass(frozen=True)
class AwaitedPrefix:
    """A running request, and how many of its tokens somebody waits for."""

    request: Request
    num_tokens: int

    @property
    def coming(self) -> bool:
        """Still to be computed, by a request that still runs."""
        return (
            self.request.lease is not None and not self.request.leaving and self.request.num_computed < self.num_tokens
        )


def find_awaited_prefix(
    request: Request, num_matched: int, running: Iterable[Request], page_size: int
) -> AwaitedPrefix | None:
    """The longest prefix of `request` that is being computed now, beyond the `num_matched` tokens that are cached.

    Waiting costs a few steps, so a token or two in common is not worth it: only a page's worth, or half of what the
    request has to compute.
    """
    best: AwaitedPrefix | None = None
    for other in running:
        if other.message.namespace != request.message.namespace or other.num_uncomputed <= 1:
            continue
        shared = min(common_prefix_length(request.tokens, other.tokens), request.reuse_limit)
        if shared > max(other.num_computed, num_matched, best.num_tokens if best else 0):
            best = AwaitedPrefix(other, shared)
    if best is None:
        return None
    gain = best.num_tokens - num_matched
    return best if gain >= page_size or 2 * gain >= len(request.tokens) - num_matched else None


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first elements are equal, by halving: slices compare fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
