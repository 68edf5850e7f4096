"""The pins resolve from the package index alone, with wheels only, on every platform and Python version we name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 540
PLATFORMS = ["x86_64-manylinux_2_31", "aarch64-manylinux_2_31", "aarch64-apple-darwin"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]  # torch has wheels for these
PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", re.MULTILINE)

pytestmark = pytest.mark.install


@pytest.fixture
def index_only() -> dict[str, str]:
    """An environment without the local wheels and extra indexes of whoever runs the test."""
    local = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_INDEX")
    kept = {name: value for name, value in os.environ.items() if name not in local}
    # torch's wheels for macOS ask for 14; uv assumes an older one.
    return kept | {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "MACOSX_DEPLOYMENT_TARGET": "14.0"}


def output_of(command: list[str], environment: dict[str, str]) -> str:
    """Run a command in the repository, which must succeed."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_pip_resolves_the_pins_on_this_machine(index_only: dict[str, str]) -> None:
    """With the extra `test`: what the package itself requires is a part of that."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q"]
    output_of([*pip, "-c", "constraints.txt", "-e", ".[test]"], index_only)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_pins_resolve_to_wheels_and_cover_all_that_is_installed(
    platform: str, python: str, index_only: dict[str, str]
) -> None:
    """With the extra `test`, whose pins hold all of the package's own."""
    uv = pytest.importorskip("uv", reason="the extra dev")
    resolve = [uv.find_uv_bin(), "pip", "compile", "-q", "-c", "constraints.txt", "pyproject.toml", "--extra", "test"]
    target = ["--python-platform", platform, "--python-version", python, "--only-binary", ":all:"]
    resolved = output_of([*resolve, *target], index_only)
    pinned = PIN.findall((ROOT / "constraints.txt").read_text())
    installed = PIN.findall(resolved)
    assert ("torch", dict(pinned)["torch"]) in installed
    assert set(installed) <= set(pinned)
