"""The folder of the model that ships."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shipped() -> Path:
    return Path(__file__).resolve().parents[2] / "runtime" / "shipped_model"
