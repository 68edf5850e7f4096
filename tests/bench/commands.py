"""Runs a bench script as its documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ramiform

BENCH = Path(ramiform.__file__).parent / "bench"


def run(script: str, *arguments: str) -> str:
    """Run a script of bench/ in a process of its own; return its standard output."""
    command = [sys.executable, "-P", str(BENCH / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout
