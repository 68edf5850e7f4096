"""Scripts under `ramiform run` and `ramiform trace` that fail or are interrupted: what is shown is the script's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RAMIFORM = str(Path(sys.executable).parent / "ramiform")
PROGRAM = """\
import sys, ramiform
from ramiform import gen

def helper():
    return 1 // 0

@ramiform.function
def ask(s, how):
    s += "Say " + gen("said")
    if how == "own":
        s["said"], helper()
    s += gen("late")

answers = ["hello", ramiform.RequestError("no good")]
ask.run(sys.argv[1], backend=ramiform.Scripted(answers))
"""
WAITING = """\
import time, ramiform
from ramiform import gen

def answer(prompt):
    time.sleep(0.5); print("asked", flush=True); time.sleep(600)  # by then the program waits

@ramiform.function
def ask(s):
    s += gen("said")
    s["said"]

@ramiform.function
async def ask_async(s):
    s += gen("said")
    await s.get("said")

backend = ramiform.Scripted(answer)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(PROGRAM)
    return tmp_path / "script.py"


def shown(command: str, script: Path, how: str) -> subprocess.CompletedProcess[str]:
    words = [RAMIFORM, command, str(script), "--address", "ipc:///unused", how]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "trace"])
def test_an_exception_of_the_script_s_own_is_shown_by_the_script_s_frames(command: str, script: Path) -> None:
    done = shown(command, script, "own")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert [line.split(", ")[2] for line in done.stderr.splitlines() if line.startswith("  File")] == [
        "in <module>",
        "in ask",
        "in helper",
    ]
    assert "ZeroDivisionError" in done.stderr
    assert ("'hello'" in done.stdout) == (command == "trace")


@pytest.mark.slow
def test_a_failing_script_is_traced_up_to_the_failure(script: Path) -> None:
    done = shown("trace", script, "gen")
    assert done.returncode == 1
    assert "'hello'" in done.stdout
    assert f"failed: {script}:12: no good" in done.stdout
    assert done.stderr == f"ramiform: {script}:12: no good\n"


@pytest.mark.slow
def test_the_interpreter_shows_the_script_s_frames_too(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script), "own"], capture_output=True, text=True, timeout=120)
    assert [line.split(", ")[2] for line in done.stderr.splitlines() if line.startswith("  File")] == [
        "in <module>",
        "in ask",
        "in helper",
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ending", "line", "program"),
    [
        ("ask.run(backend=backend)", 10, "ask"),
        ("ask_async.run(backend=backend)", 15, "ask_async"),
        ("ask.run_batch([{}] * 2, backend=backend)", 18, None),
        ("time.sleep(answer(''))", 5, None),
    ],
)
def test_ctrl_c_shows_the_line_of_the_program(tmp_path: Path, ending: str, line: int, program: str | None) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAITING + ending + "\n")
    words = [RAMIFORM, "run", str(script), "--address", "ipc:///unused"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        for _ in range(20):  # a signal is only seen after the wait if it comes just as the program begins to wait
            os.kill(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
                break
        process.kill()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == f"interrupted at {script}:{line}" + (f", in the program {program!r}\n" if program else "\n")
