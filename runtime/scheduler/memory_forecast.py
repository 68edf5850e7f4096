"""Forecasts of output lengths and of the pages that running requests will need.

After Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees (ASPLOS 2025). Memory use peaks just
before some output ends, so only those moments are examined; requests that ended before give their pages back.

A request gives no warning before it stops. So each is expected to end like one of the recent outputs that got as far as
it has: not all like their mean, since outputs that end at different times need less memory together.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class MemoryGrowth(NamedTuple):
    """Forecast for one request, in slots. Sorted by the number of steps until the request ends."""

    num_steps: int  # until it ends, one token each
    num_wanted: int  # slots for known tokens beyond the slots held; negative: slots to spare
    num_freed: int  # slots held now that are freed at the end


def peak_pages(growths: Iterable[MemoryGrowth], page_size: int) -> int:
    """Return the pages needed beyond those held, at the worst moment. `growths` must be sorted."""
    growths = list(growths)
    running = len(growths)
    # One page more for each: the last page is seldom full, and lengths are estimates.
    needed = sum([growth.num_wanted for growth in growths]) + running * page_size
    worst, last_end = 0, -1
    for num_steps, num_wanted, num_freed in growths:
        if num_steps > last_end:  # those that end together are all there until then
            worst, last_end = max(worst, needed + running * num_steps), num_steps
        needed -= num_wanted + page_size + num_freed
        running -= 1
    return -(-worst // page_size)


NUM_RECENT = 256  # number of outputs that are remembered
NUM_PRIOR = 2  # imagined outputs of a random share of their limit, until real ones are recorded
MAX_SAFETY_FACTOR = 2.0


class OutputLengthEstimator:
    """Expected output lengths, in tokens, learned from recent outputs. Deterministic: time plays no part."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._safety_factor = 1.0

    def record(self, num_tokens: int) -> None:
        """Record the length of an output that ended."""
        if len(self._recent) == NUM_RECENT:
            oldest = self._recent.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._recent.append(num_tokens)
        insort(self._sorted, num_tokens)
        self._safety_factor = max(1.0, self._safety_factor * 0.95)

    def record_retraction(self) -> None:
        """Raise the safety factor: a retraction means that too much was admitted."""
        self._safety_factor = min(MAX_SAFETY_FACTOR, 1.2 * self._safety_factor)

    def remaining(self, num_tokens: int, most: int, quantile: float) -> int:
        """Return the expected number of tokens that an output of `num_tokens` tokens adds, at most `most`: that of the
        recent output at `quantile`, in [0, 1), of those that were longer."""
        at = bisect_right(self._sorted, num_tokens)
        num_longer = len(self._sorted) - at
        index = quantile * (num_longer + NUM_PRIOR)
        if index < num_longer:
            expected = float(self._sorted[at + int(index)] - num_tokens)
        else:
            expected = most * (index - num_longer) / NUM_PRIOR
        return min(most, round(self._safety_factor * expected))
