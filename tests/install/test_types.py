"""A type checker finds the package, and its types, from the editable install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.install


def test_mypy_resolves_the_import_outside_the_repository(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import ramiform\nstate: int = ramiform.function(lambda s: None).run()\n")
    # Nothing of these libraries is in the answer, and mypy takes 24 of 32 s to read them.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-torch.*,transformers.*]\nfollow_imports = skip\n")
    environment = {name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    [error, summary] = done.stdout.splitlines()
    assert "[assignment]" in error
    assert '"ProgramState"' in error
    assert summary.startswith("Found 1 error")
