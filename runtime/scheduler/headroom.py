"""How many more pages running requests will need at the worst moment, as far as their lengths can be foreseen.

After Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees (ASPLOS 2025): memory use peaks just
before some output ends, so only those moments are looked at; what ended before gives its pages back.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple


class MemoryGrowth(NamedTuple):
    """One request, in slots. Sorted, the ones that end first come first."""

    num_steps: int  # until it ends, a token each
    num_wanted: int  # slots for the tokens that are there already, beyond those it holds; negative: some to spare
    num_freed: int  # slots that it holds now and will give back


def peak(growths: Iterable[MemoryGrowth], page_size: int) -> int:
    """Pages needed beyond those held, at the worst moment. `growths` come sorted."""
    growths = list(growths)
    running = len(growths)
    # A page more for each: the last one is seldom full, and lengths are guesses.
    needed = sum(growth.num_wanted for growth in growths) + running * page_size
    worst = 0
    for num_steps, ending in groupby(growths, key=lambda growth: growth.num_steps):
        worst = max(worst, needed + running * num_steps)
        for growth in ending:
            needed -= growth.num_wanted + page_size + growth.num_freed
            running -= 1
    return -(-worst // page_size)
