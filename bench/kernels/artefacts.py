"""Registers, shared memory and loops of the Triton kernels, as they compile for a GPU; none is needed.

    python -P bench/kernels/artefacts.py [MODEL ...] [--capability 90] [--out FILE]

Models are those of tests/kernels/triton/compile_all.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ramiform.bench.harness import Out, report, table

SCRIPT = Path(__file__).parents[2] / "tests/kernels/triton/compile_all.py"


def rows(lines: str) -> list[dict[str, str | int]]:
    """Return the table's rows for the JSON lines of compile_all.py."""
    return [
        {
            "model": one["model"],
            "kernel": one["name"],
            "registers": one["registers"],
            "spilled bytes": one["spilled_bytes"],
            "shared bytes": one["shared_bytes"],
            "buffers": one["buffers"],
            "loads under way": one["waits"],
            "instructions of loops": ", ".join(map(str, one["loops"])) or "-",
        }
        for one in map(json.loads, lines.splitlines())
    ]


def main(models: Annotated[list[str] | None, typer.Argument()] = None, capability: int = 90, out: Out = None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", SCRIPT, str(capability), *(models or [])]
    lines = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    report("Triton kernels as they compile", table(rows(lines)), out=out)


if __name__ == "__main__":
    typer.run(main)
