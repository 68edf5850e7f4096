"""Test files are collected together in any order: what one of them imports hides nothing from another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


@pytest.mark.exhaustive
def test_all_files_are_collected_in_another_order() -> None:
    files = sorted(FILES, key=lambda name: name[::-1])  # files of different folders mixed
    command = [sys.executable, "-m", "pytest", f"--rootdir={TESTS}", "-c", TESTS.parent / "pyproject.toml"]
    command += ["-p", "no:cacheprovider", "--collect-only", "-q", "-n", "0", *files]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        cwd=TESTS,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
