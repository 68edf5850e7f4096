"""The first frontend process: starts the core and the other frontends, serves until told to end or until one of them
dies, and leaves nothing behind.

`ramiform serve` runs `serve` in its own process; `launch.Runtime` runs this module as a child, which reports on its
standard output, in one line of JSON, a `StartReport`.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, NoReturn

import msgspec

from ..frontend.http.transport.connection_limits import raise_descriptor_limit
from ..frontend.http.transport.listener import listen, remove_socket_file
from ..frontend.process import Frontend
from ..models.checkpoint import find_checkpoint
from ..protocol.config import RuntimeConfig
from ..protocol.core import ModelInfo
from ..protocol.errors import ErrorInfo, RamiformError
from ..protocol.start_report import Started, StartFailed, StartReport
from ..tokenizer import load_tokenizer
from . import logs
from . import parent_watchdog as lifeline
from .bounded_sleep import bounded_sleep
from .supervisor import ChildProcess

START_FAILURE_SECONDS = 5.0  # seconds that a core's reason not to start may come after the news of its end
FRONTEND_EXIT_SECONDS = 10.0  # seconds after which a frontend that was to end does so, whatever it is busy with


@dataclass
class ShutdownSignals:
    """`end`: leave now. `drain`: leave when what runs has ended, or its time is over."""

    end: asyncio.Event = field(default_factory=asyncio.Event)
    drain: asyncio.Event = field(default_factory=asyncio.Event)

    def install(self) -> None:
        """SIGTERM drains, a second one or SIGINT ends."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.end.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        (self.end if self.drain.is_set() else self.drain).set()


async def serve(config: RuntimeConfig, signals: ShutdownSignals, on_start: Callable[[Started], None]) -> None:
    """Serve until told to end. Raises RamiformError when starting fails, RuntimeFailed when a process of ours dies.

    The directory of the sockets is removed at the end, however it ends.
    """
    raise_descriptor_limit()
    children: list[ChildProcess] = []
    try:
        tokenizer = load_tokenizer(find_checkpoint(config.core.model))
        listener = listen(config.serve)
        try:
            frontend = Frontend(config, tokenizer, listener=listener)
        except RamiformError:
            if listener is not None:
                listener.close()
            raise
        error: RamiformError | None = None
        try:
            children.append(
                await ChildProcess.start("core", "ramiform.runtime.core.main", config=config, reports=False)
            )
            fds = [] if listener is None else [listener.fileno()]
            for index in range(1, config.serve.frontends):
                name, arguments = f"frontend {index}", (str(index), *map(str, fds))
                children.append(
                    await ChildProcess.start(
                        name,
                        "ramiform.runtime.processes.frontend_worker",
                        *arguments,
                        config=config,
                        fds=fds,
                        reports=True,
                    )
                )
            await frontend.start()
            await _supervise(config, frontend, children, signals, on_start)
        except RamiformError as caught:
            error = caught
            raise
        finally:
            await frontend.stop(None if error is None else ErrorInfo.of(error))
            # The core last: the other frontends tell their clients first.
            await asyncio.gather(*(child.end() for child in children[1:]))
            for child in children[:1]:
                await child.end()
    finally:
        remove_socket_file(config.serve)
        shutil.rmtree(config.serve.socket_dir, ignore_errors=True)


async def _supervise(
    config: RuntimeConfig,
    frontend: Frontend,
    children: list[ChildProcess],
    signals: ShutdownSignals,
    on_start: Callable[[Started], None],
) -> None:
    """Returns when it is time to end. Raises RamiformError when the core cannot start, or a child dies."""
    deaths = [asyncio.ensure_future(child.died()) for child in children]
    ended = asyncio.ensure_future(signals.end.wait())
    drained = asyncio.ensure_future(signals.drain.wait())
    ready = asyncio.ensure_future(_all_ready(frontend, children))
    emptied: asyncio.Future[None] | None = None
    try:
        await asyncio.wait({*deaths, ended, drained, ready}, return_when=asyncio.FIRST_COMPLETED)
        if any(death.done() for death in deaths):
            # A core that fails says why before it leaves; the message may still be on its way.
            await asyncio.wait({ready}, timeout=START_FAILURE_SECONDS)
        if ready.done():
            gc.collect()
            gc.freeze()  # what is there now stays: collections between tokens need not walk it
            on_start(Started(ready.result(), frontend.http_port, frontend.tcp_address))
            await asyncio.wait({*deaths, ended, drained}, return_when=asyncio.FIRST_COMPLETED)
        if drained.done() and not ended.done():
            emptied = asyncio.ensure_future(_drain(config, frontend, children))
            await asyncio.wait({*deaths, ended, emptied}, return_when=asyncio.FIRST_COMPLETED)
        for death in deaths:
            if death.done() and not ended.done():
                await frontend.wait_for_failure_message()
                raise death.result()
        if emptied is not None and emptied.done():
            emptied.result()
    finally:
        for task in (*deaths, ended, drained, ready, *([emptied] if emptied is not None else [])):
            task.cancel()


async def _all_ready(frontend: Frontend, children: list[ChildProcess]) -> ModelInfo:
    info = await frontend.core_ready()
    for child in children[1:]:
        await child.ready()
    frontend.peers_ready()
    return info


async def _drain(config: RuntimeConfig, frontend: Frontend, children: list[ChildProcess]) -> None:
    for child in children[1:]:
        child.process.terminate()
    await frontend.drain(config.serve.drain_seconds)
    for child in children[1:]:
        await child.ready()  # its second line


async def _run_as_child(config: RuntimeConfig, reports: BinaryIO) -> int:
    loop = asyncio.get_running_loop()
    signals = ShutdownSignals()
    signals.install()

    def on_end(asked: bool) -> None:
        if not asked:
            print("ramiform frontend: the program that started it is gone; leaving", file=sys.stderr, flush=True)
        loop.call_soon_threadsafe(signals.end.set)
        bounded_sleep(FRONTEND_EXIT_SECONDS)
        lifeline.exit_now(1)  # the event loop does not look up; the core follows by its own lifeline

    lifeline.watch_parent(sys.stdin.buffer, on_end)
    started = False

    def report(value: StartReport) -> None:
        reports.write(msgspec.json.encode(value) + b"\n")

    def on_start(value: Started) -> None:
        nonlocal started
        started = True
        report(value)

    try:
        await serve(config, signals, on_start)
    except RamiformError as error:
        if started:
            print(f"ramiform frontend: {error}", file=sys.stderr)
        else:
            report(StartFailed(ErrorInfo.of(error)))
        return 1
    return 0


def main() -> NoReturn:
    reports = lifeline.redirect_stdout()
    config = lifeline.read_config(sys.stdin.buffer)
    logs.set_up_logging(config.serve, "frontend")
    try:
        status = asyncio.run(_run_as_child(config, reports))
    except Exception:
        traceback.print_exc()
        status = 1
    lifeline.exit_now(status)


if __name__ == "__main__":
    main()
