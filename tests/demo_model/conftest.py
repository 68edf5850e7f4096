"""The directory of the shipped model."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shipped() -> Path:
    return Path(__file__).resolve().parents[2] / "runtime" / "shipped_model"
