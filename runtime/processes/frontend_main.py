"""Entry point of the first frontend: starts the core and the other frontends, serves, and ends them all.

`ramiform serve` runs `serve` in its own process. `launch.Runtime` runs this module as a child, which writes one line of
JSON, a `StartReport`, to its standard output.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import msgspec

from ..protocol.config import RuntimeConfig
from ..protocol.core import ModelInfo
from ..protocol.errors import ErrorInfo, RamiformError
from . import logs, parent_watchdog
from .bounded_sleep import bounded_sleep
from .start_report import Started, StartFailed, StartReport
from .supervisor import ChildProcess

if TYPE_CHECKING:
    from ..frontend.process import Frontend

START_FAILURE_SECONDS = 5.0  # for the error message of a core that ended
FRONTEND_EXIT_SECONDS = 10.0  # after which a frontend that is stuck exits


@dataclass
class ShutdownSignals:
    """Shutdown events. `end`: stop now. `drain`: stop when running requests have ended, or `drain_seconds` are over."""

    end: asyncio.Event = field(default_factory=asyncio.Event)
    drain: asyncio.Event = field(default_factory=asyncio.Event)

    def install(self) -> None:
        """Handle SIGTERM by draining; a second SIGTERM, or SIGINT, ends at once."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.end.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        (self.end if self.drain.is_set() else self.drain).set()


async def serve(config: RuntimeConfig, signals: ShutdownSignals, on_start: Callable[[Started], None]) -> None:
    """Serve until a shutdown is requested. Raises RamiformError when starting fails, RuntimeFailed when a child dies.

    The directory of the sockets is always removed.
    """
    children: list[ChildProcess] = []
    try:
        # First, because the core has most to load: it starts while this process imports what it needs itself.
        children.append(
            await ChildProcess.start("core", "ramiform.runtime.processes.core_main", config=config, reports=False)
        )
        frontend = await _make_frontend(config, children)
        error: RamiformError | None = None
        try:
            await frontend.start()
            await _supervise(config, frontend, children, signals, on_start)
        except RamiformError as failure:
            error = failure
            raise
        finally:
            await frontend.stop(None if error is None else ErrorInfo.of(error))
    finally:
        # The core last: the other frontends notify their clients first.
        await asyncio.gather(*(child.end() for child in children[1:]))
        for child in children[:1]:
            await child.end()
        _remove_sockets(config)


async def _make_frontend(config: RuntimeConfig, children: list[ChildProcess]) -> Frontend:
    """Make the first frontend and start the others, which are added to `children`."""
    from ..frontend.http.transport.connection_limits import raise_descriptor_limit
    from ..frontend.http.transport.listener import listen
    from ..frontend.process import Frontend
    from ..models.checkpoint import find_checkpoint
    from ..tokenizer import load_tokenizer

    raise_descriptor_limit()
    listener = listen(config.serve)
    fds = [] if listener is None else [listener.fileno()]
    try:
        for index in range(1, config.serve.frontends):
            name, arguments = f"frontend {index}", (str(index), *map(str, fds))
            module = "ramiform.runtime.processes.frontend_worker"
            children.append(await ChildProcess.start(name, module, *arguments, config=config, fds=fds, reports=True))
        if config.serve.engine == "dynamo":
            module = "ramiform.runtime.dynamo.worker"
            children.append(await ChildProcess.start("Dynamo worker", module, config=config, reports=True))
        return Frontend(config, load_tokenizer(find_checkpoint(config.core.model)), listener=listener)
    except RamiformError:
        if listener is not None:
            listener.close()
        raise


def _remove_sockets(config: RuntimeConfig) -> None:
    from ..frontend.http.transport.listener import remove_socket_file

    remove_socket_file(config.serve)
    shutil.rmtree(config.serve.socket_dir, ignore_errors=True)


async def _supervise(
    config: RuntimeConfig,
    frontend: Frontend,
    children: list[ChildProcess],
    signals: ShutdownSignals,
    on_start: Callable[[Started], None],
) -> None:
    """Wait for the time to end. Raises RamiformError when the core cannot start, or a child dies."""
    deaths = [asyncio.ensure_future(child.wait_for_death()) for child in children]
    end_requested = asyncio.ensure_future(signals.end.wait())
    drain_requested = asyncio.ensure_future(signals.drain.wait())
    all_ready = asyncio.ensure_future(_all_ready(frontend, children))
    drain_done: asyncio.Future[None] | None = None
    try:
        await asyncio.wait({*deaths, end_requested, drain_requested, all_ready}, return_when=asyncio.FIRST_COMPLETED)
        if any(death.done() for death in deaths):
            # A failing core reports the reason before it exits; the message may still be on its way.
            await asyncio.wait({all_ready}, timeout=START_FAILURE_SECONDS)
        if all_ready.done():
            frontend.begin_collections()
            on_start(Started(all_ready.result(), frontend.http_port, frontend.tcp_address))
            await asyncio.wait({*deaths, end_requested, drain_requested}, return_when=asyncio.FIRST_COMPLETED)
        if drain_requested.done() and not end_requested.done():
            drain_done = asyncio.ensure_future(_drain(config, frontend, children))
            await asyncio.wait({*deaths, end_requested, drain_done}, return_when=asyncio.FIRST_COMPLETED)
        for death in deaths:
            if death.done() and not end_requested.done():
                await frontend.wait_for_failure_message()
                raise death.result()
        if drain_done is not None and drain_done.done():
            drain_done.result()
    finally:
        for task in (
            *deaths,
            end_requested,
            drain_requested,
            all_ready,
            *([drain_done] if drain_done is not None else []),
        ):
            task.cancel()


async def _all_ready(frontend: Frontend, children: list[ChildProcess]) -> ModelInfo:
    info = await frontend.core_ready()
    for child in children[1:]:
        await child.wait_until_ready()
    frontend.peers_ready()
    return info


async def _drain(config: RuntimeConfig, frontend: Frontend, children: list[ChildProcess]) -> None:
    for child in children[1:]:
        child.process.terminate()
    await frontend.drain(config.serve.drain_seconds)
    for child in children[1:]:
        await child.wait_until_ready()  # its second line: "drained"


async def _run_as_child(config: RuntimeConfig, reports: BinaryIO) -> int:
    loop = asyncio.get_running_loop()
    signals = ShutdownSignals()
    signals.install()

    def on_end(requested: bool) -> None:
        if not requested:
            parent_watchdog.say("ramiform frontend: the program that started it is gone; leaving")
        loop.call_soon_threadsafe(signals.end.set)
        bounded_sleep(FRONTEND_EXIT_SECONDS)
        parent_watchdog.exit_now(1)  # the event loop is stuck; the core notices by itself

    parent_watchdog.watch_parent(sys.stdin.buffer, on_end)
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
            parent_watchdog.say(f"ramiform frontend: {error}")
        else:
            report(StartFailed(ErrorInfo.of(error)))
        return 1
    return 0


def main() -> NoReturn:
    reports = parent_watchdog.redirect_stdout()
    config = parent_watchdog.read_config(sys.stdin.buffer)
    logs.set_up_logging(config.serve, "frontend")
    try:
        status = asyncio.run(_run_as_child(config, reports))
    except Exception:
        parent_watchdog.say(traceback.format_exc())
        status = 1
    parent_watchdog.exit_now(status)


if __name__ == "__main__":
    main()
