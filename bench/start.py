"""A script's start: `ramiform run` to its first token, with the loops on disk and where they were never compiled.

    python -P bench/start.py [--rounds 5] [--wheel dist/ramiform-*.whl] [--name 2core-cpu_202611]

A small script on the model that ships, started anew each time. Warm: all loops are in the cache. Cold: the cache is
an empty folder; files of the packages are in the page cache as before. Without bytecode: nor has any package, torch
included, its bytecode on disk, as after an installation that compiles none. Seconds of the wall from the start of the
command to the script's first line, when its runtime is ready, and to its first token; and processor seconds of all
processes until the script has ended, right after that token. On a busy machine the wall says little: compare
processor seconds. Beside them the same of `import torch` alone, which no start is shorter than. Medians. With
`--wheel` the command is that of a fresh environment into which the wheel is unpacked; its dependencies are this
environment's.
"""

from __future__ import annotations

import compileall
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ramiform.bench.harness import command, interleaved, medians, table, write

RESULTS = Path(__file__).parent / "results"
SCRIPT = """
import time
print("ready", time.time(), flush=True)
import ramiform

@ramiform.function
def answer(s):
    s += "Question: What is the capital of France?\\nAnswer:" + ramiform.gen("x", max_tokens=8, temperature=0%s)

for text in answer.run(stream=True).text_iter("x"):
    print("token", time.time(), flush=True)
    break
"""


def start(run: list[str], script: str, environment: Mapping[str, str]) -> dict[str, float]:
    """Run a script; return the seconds to the marks that it prints, and the processor seconds of its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.time()
    done = subprocess.run([*run, script], env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    marks: dict[str, float] = {}
    for line in done.stdout.splitlines():
        mark, _, seconds = line.partition(" ")
        marks.setdefault(f"{mark}, s", float(seconds) - began)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**marks, "processor, s": processor}


def unpack(wheel: Path, folder: Path) -> list[str]:
    """Make an environment with a wheel's package and this environment's others; return its command `ramiform run`."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    compileall.compile_dir(packages / "ramiform", quiet=1)  # as pip does
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(paths) + "\n")
    return [str(folder / "bin/python"), "-P", "-m", "ramiform.cli", "run"]


def main(
    rounds: Annotated[int, typer.Option(help="starts of each kind")] = 5,
    wheel: Annotated[Path | None, typer.Option(help="measure this wheel in a fresh environment")] = None,
    name: Annotated[str | None, typer.Option(help="write bench/results/start_NAME.md")] = None,
) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run = [str(Path(sysconfig.get_path("scripts")) / "ramiform"), "run"]
        if wheel is not None:
            run = unpack(wheel, folder / "environment")
        plain, number, torch = folder / "plain.py", folder / "number.py", folder / "torch.py"
        plain.write_text(SCRIPT % "")
        number.write_text(SCRIPT % ", regex='[A-Z][a-z]+'")
        torch.write_text("import torch, time\nprint('ready', time.time())\n")
        warm = os.environ | {"NUMBA_CACHE_DIR": str(folder / "warm")}
        subprocess.run([*run[:-1], "--version"], env=warm, check=True, capture_output=True)  # writes byte code
        python = run[0] if wheel is not None else sys.executable
        compiler = [python, "-P", "-m", "ramiform.runtime.compile_ahead"]
        compiling = start(compiler[:3], compiler[3], warm)["processor, s"]

        def cold(script: Path, index: int) -> dict[str, float]:
            return start(run, str(script), os.environ | {"NUMBA_CACHE_DIR": str(folder / f"{script.stem}{index}")})

        def without_bytecode(index: int) -> dict[str, float]:
            empty = {name: str(folder / f"{name}{index}") for name in ("NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX")}
            return start(run, str(plain), os.environ | empty)

        runs = interleaved(
            rounds,
            {
                "warm": lambda _: start(run, str(plain), warm),
                "warm, first answer has a grammar": lambda _: start(run, str(number), warm),
                "cold": lambda index: cold(plain, index),
                "cold, first answer has a grammar": lambda index: cold(number, index),
                "cold, without bytecode": without_bytecode,
                "`import torch` alone": lambda _: start([sys.executable, "-P"], str(torch), warm),
            },
        )
    rows = [
        {"start": kind, **{what: f"{value:.2f}" for what, value in medians(all_runs).items()}}
        for kind, all_runs in runs.items()
    ]
    for row in rows:
        row.setdefault("token, s", "")
    load = os.getloadavg()[0]
    text = (
        f"# A script's start\n\n    {command()}\n\n{table(rows)}\n\n"
        f"Compiling all loops ahead takes {compiling:.0f} s of a processor. Load average {load:.1f} on "
        f"{os.cpu_count()} processors.\n"
    )
    write(text, None if name is None else RESULTS / f"start_{name}.md")


if __name__ == "__main__":
    typer.run(main)
