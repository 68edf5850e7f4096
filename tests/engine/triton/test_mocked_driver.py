"""The engine on a CUDA device that is not there: no compilation while serving, no value read back by a launch, no
memory allocated by a step that is a graph. Judge: Triton's own compiler calls, torch's operators, and tensors without
values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive

SCRIPT = Path(__file__).parents[2] / "bench" / "random_steps.py"


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", str(SCRIPT), "400"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=600)
    return dict(json.loads(done.stdout))


def test_kernels_are_compiled_at_start_only(counts: dict[str, Any]) -> None:
    assert counts["compilations at start"] > 10
    assert counts["compilations while serving"] == 0


def test_most_steps_are_graphs_which_allocate_nothing(counts: dict[str, Any]) -> None:
    assert counts["steps by graph"] > 320
    assert counts["allocations in steps by graph"] == 0


def test_a_decode_step_queues_few_things_on_the_device(counts: dict[str, Any]) -> None:
    """Tables and the last step's tokens, the graph, then the head, the draw, and the tokens' copy to the host."""
    assert counts["most launches in a forward by graph"] <= 5
    assert counts["launches of a decode step, greedy"] <= 15
    assert counts["launches of a decode step, drawn"] <= 15
