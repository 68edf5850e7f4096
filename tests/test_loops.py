"""Compiled loops: a cache never older than the sources, shared by processes; interpreted while they are postponed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest

import ramiform
from ramiform.runtime.compile_ahead import LoopGroup, loop_modules

ROOT = Path(ramiform.__file__).parent
CODE = """
import sys
from numba.core import event

with event.install_recorder("numba:compile") as recorder:
    import grown.loop
    result = grown.loop.scaled(7)
print(result, sum(occurred.is_start for _, occurred in recorder.buffer))
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


@pytest.mark.exhaustive
def test_a_compiled_loop_is_cached_until_a_source_beside_it_changes(folder: Path) -> None:
    assert run(folder) == ("14 1", "")
    assert run(folder) == ("14 0", "")
    (folder / "grown/constants.py").write_text("FACTOR = 3\n")
    assert run(folder) == ("21 1", "")
    assert run(folder) == ("21 0", "")


@pytest.mark.exhaustive
def test_processes_that_start_together_share_one_cache(folder: Path) -> None:
    for process in [start(folder) for _ in range(3)]:
        output, errors = process.communicate()
        assert (output.split()[0], errors) == ("14", "")
    assert run(folder) == ("14 0", "")


@pytest.mark.exhaustive
def test_a_process_that_is_killed_while_it_compiles_leaves_the_loops_that_were_done(folder: Path) -> None:
    with (folder / "grown/loop.py").open("a") as file:
        file.write('\n@compiled("int64(int64)")\ndef other(x):\n    return x - FACTOR\n')
    killed = (
        "import os\nfrom numba.core import event\nimport grown.loop\n"
        "class Kill(event.Listener):\n"
        "    def on_start(self, event): os.kill(os.getpid(), 9)\n"
        "    def on_end(self, event): pass\n"
        "grown.loop.scaled(7)\n"
        "with event.install_listener('numba:compile', Kill()): grown.loop.other(7)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-P", "-B", "-c", killed]
    assert subprocess.run(command, env=environment | {"PYTHONPATH": str(folder)}, check=False).returncode == -9
    assert run(folder) == ("14 0", "")


@pytest.mark.exhaustive
def test_loops_of_a_read_only_folder_are_cached_in_the_users_directory(folder: Path, tmp_path: Path) -> None:
    (folder / "grown/__pycache__").write_text("a file where a directory should be: nobody can write there")
    assert run(folder, XDG_CACHE_HOME=str(tmp_path / "cache")) == ("14 1", "")
    assert run(folder, XDG_CACHE_HOME=str(tmp_path / "cache")) == ("14 0", "")


@pytest.mark.exhaustive
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


MARKS = ("compiled", "compiled_in_order", "loops.compiled", "loops.compiled_once")


def modules_with_loops() -> Iterator[str]:
    """Yield the names below `ramiform` of the modules that define a compiled loop at any level."""
    for path in sorted(
        path for layer in ("constrained", "kernels", "runtime") for path in ROOT.glob(f"{layer}/**/*.py")
    ):
        source = path.read_text()
        if "compiled" not in source:
            continue
        marks = (
            mark
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef)
            for mark in node.decorator_list
        )
        if any(isinstance(mark, ast.Call) and ast.unparse(mark.func) in MARKS for mark in marks):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.slow
def test_every_module_with_loops_is_compiled_ahead() -> None:
    assert sorted(chain.from_iterable(map(loop_modules, get_args(LoopGroup)))) == sorted(modules_with_loops())


@pytest.mark.slow
def test_a_loop_keeps_its_own_options_when_it_is_compiled_for_a_caller(folder: Path) -> None:
    with (folder / "grown/loop.py").open("a") as file:
        file.write(
            '\n@compiled("float32(float32, float32)")\ndef exact(x, y):\n    return (x + y) - x\n'
            '\n@compiled("float32(float32, float32)", fastmath=True)\ndef outer(x, y):\n    return exact(x, y)\n'
        )
    code = "import grown.loop as loop; print(loop.outer(1e8, 1), loop.exact(1e8, 1))"
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0.0", "0.0"]


POSTPONED = """
import sys
from ramiform import loops
loops.postpone("grown", interpret=True)
import grown.loop
print(grown.loop.scaled(7), loops.ready("grown"), "numba.core" in sys.modules)
loops.allow("grown")
print(grown.loop.scaled(7), loops.ready("grown"), "numba.core" in sys.modules)
"""


@pytest.mark.slow
def test_a_postponed_loop_is_interpreted_with_those_that_it_calls_until_it_is_allowed(folder: Path) -> None:
    with (folder / "grown/loop.py").open("a") as file:
        file.write('\n@compiled("int64(int64)")\ndef twice(x):\n    return scaled(x) + scaled(x)\n')
    done = subprocess.run(
        [sys.executable, "-P", "-c", POSTPONED.replace("scaled", "twice")],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["28", "False", "False", "28", "True", "True"]


COMPLETE = """
from pathlib import Path
import grown.loop
from ramiform import loops
folder = Path(grown.loop.__file__).parent
print(loops.is_complete(folder))
loops.compile_registered("grown")
loops.mark_complete(folder)
print(loops.is_complete(folder))
"""


@pytest.mark.exhaustive
def test_a_folder_is_complete_until_a_source_or_the_setting_of_the_processor_changes(folder: Path) -> None:
    def said(**environment: str) -> list[str]:
        command = [sys.executable, "-P", "-B", "-c", COMPLETE]
        inherited = os.environ | {"PYTHONPATH": str(folder)} | environment
        done = subprocess.run(command, env=inherited, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert said() == ["False", "True"]
    assert said() == ["True", "True"]
    assert said(RAMIFORM_CPU="generic") == ["False", "True"]
    (folder / "grown/constants.py").write_text("FACTOR = 3\n")
    assert said() == ["False", "True"]


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
        source = path.read_text()
        if "numba" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module == "numba":
                names = {alias.name for alias in node.names}
                assert not names & {"njit", "jit", "vectorize", "guvectorize"}, path


IMPORT_WITHOUT_MEMORY = """
import resource, sys
import numpy
from ramiform.constrained.regex.search import search

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    search(("[a-z]{3}x",))
except (ImportError, OSError, MemoryError) as error:
    print(type(error).__name__, "numba.core" in sys.modules)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(search(("[a-z]{3}x",)).scan().feed(b"abcx").text)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_loops_are_loaded_after_an_import_that_found_no_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORT_WITHOUT_MEMORY], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split()[1] == "False"
    assert second == "b'abcx'"
