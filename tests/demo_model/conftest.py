"""The example's modules are scripts beside each other: put their folder on the path, as running them does."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "demo_model"))


@pytest.fixture(scope="session")
def shipped() -> Path:
    return ROOT / "runtime" / "shipped_model"
