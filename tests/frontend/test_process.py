"""Garbage collections of a frontend."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from ramiform.runtime.frontend.process import begin_collections


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
