"""The pinned parts of NVIDIA Dynamo install without its own dependencies, and suffice for its frontend and a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ramiform.tools.cluster.command import REQUIREMENTS

pytestmark = pytest.mark.install


@pytest.mark.skipif(sys.platform != "linux", reason="Dynamo's wheels are for Linux")
def test_the_parts_of_dynamo_that_are_pinned_can_be_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), "-r"]
    subprocess.run([*command, str(REQUIREMENTS)], check=True, timeout=500)
    code = "import dynamo.frontend.main, ramiform.runtime.dynamo.engine as ours; print(ours.DynamoEngine.__name__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "DynamoEngine", done.stderr[-4000:]
