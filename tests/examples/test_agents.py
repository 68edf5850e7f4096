"""Every example runs by its documented command and says something true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ramify

ROOT = Path(ramify.__file__).parent
RAMIFY = str(Path(sys.executable).parent / "ramify")


def run_example(runtime: ramify.Runtime, name: str, *arguments: str) -> str:
    done = subprocess.run(
        [RAMIFY, "run", "--address", runtime.address, str(ROOT / "examples/agents" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ((), "96"),
        (("How many legs do 31 ants have?",), "186"),
        (("What is the capital of Japan?",), "Tokyo"),
        (("What is 382 plus 417?",), "799"),
    ],
)
def test_react_uses_its_tools_and_answers(runtime: ramify.Runtime, arguments: tuple[str, ...], answer: str) -> None:
    printed = run_example(runtime, "react.py", *arguments)
    assert printed.rstrip().endswith(f"Answer: {answer}")
    assert re.search(r"\d+ tokens in \d+ calls, \d+ of \d+ prompt tokens from the cache, \d+ tok/s", printed)


def test_extract_fills_a_record_from_each_text(runtime: ramify.Runtime) -> None:
    printed = run_example(runtime, "extract.py")
    for fact in (
        "Ada Brown",
        "36",
        "Paris",
        "False",
        "Marcus Lind",
        "51",
        "Oslo",
        "True",
        "Nadia Haddad",
        "24",
        "Cairo",
    ):
        assert fact in printed


def test_tree_of_thought_votes_for_the_right_thought(runtime: ramify.Runtime) -> None:
    printed = run_example(runtime, "tree_of_thought.py")
    assert "best: The capital of Japan is Tokyo." in printed
    assert "best: The currency of Brazil is the real." in printed


def test_the_readme_program_runs_as_printed(runtime: ramify.Runtime) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    done = subprocess.run([sys.executable, "-P", "-c", program[1]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    capital, europe, ada = done.stdout.splitlines()
    assert (capital.strip(), europe.strip()) == ("Paris", "yes")
    assert json.loads(ada) == {"name": "Ada Brown", "age": 36}
