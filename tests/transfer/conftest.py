"""Fixtures of the tests of transfers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cores import opened


@pytest.fixture(autouse=True)
def closed_cores() -> Iterator[None]:
    """Close the connections of the cores that a test has made."""
    yield
    while opened:
        opened.pop().hub.close()
