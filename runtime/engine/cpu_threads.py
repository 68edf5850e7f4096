"""How many threads compute a step on a CPU. Knows sizes; the number is the whole process's.

Handing work over and waiting for it takes some forty microseconds per op, with waiting threads asleep (as they must be
where others need the processor, docs/log.md), and a step has hundreds of ops. Small steps are computed in one thread of
torch's; compiled loops that share out a whole step at once (`kernels.cpu.workers`) have all threads for any.
"""

from __future__ import annotations

import torch

from ...kernels.cpu import thread_pool

_MIN_WORK = 400_000_000  # products of a step (tokens times parameters) from which on every thread helps: some 10 ms
_SMALL = 50_000_000  # parameters; below it few steps are large


class CpuThreads:
    """As many as the process has when this is made, or one. `fixed`: the same for every step, for how a product is
    shared out may change its sums."""

    def __init__(self, num_parameters: int, *, fixed: bool = False) -> None:
        self._now = torch.get_num_threads()
        self._most = 1 if fixed and num_parameters < _SMALL else self._now
        self._min_tokens = 0 if fixed else -(-_MIN_WORK // num_parameters)
        thread_pool.set_num_threads(self._most)

    def choose(self, num_tokens: int) -> None:
        """For a step of `num_tokens`."""
        wanted = self._most if num_tokens >= self._min_tokens else 1
        if wanted != self._now:
            torch.set_num_threads(wanted)
            self._now = wanted
