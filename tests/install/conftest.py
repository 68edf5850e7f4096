"""A wheel in a new environment, which the tests of this folder share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.fixture(scope="session")
def compiled(scripts: Path) -> None:
    """Compile all loops of the installed wheel: a deterministic server waits for them, and would compile them beside
    another server that does so in the background."""
    run_in([scripts / "python", "-P", "-m", "ramiform.runtime.compile_ahead"], scripts, timeout=1100)


def run_in(command: list[Path | str], place: Path, text: str = "", timeout: float = 540, **variables: str) -> str:
    """Run a command in a folder without the tests' environment, with `text` as its input; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=place, env=environment | variables, input=text, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@contextmanager
def serving(scripts: Path, place: Path, command: list[str]) -> Iterator[tuple[str, str]]:
    """Serve until the end of the block; yield the URL and the address of programs.

    A server is killed where it does not start or end in time: leaving Popen's block waits for it without end.
    """
    with subprocess.Popen([scripts / command[0], *command[1:]], cwd=place, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            first, second = server.stdout.readline(), server.stdout.readline()
            try:
                yield first.rpartition(" ")[2].strip(), second.rpartition(" ")[2].strip()
            finally:
                server.send_signal(signal.SIGINT)
                server.wait(120)
        finally:
            server.kill()
    assert server.returncode == 0
