"""What tests of processes share."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for sockets, so that what is left behind can be seen. Short: a socket's path is limited."""
    folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder
