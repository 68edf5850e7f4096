"""The first hour on a GPU, without one: every section runs in Triton's interpreter on tiny shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramiform.bench.gpu import kernels

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The lines of each section after a dry run."""
    out = tmp_path_factory.mktemp("gpu_hour")
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(out), "SITE": str(out / "site")}
    command = ["bash", str(ROOT / "bench/gpu/hour.sh"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {
        section: [json.loads(line) for line in (out / f"{section}.jsonl").read_text().splitlines()]
        for section in "ABCDE"
    }


def test_no_measurement_fails(measured: dict[str, list[dict[str, Any]]]) -> None:
    assert not [row for rows in measured.values() for row in rows if "failed" in row]
    assert {row["what"] for row in measured["B"]} == {measure.__name__.replace("_", " ") for measure in kernels.ALL}
    assert {row["what"] for row in measured["C"]} == {"decode", "prefill", "few tokens", "top kernels"}


def test_kernels_and_graphs_give_the_tokens_of_plain_torch(measured: dict[str, list[dict[str, Any]]]) -> None:
    ways = {row["way"]: row["steps that differ"] for row in measured["A"] if row["what"] == "correctness"}
    assert ways == {"kernels": 0, "graphs": 0}
