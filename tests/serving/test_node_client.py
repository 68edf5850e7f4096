"""The official Node client against the same server: each file of node/ is a suite of Node's own test runner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SUITES = Path(__file__).parent / "node"
SECONDS = 500


def run_suite(suite: str, node: Path, **variables: str) -> None:
    """Run a file of tests with these environment variables."""
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", f"{suite}.test.js"],
        cwd=SUITES,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize("suite", ["batches", "chat", "completions", "errors", "responses", "tools"])
@pytest.mark.exhaustive
def test_the_node_client_is_content_with(suite: str, node: Path, url: str) -> None:
    run_suite(suite, node, RAMIFORM_URL=url)


@pytest.mark.exhaustive
def test_every_suite_is_run() -> None:
    [mark] = [one for one in test_the_node_client_is_content_with.pytestmark if one.name == "parametrize"]  # type: ignore[attr-defined]
    elsewhere = ["images"]  # in tests/pictures/test_api.py
    assert sorted([*mark.args[1], *elsewhere]) == sorted(
        path.name.removesuffix(".test.js") for path in SUITES.glob("*.test.js")
    )
