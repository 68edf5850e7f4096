"""The official Node client against the same server: each file of node/ is a suite of Node's own test runner."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SUITES = Path(__file__).parent / "node"
SECONDS = 500


@pytest.fixture(scope="session")
def node() -> Path:
    """A Node that is new enough for the client: the one that its package.json brings, where there is one to bring."""
    if not (SUITES / "node_modules" / "openai").exists():
        pytest.skip("needs npm: `make test` installs tests/serving/node where there is one")
    for found in SUITES.glob("node_modules/node-*/bin/node"):
        return found
    ours = shutil.which("node")
    if ours is None or int(subprocess.check_output([ours, "--version"], text=True)[1:].split(".")[0]) < 22:
        pytest.skip("needs Node 22")
    return Path(ours)


@pytest.mark.parametrize("suite", ["chat", "completions", "errors", "responses", "tools"])
@pytest.mark.exhaustive
def test_the_node_client_is_content_with(suite: str, node: Path, url: str) -> None:
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", f"{suite}.test.js"],
        cwd=SUITES,
        env={**os.environ, "RAMIFORM_URL": url},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.exhaustive
def test_every_suite_is_run() -> None:
    [mark] = [one for one in test_the_node_client_is_content_with.pytestmark if one.name == "parametrize"]  # type: ignore[attr-defined]
    assert sorted(mark.args[1]) == sorted(path.name.removesuffix(".test.js") for path in SUITES.glob("*.test.js"))
