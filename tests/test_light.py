"""Importing the package, help texts and clients load none of the packages that only a runtime needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ramiform
from ramiform.tests.test_cli import commands

# What computes, serves or tokenises; none of it is a client's.
OF_RUNTIMES = (
    "torch",
    "triton",
    "numba",
    "numpy",
    "transformers",
    "tokenizers",
    "sentencepiece",
    "tiktoken",
    "safetensors",
    "jinja2",
    "fastapi",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "lark",
    "interegular",
    "outlines_core",
    "ramiform.constrained",
)
OF_COMMANDS = ("typer", "rich", "asyncio", "zmq", "pydantic")

# Runs the command with its arguments, then names the modules of the first argument that were imported.
AUDIT = """
import sys
from ramiform.cli import main
names, sys.argv = sys.argv[1].split(","), ["ramiform", *sys.argv[2:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("loaded:", *(name for name in names if name in sys.modules))
"""

# Makes the packages of the first argument look as if they were not installed.
WITHOUT = """
import importlib.abc, sys
names, sys.argv = sys.argv[1].split(","), ["ramiform", *sys.argv[2:]]
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""

PROGRAM = """
import ramiform
@ramiform.function
def ask(s):
    s += "Question: What is the capital of France?\\nAnswer:" + ramiform.gen("answer", max_tokens=3, temperature=0)
    s += ramiform.select("choice", ["yes", "no"]) + ramiform.gen("number", regex="[0-9]{2}")
state = ask.run()
print(len(state["number"]), state["choice"] in ("yes", "no"))
"""


def python(code: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], input=stdin, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(arguments: list[str], stdin: str = "") -> list[str]:
    shown = python(AUDIT, ",".join(OF_RUNTIMES), *arguments, stdin=stdin)
    return shown.rpartition("loaded:")[2].split()


def test_the_package_alone_loads_neither_a_runtime_nor_a_command_line() -> None:
    code = "import sys, ramiform; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    assert python(code, *OF_RUNTIMES, *OF_COMMANDS).split() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["", "bench", *commands()])
def test_help_loads_no_runtime(name: str) -> None:
    assert loaded([*name.split(), "--help"]) == []


@pytest.mark.slow
def test_the_version_loads_no_runtime() -> None:
    assert loaded(["--version"]) == []


@pytest.mark.exhaustive
def test_commands_that_talk_to_a_running_runtime_load_none(runtime: ramiform.Runtime, url: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    assert loaded(["run", str(script), "--address", runtime.address]) == []
    assert loaded(["trace", str(script), "--address", runtime.address]) == []
    assert loaded(["info", "--address", runtime.address]) == []
    assert loaded(["chat", "--url", url], stdin="/max_tokens 2\nHello\n") == []


@pytest.mark.slow
def test_making_keys_loads_no_runtime(tmp_path: Path) -> None:
    assert loaded(["keys", str(tmp_path / "keys")]) == []


@pytest.mark.exhaustive
def test_a_client_needs_none_of_the_runtimes_packages(runtime: ramiform.Runtime, url: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    absent = [name for name in OF_RUNTIMES if not name.startswith("ramiform")]
    code = WITHOUT + "from ramiform.cli import main\nmain()"
    assert python(code, ",".join(absent), "run", str(script), "--address", runtime.address) == "2 True\n"
    assert "demo" in python(code, ",".join(absent), "chat", "--url", url, stdin="/max_tokens 2\nHello\n")
    # Typer imports pydantic itself; without the command line nothing does.
    code = WITHOUT + "import os, runpy\nos.environ['RAMIFORM_ADDRESS'] = sys.argv[2]\nrunpy.run_path(sys.argv[1])"
    assert python(code, ",".join((*absent, "pydantic", "typer", "rich")), str(script), runtime.address) == "2 True\n"


@pytest.mark.exhaustive
def test_an_engine_needs_no_web_framework() -> None:
    """Its runtime does, in a process of its own."""
    code = (
        WITHOUT
        + """
from ramiform import Engine
with Engine() as engine:
    few = {"max_new_tokens": 3, "temperature": 0}
    outputs = engine.generate(["One, two", "Hello"], few)
    chat = engine.chat([{"role": "user", "content": "Hi"}], max_tokens=3)
    vectors = engine.embed(["Hello"])
    scores = engine.score("One, two,", [" three", " cat"])
    print(len(outputs), len(chat["choices"]), len(vectors), len(scores["data"]))
print(*(name for name in names if name in sys.modules))
"""
    )
    assert python(code, "fastapi,starlette,uvicorn").split() == ["2", "1", "1", "2"]
