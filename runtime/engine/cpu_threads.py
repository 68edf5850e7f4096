"""Choice of the number of threads for a step on a CPU. The number applies to the whole process.

Handing work over and waiting for it takes some forty microseconds per op with sleeping threads (spinning ones would
take the processor from others, docs/inside/log.md), and a step has hundreds of ops. So small steps use one thread of
torch's. Compiled loops share a whole step at once (`kernels.cpu.step.phases`), and choose their threads themselves.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from ...kernels.cpu import thread_pool

_MIN_WORK = 400_000_000  # tokens times parameters of a step from which on several threads pay: some 10 ms
_MIN_TOKENS = 64  # of such a step where compiled loops multiply the weights: what is left to torch is small
_SMALL = 50_000_000  # parameters; below it few steps are large


def usable_cpus(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many processors this process can keep busy: those of its affinity mask, within its cgroups' quotas.

    A quota of one and a half processors is counted as two. `root` is where cgroups are mounted, `own` lists those of
    the process.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    groups = [root / "cpu"]  # of version 1, as a container sees it
    with suppress(OSError):
        for line in own.read_text().splitlines():
            if line.startswith("0::/"):  # version 2, whose groups all have limits
                inner = root / line.removeprefix("0::/")
                groups += [group for group in (inner, *inner.parents) if group.is_relative_to(root)]
    for group in groups:
        for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
            with suppress(OSError, ValueError):  # not there, or "max"
                quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
                if quota > 0 and period > 0:
                    cpus = min(cpus, -(-quota // period))
    return cpus


class CpuThreads:
    """Sets one thread for small steps, and for large ones as many as the process had at construction.

    `fixed` keeps one number for all steps, because the division of a product among threads may change its sums. With
    `packed` weights, compiled loops multiply them, by threads of their own.
    """

    def __init__(self, num_parameters: int, *, fixed: bool = False, packed: bool = False) -> None:
        self._current = torch.get_num_threads()
        self._max_threads = 1 if fixed and num_parameters < _SMALL else self._current
        self._min_tokens = 0 if fixed else max(-(-_MIN_WORK // num_parameters), _MIN_TOKENS if packed else 0)
        thread_pool.set_num_threads(self._max_threads)

    def choose(self, num_tokens: int) -> None:
        """Set the number of threads for a step of `num_tokens`."""
        wanted = self._max_threads if num_tokens >= self._min_tokens else 1
        if wanted != self._current:
            torch.set_num_threads(wanted)
            self._current = wanted
