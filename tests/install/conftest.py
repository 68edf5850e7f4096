"""A wheel in a new environment, which the tests of this folder share."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment into which the wheel was installed."""
    place = tmp_path_factory.mktemp("installed")
    wheels = place / "wheels"
    run_in([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, ROOT], place)
    venv.create(place / "env", with_pip=True)
    [wheel] = wheels.glob("ramiform-*.whl")
    installed = place / "env" / "bin"
    # Without compiling the modules of all dependencies, of which a start imports a part.
    install = [installed / "python", "-m", "pip", "install", "-q", "--no-compile"]
    run_in([*install, "-c", ROOT / "constraints.txt", wheel], place)
    run_in([installed / "python", "-m", "pip", "check"], place)
    return installed


def run_in(command: list[Path | str], place: Path, text: str = "", **variables: str) -> str:
    """Run a command in a folder without the tests' environment, with `text` as its input; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=place, env=environment | variables, input=text, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
