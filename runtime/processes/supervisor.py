"""Child processes of the first frontend: starts, awaits and ends the core and the other frontends."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence

from ..protocol.config import RuntimeConfig
from ..protocol.errors import RuntimeFailed
from . import parent_watchdog

_MAX_LINE_BYTES = 1 << 24  # of a child's reports and logs
CHILD_EXIT_SECONDS = 10.0  # then a child is killed; a stuck one exits by itself sooner


class ChildProcess:
    """A child process. `name` is used in messages."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        *arguments: str,
        config: RuntimeConfig,
        fds: Sequence[int] = (),
        reports: bool,
        logs: bool = False,
    ) -> ChildProcess:
        """Run a module with its configuration on standard input.

        With `reports`, its standard output is read for a line that says it serves. Otherwise it goes to standard error,
        because this process's own output may be its parent's to read. With `logs`, its standard error is there to read.
        """
        process = await asyncio.create_subprocess_exec(
            *parent_watchdog.child_command(module),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if reports else asyncio.subprocess.DEVNULL if logs else sys.stderr.fileno(),
            stderr=asyncio.subprocess.PIPE if logs else None,
            limit=_MAX_LINE_BYTES,
            start_new_session=True,  # a terminal's Ctrl-C is handled here, also while the child starts
            env=parent_watchdog.child_environment(),
            pass_fds=fds,
        )
        assert process.stdin is not None
        process.stdin.write(parent_watchdog.config_line(config))
        await process.stdin.drain()
        return cls(name, process)

    async def wait_until_ready(self) -> None:
        """Wait for the child's next line, or its end."""
        assert self.process.stdout is not None
        await self.process.stdout.readline()

    async def wait_for_death(self) -> RuntimeFailed:
        """Wait until the child ends unexpectedly. Returns the error that says how."""
        status = await self.process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return RuntimeFailed(f"the {self.name} (process {self.process.pid}) {how}; the runtime is down")

    async def end(self, grace: float = CHILD_EXIT_SECONDS) -> None:
        """Request a quiet end, and kill the child if it takes longer than `grace` seconds."""
        assert self.process.stdin is not None
        if self.process.returncode is None:
            self.process.stdin.write(parent_watchdog.QUIT)
            try:
                await asyncio.wait_for(self.process.wait(), grace)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        self.process.stdin.close()
