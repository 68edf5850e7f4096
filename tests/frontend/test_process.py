"""Garbage collections of a frontend, and the memory that it returns."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from contextlib import suppress
from typing import Any

import pytest

from ramiform.runtime.frontend.process import begin_collections, return_memory

GAPS = """\
from ramiform.runtime.processes.memory import give_back_memory
from ramiform.tests.chaos.server import resident_bytes
import os
held = [bytearray(b"x") * 100_000 for _ in range(1000)]  # in the heap: larger ones would have pages of their own
kept = held[::2]
del held
before = resident_bytes(os.getpid())
give_back_memory()
print(before - resident_bytes(os.getpid()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' allocators return memory by themselves")
def test_freed_memory_between_what_lives_on_is_returned() -> None:
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-P", "-c", GAPS]
    returned = int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert returned > 40_000_000


@pytest.mark.parametrize("is_idle", [True, False])
def test_only_an_idle_frontend_collects_its_garbage_before(is_idle: bool) -> None:
    class Cycle:
        pass

    async def main() -> None:
        one = Cycle()
        one.itself = one  # type: ignore[attr-defined]
        found = weakref.ref(one)
        del one
        with suppress(TimeoutError):
            await asyncio.wait_for(return_memory(lambda: is_idle, 0.01), 0.3)
        assert (found() is None) == is_idle

    gc.collect()
    gc.collect(1)  # counts as one of younger objects
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@pytest.mark.exhaustive
def test_what_thousands_of_connections_hold_is_walked_once_at_most() -> None:
    """A full collection walks all of it while no token is sent."""
    thresholds = gc.get_threshold()
    num_full = 0

    def count(phase: str, info: dict[str, Any]) -> None:
        nonlocal num_full
        num_full += phase == "start" and info["generation"] == 2

    begin_collections()
    gc.callbacks.append(count)
    try:
        held = [[[] for _ in range(100)] for _ in range(7_000)]
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert len(held) == 7_000
    assert num_full <= 1
