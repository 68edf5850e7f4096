"""Giving others a moment: so long that they can use it, also where everything stands still meanwhile.

A virtual machine that stops, and a process that is stopped, wake to clocks that have gone on. Whoever slept through it
in one go would find the time over that he meant to give. So these sleep in short steps, of which standing still takes
one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_SECONDS = 0.05  # seconds


def bounded_sleep(seconds: float) -> None:
    for _ in range(_num_steps(seconds)):
        time.sleep(STEP_SECONDS)


async def poll_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Look at it now and then, for so long at most. Whether it came true."""
    for _ in range(_num_steps(seconds)):
        if condition():
            return True
        await asyncio.sleep(STEP_SECONDS)
    return condition()


def _num_steps(seconds: float) -> int:
    return max(1, round(seconds / STEP_SECONDS))
