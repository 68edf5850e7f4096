"""Sleep in short steps, so that a suspended process does not count the suspension as waiting.

The clock goes on while a process or a virtual machine is stopped. One long sleep would then be over at once on waking,
and what it waited for would have had no time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_SECONDS = 0.05  # seconds


def bounded_sleep(seconds: float) -> None:
    """Sleep for `seconds` of running time."""
    for _ in range(_num_steps(seconds)):
        time.sleep(STEP_SECONDS)


async def poll_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll `condition` every STEP_SECONDS for up to `seconds`. Returns whether it became true."""
    for _ in range(_num_steps(seconds)):
        if condition():
            return True
        await asyncio.sleep(STEP_SECONDS)
    return condition()


def _num_steps(seconds: float) -> int:
    return max(1, round(seconds / STEP_SECONDS))
