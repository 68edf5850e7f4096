"""Libraries on top of the OpenAI API, as their users call them, against the real server.

Each runs in the clients' own environment, as for its user: its dependencies may conflict with the runtime's.
Constraints make the answers independent of the model.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest

from ramiform.tests.clients.runner import PLACE, SWITCH

PROGRAMS = Path(__file__).parent / "clients"
SECONDS = 500


@pytest.fixture(scope="session")
def python() -> Path:
    """Where `make test` installs clients/requirements.txt."""
    found = Path(__file__).parents[2] / ".venv" / "clients" / "bin" / "python"
    if not found.exists():
        pytest.skip("needs the clients' environment: make .venv/.clients")
    return found


def run(program: str, python: Path, *arguments: str) -> str:
    """What the program prints."""
    done = subprocess.run(
        [python, PROGRAMS / program, *arguments],
        # No proxies, keys, tracers or projects of whoever runs the tests.
        env={"PATH": os.environ["PATH"], "HOME": os.devnull, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout


@pytest.mark.parametrize("library", ["instructor", "langchain", "litellm", "outlines", "pydantic_ai"])
@pytest.mark.exhaustive
def test_structured_answers_tools_and_streams_arrive(library: str, python: Path, url: str, model: str) -> None:
    got = json.loads(run(f"with_{library}.py", python, url, model).splitlines()[-1])
    jsonschema.validate(got["structured"], PLACE)
    jsonschema.validate(got["tool"], SWITCH)
    assert got["result"] == f"{got['tool']['room']} {got['tool']['on']}"
    assert got["text"]
    assert got["streamed"] == got["text"]


@pytest.mark.exhaustive
def test_litellm_knows_that_the_context_is_exceeded(python: Path, url: str, model: str) -> None:
    assert run("overflow_litellm.py", python, url, model).split() == ["ContextWindowExceededError"] * 2


@pytest.mark.exhaustive
def test_every_program_is_run() -> None:
    [mark] = [one for one in test_structured_answers_tools_and_streams_arrive.pytestmark if one.name == "parametrize"]  # type: ignore[attr-defined]
    assert sorted(mark.args[1]) == sorted(path.stem.removeprefix("with_") for path in PROGRAMS.glob("with_*.py"))
