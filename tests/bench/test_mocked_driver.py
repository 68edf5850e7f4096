"""Random steps on a device that is not there: what a GPU's engine must not do while it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.exhaustive
def test_random_steps_compile_nothing_and_graphs_allocate_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("random_steps.py")), "40"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr  # a value that is read from the device fails
    found = json.loads(done.stdout)
    assert found["compilations at start"] > 0
    assert found["compilations while serving"] == 0
    assert found["steps by graph"] > 0
    assert found["allocations in steps by graph"] == 0
    assert found["launches of a decode step, greedy"] <= 10
