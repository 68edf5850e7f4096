"""The cache of compiled loops: never older than the sources, in any directory, shared by concurrent processes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramiform
from ramiform.runtime.compile_ahead import LOOP_MODULES

ROOT = Path(ramiform.__file__).parent
CODE = """
import sys
from numba.core import event

with event.install_recorder("numba:compile") as recorder:
    import grown.loop
print(grown.loop.scaled(7), sum(occurred.is_start for _, occurred in recorder.buffer))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package with one loop, which uses a constant of another file."""
    package = tmp_path / "grown"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "constants.py").write_text("FACTOR = 2\n")
    (package / "loop.py").write_text(
        "from ramiform.loops import compiled\n"
        "from grown.constants import FACTOR\n\n"
        '@compiled("int64(int64)")\n'
        "def scaled(x):\n"
        "    return FACTOR * x\n"
    )
    return tmp_path


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a process that prints the loop's result for 7, and how many loops it compiled."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-c", CODE],
        env=inherited | {"PYTHONPATH": str(folder)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, **environment: str) -> tuple[str, str]:
    """Return what the process printed on standard output, and on standard error."""
    process = start(folder, **environment)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output.strip(), errors


@pytest.mark.slow
def test_a_compiled_loop_is_cached_until_a_source_beside_it_changes(folder: Path) -> None:
    assert run(folder) == ("14 1", "")
    assert run(folder) == ("14 0", "")
    (folder / "grown/constants.py").write_text("FACTOR = 3\n")
    assert run(folder) == ("21 1", "")
    assert run(folder) == ("21 0", "")


@pytest.mark.slow
def test_processes_that_start_together_share_one_cache(folder: Path) -> None:
    for process in [start(folder) for _ in range(3)]:
        output, errors = process.communicate()
        assert (output.split()[0], errors) == ("14", "")
    assert run(folder) == ("14 0", "")


@pytest.mark.slow
def test_loops_of_a_read_only_folder_are_cached_in_the_users_directory(folder: Path, tmp_path: Path) -> None:
    (folder / "grown/__pycache__").write_text("a file where a directory should be: nobody can write there")
    assert run(folder, XDG_CACHE_HOME=str(tmp_path / "cache")) == ("14 1", "")
    assert run(folder, XDG_CACHE_HOME=str(tmp_path / "cache")) == ("14 0", "")


@pytest.mark.slow
def test_without_a_writable_directory_loops_work_and_a_warning_explains_it(folder: Path) -> None:
    (folder / "grown/__pycache__").write_text("a file where a directory should be: nobody can write there")
    for environment in ({"XDG_CACHE_HOME": "/dev/null"}, {"NUMBA_CACHE_DIR": "/dev/null"}):
        output, errors = run(folder, **environment)
        assert output == "14 1"
        assert "cannot be cached in" in errors
        assert "/dev/null" in errors


@pytest.mark.slow
def test_a_directory_that_the_user_names_comes_first(folder: Path, tmp_path: Path) -> None:
    assert run(folder, NUMBA_CACHE_DIR=str(tmp_path / "named")) == ("14 1", "")
    assert list((tmp_path / "named").rglob("*.nbi"))
    assert not list(folder.rglob("__pycache__"))


def loop_modules() -> Iterator[str]:
    """Yield the names below `ramiform` of the modules whose loops are compiled at import."""
    for path in sorted(ROOT.glob("[kc]*/**/*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(mark, ast.Call) and getattr(mark.func, "id", None) == "compiled" and mark.args
                for mark in node.decorator_list
            ):
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)
                break


@pytest.mark.slow
def test_every_loop_is_compiled_before_a_runtime_is_ready() -> None:
    imported = {f"ramiform.{name}" for name in LOOP_MODULES}
    code = f"import sys, {', '.join(sorted(imported))}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    names = [f"ramiform.{name}" for name in loop_modules()]
    assert imported <= set(names)
    assert set(names) <= set(modules.stdout.split())


@pytest.mark.exhaustive
def test_loops_can_be_compiled_ahead() -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "ramiform.runtime.compile_ahead"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stderr == "", "the second run compiles nothing, and prints nothing"


@pytest.mark.slow
def test_every_loop_is_compiled_through_the_cache() -> None:
    for path in [*ROOT.glob("[cklr]*/**/*.py"), ROOT / "cli.py", ROOT / "chat.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "numba":
                names = {alias.name for alias in node.names}
                assert not names & {"njit", "jit", "vectorize", "guvectorize"}, path
