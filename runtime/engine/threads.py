"""How many threads compute a step on a CPU. Knows sizes; the number is the whole process's.

Handing work over and waiting for it takes some forty microseconds per op, with waiting threads asleep (as they must be
where others need the processor, docs/log.md), and a step has hundreds of ops. Small steps are computed in one thread.
"""

from __future__ import annotations

import torch

_MIN_WORK = 400_000_000  # products of a step (tokens times parameters) from which on every thread helps: some 10 ms


class Threads:
    """As many as the process has when this is made, or one."""

    def __init__(self, num_parameters: int) -> None:
        self._most = self._now = torch.get_num_threads()
        self._min_tokens = -(-_MIN_WORK // num_parameters)

    def choose(self, num_tokens: int) -> None:
        """For a step of `num_tokens`."""
        wanted = self._most if num_tokens >= self._min_tokens else 1
        if wanted != self._now:
            torch.set_num_threads(wanted)
            self._now = wanted
