"""`ramiform serve` as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RAMIFORM = str(Path(sys.executable).parent / "ramiform")


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str  # as it says itself
    address: str  # for programs
    first_line: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self, timeout: float = 120) -> tuple[int, str]:
        """Its status, and what it said on standard error."""
        assert self.process.stderr is not None
        return self.process.wait(timeout), self.process.stderr.read()


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """Serves until the end of the block; leaves no folder of sockets behind."""
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        command = [RAMIFORM, "serve", "--num-pages", "512", "--dtype", "float32"]
        if "--uds" not in options:
            command += ["--port", "0"]
        environment = os.environ | {"TMPDIR": folder}
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                first = process.stdout.readline()
                assert " at " in first, process.stderr.read()
                second = process.stdout.readline()
                yield Server(process, first.split(" at ")[1].strip(), second.split("--address ")[1].strip(), first)
            finally:
                try:
                    if process.poll() is None:
                        process.send_signal(signal.SIGINT)
                        process.wait(120)
                finally:
                    process.kill()  # leaving the block waits for it without end
        if process.returncode == 0:
            assert not any("ramiform-" in name for name in os.listdir(folder))
