"""Child processes of the first frontend: the core and the other frontends. Started, awaited, ended alike."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence

from ..protocol.config import RuntimeConfig
from ..protocol.errors import RuntimeFailed
from . import parent_watchdog as lifeline

CHILD_EXIT_SECONDS = (
    10.0  # seconds a child may take to leave before it is killed; one that is stuck leaves by itself sooner
)


class ChildProcess:
    """`name` is what messages call it."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process

    @classmethod
    async def start(
        cls, name: str, module: str, *arguments: str, config: RuntimeConfig, fds: Sequence[int] = (), reports: bool
    ) -> ChildProcess:
        """Run one of our modules, with its configuration on its standard input. `reports`: it prints a line for us
        once it serves; otherwise what it prints goes to standard error, as ours may be our parent's to read."""
        process = await asyncio.create_subprocess_exec(
            *lifeline.child_command(module),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if reports else sys.stderr.fileno(),
            start_new_session=True,  # a terminal's Ctrl-C is ours to answer, also while the child still starts
            env=lifeline.child_environment(),
            pass_fds=fds,
        )
        assert process.stdin is not None
        process.stdin.write(lifeline.config_line(config))
        await process.stdin.drain()
        return cls(name, process)

    async def ready(self) -> None:
        """Its line has come, or its end."""
        assert self.process.stdout is not None
        await self.process.stdout.readline()

    async def died(self) -> RuntimeFailed:
        """Wait for its end, which nobody asked for. How it ended."""
        status = await self.process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return RuntimeFailed(f"the {self.name} (process {self.process.pid}) {how}; the runtime is down")

    async def end(self, grace: float = CHILD_EXIT_SECONDS) -> None:
        assert self.process.stdin is not None
        if self.process.returncode is None:
            self.process.stdin.write(lifeline.QUIT)
            try:
                await asyncio.wait_for(self.process.wait(), grace)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        self.process.stdin.close()
