"""What a type checker knows of programs. Judge: mypy in strict mode, on a user's file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

USER = """\
from dataclasses import dataclass
import ramiform
from ramiform import ProgramState, gen

@dataclass
class Answer:
    text: str

@ramiform.function
def qa(s: ProgramState, question: str, width: int = 3) -> Answer:
    '''Answer.'''
    raise NotImplementedError

@ramiform.function()
def plain(s: ProgramState, question: str) -> None:
    s += question + gen("x")

@ramiform.function
async def later(s: ProgramState, question: str) -> Answer:
    return qa(s, question)

class Asker:
    @ramiform.function
    def ask(self, s: ProgramState, question: str) -> int:
        return 3

def use(any_program: ramiform.Program) -> None:
    reveal_type(any_program.run("x", 3, temperature=0.5))

async def main() -> None:
    reveal_type(qa("x"))
    reveal_type(qa("x", width=2))
    reveal_type(plain("x"))
    reveal_type(await later("x"))
    reveal_type(Asker().ask("x"))
    reveal_type(qa.run("x", temperature=0.5)["x"])
    reveal_type(qa.run_batch([("x",)]))
    reveal_type(await qa.arun_batch([("x",)]))
    reveal_type(qa.with_prompt(instruction="y")("x"))
    qa(3)  # wrong
    qa("x", widht=2)  # wrong
    use(qa)
"""
# Libraries are left alone: nothing of theirs is in the types of programs, and they take mypy a minute.
CONFIG = """\
[mypy]
strict = True
python_version = 3.11
mypy_path = {root}/.editable
[mypy-{libraries}]
follow_imports = skip
ignore_missing_imports = True
"""
LIBRARIES = ("torch", "numpy", "transformers", "fastapi", "starlette", "pydantic", "typer", "httpx", "mcp", "triton")
REVEALED = [
    "ProgramState",
    "Answer",
    "Answer",
    "ProgramState",
    "Answer",
    "int",
    "Any",
    "list[Any]",
    "list[Any]",
    "Answer",
]


@pytest.mark.exhaustive
def test_mypy_knows_the_arguments_and_results_of_programs(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    config = tmp_path / "mypy.ini"
    libraries = ",".join(f"{name}.*" for name in LIBRARIES)
    config.write_text(CONFIG.format(root=Path(__file__).parents[2], libraries=libraries))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = re.findall(r'user\.py:\d+: note: Revealed type is "([^"]*)"', checked.stdout)
    assert [re.sub(r"[a-z_]+\.", "", kind) for kind in found] == REVEALED, checked.stdout
    wrong = [int(line) for line in re.findall(r"user\.py:(\d+): error", checked.stdout)]
    assert sorted(set(wrong)) == [n for n, line in enumerate(USER.splitlines(), 1) if line.endswith("# wrong")]
